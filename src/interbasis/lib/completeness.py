"""Whether attributions add up to the activations that they explain."""

from collections.abc import Sequence

import torch

from interbasis.base.literals import Method
from interbasis.compute.chunks import chunk_size
from interbasis.data.batches import Batches, Data
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.coordinates import in_basis, sections_in_bases, transforms_of
from interbasis.lib.edge_inputs import finite_activations
from interbasis.network.network import Network
from interbasis.numerics.integration import rule


@torch.no_grad()
def completeness(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data,
    method: Method = "exact",
    *,
    points: int = 16,
    dtype: torch.dtype = torch.float64,
) -> list[float]:
    """Measure how far the attributions are from adding up, Σ_j A_ij = F̂_i.

    Args:
        network: The network.
        layers: A basis for each of its node layers.
        data: Inputs, as `interbasis.build` takes them.
        method: As for `interbasis.edges`.
        points: Nodes of the integration rule.
        dtype: What the network computes in.

    Returns:
        RMS(Σ_j A_ij − F̂_i) / RMS(F̂) per section: 0 up to rounding if the integral is exact, and what the
        edges leave out with ``gradient``.

    Raises:
        InterbasisError: The bases do not fit the network, or activations are not finite.
    """
    network, batches, integral = network.to(dtype), Batches(data), rule(method, points)
    sections = sections_in_bases(network, layers)
    missing, size = [0.0] * len(sections), [0.0] * len(sections)
    transforms = transforms_of(network, layers)
    for first, inputs in batches.chunks(chunk_size(network, batches, fine=True)):
        activations = finite_activations(network, batches.name, first, inputs.to(network.device))[:-1]
        for k, (section, f) in enumerate(zip(sections, activations, strict=True)):
            f = in_basis(f, transforms[k])
            residual = section(f).permute(2, 0, 1).contiguous()  # F̂ [r_out, n, S]
            size[k] += residual.square().sum().item()
            for samples, outputs, block in section.attributions(f, integral):
                rest = residual[:, samples, outputs]
                rest -= block.sum(2).view_as(rest)
            missing[k] += residual.square().sum().item()
    return [(m / s) ** 0.5 if s else 0.0 for m, s in zip(missing, size, strict=True)]
