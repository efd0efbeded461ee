"""Jacobians over slices of the data: samples on one side of a plane through the first node layer.

A slice s of the data has its own Gram M̂_s = E_s[ĴᵀĴ] and its own mean Jacobian J̄_s = E_s[Ĵ], both in the
features of two bases. Both come from the cores' sums over the slice, so one pass over the data serves all
slices and layers, once the bases are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.compute.executor import Chunk, SumsPass, add_sums
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.jacobians import Jacobians
from interbasis.network.cores import PassCore, StatisticsCore, Sums
from interbasis.network.network import Network
from interbasis.network.section_jacobian import DenseJacobian
from interbasis.numerics.linalg import haar_rotation

SLICED = "slices"
"""Name of the pass."""
SLICES = 16
"""Planes, each of which makes a slice of the samples on one side of it; all samples are a slice as well."""


@dataclass(frozen=True, eq=False)
class SlicedSection:
    """Jacobians of one section in every slice that has samples, in features without the constant."""

    grams: Tensor
    """M̂_s [slices, r_in, r_in]."""
    means: Tensor
    """J̄_s [slices, r_out, r_in], at the output's own position."""


def jacobians_on_slices(jacobians: Jacobians, layers: Sequence[LayerBasis]) -> list[SlicedSection]:
    """Jacobians of every section between these bases, slice by slice, over the data of ``jacobians``."""
    with jacobians.executor.clock("Jacobians"):
        slices = SlicesPass(jacobians.network, layers, jacobians.config.seed)
        sums = jacobians.executor.run(slices, jacobians.data)
        return [slices.jacobians(k, sums) for k in range(len(jacobians.network.sections))]


class SlicesPass(SumsPass):
    """Sums of all cores and counts of positions, slice by slice, as SECTION.SLICE.NAME."""

    name = phase = SLICED
    file = "slices"

    def __init__(self, network: Network, layers: Sequence[LayerBasis], seed: int, planes: int = SLICES):
        self.layers = layers
        self.planes = _planes(layers[0], seed)[:planes].to(network.device, network.dtype)
        self.sections = [
            DenseJacobian.from_section(section, None if layer.identity else layer.transform)
            for section, layer in zip(network.sections, layers[1:], strict=True)
        ]

    @torch.no_grad()
    def update(self, state: Sums, chunk: Chunk) -> None:
        f = chunk.activations_at(0)
        side = f.mean(1) @ self.planes.T > 0  # [n, planes]
        members = torch.cat([side.new_ones(len(side), 1), side], dim=1).T  # [slices, n]
        for k, jacobian in enumerate(self.sections):
            section, u = jacobian.section, jacobian.section.read_outs(f)
            for number, member in enumerate(members):
                if member.any():
                    sums = _slice_sums(jacobian, u[member])
                    add_sums(state, {f"{k}.{number}.{name}": total for name, total in sums.items()})
            f = section.from_read_outs(f, u)

    def jacobians(self, k: int, sums: Sums) -> SlicedSection:
        """M̂_s and J̄_s of section k."""
        jacobian, source = self.sections[k], self.layers[k]
        section, metric = jacobian.section, jacobian.metric
        first, out = source.first_feature, self.layers[k + 1].first_feature
        directions = source.inverse[first:, first:].T  # [r, w]
        grams, means = [], []
        for number in range(len(self.planes) + 1):
            start = f"{k}.{number}."
            found = {n.removeprefix(start): t.to(metric) for n, t in sums.items() if n.startswith(start)}
            if not found:
                continue
            inputs, outputs = (int(found.pop(name)) for name in ("inputs", "outputs"))
            moments = section.core.moments(found, metric)
            gram = jacobian.gram(moments, outputs, inputs)
            inner = gram.inner(directions)
            grams.append(inner @ gram.K @ inner.T)
            local = moments.local.to("cpu", torch.float64) / outputs
            skip, read = (matrix.cpu().double() for matrix in (section.skip, section.read))
            mean = skip if jacobian.transform is None else jacobian.transform.cpu() @ skip
            mean = (mean + jacobian.write.cpu() @ local @ read) @ source.inverse
            means.append(mean[out:, first:])
        return SlicedSection(torch.stack(grams), torch.stack(means))


def _planes(layer: LayerBasis, seed: int) -> Tensor:  # [planes, width]
    """Normals of planes through the mean: random mixtures of the layer's features, each at variance 1."""
    first = layer.first_feature
    C = layer.transform[first:]
    assert layer.eigenvalues is not None
    standard = C / layer.eigenvalues[first:].clamp_min(torch.finfo(torch.float64).tiny).sqrt()[:, None]
    turns = [haar_rotation(len(C), (seed, 2**32 + k)) for k in range(-(-SLICES // max(len(C), 1)))]
    return torch.cat(turns)[:SLICES] @ standard


def _slice_sums(jacobian: DenseJacobian, u: Tensor) -> Sums:  # [n, T, c_in]
    """Sums of a section's core over samples of one slice, and how many positions go in and come out."""
    section = jacobian.section
    core, outputs = section.core, section.outputs(u)
    if isinstance(core, StatisticsCore):
        sums = core.statistics(u[:, outputs].flatten(0, 1)[:, None], slice(0, 1))
    else:
        assert isinstance(core, PassCore)
        sums = core.batch_sums(u, outputs, jacobian.metric.to(u), None)
    counts = len(u) * u.shape[1], len(u) * (outputs.stop - outputs.start)
    inputs, outputs_counted = (torch.tensor(count, dtype=torch.float64) for count in counts)
    return sums | {"inputs": inputs, "outputs": outputs_counted}
