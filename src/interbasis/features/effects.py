"""Direct effects: which outputs a feature pushes up and down, along the path that no core bends.

The direct path from a node layer to the output is the product of the skips, W = P_last ⋯ P_l, so feature j
moves the outputs by W C⁺[:, j] for each unit of it. For the last layers that is all there is (the
unembedding is linear); before them it is the residual stream's own contribution. Where nothing passes
directly (an MLP's hidden layers), there is no direct effect and nothing is said. Only differences between
outputs matter to a softmax, so the mean over outputs is taken away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.basis import LayerBasis
from interbasis.errors import InterbasisError
from interbasis.features.activations import of
from interbasis.network import Network


@dataclass(frozen=True)
class Push:
    """How far a feature moves one output."""

    name: str
    value: float


@dataclass(frozen=True)
class Effects:
    """The outputs that one feature pushes most, for one standard deviation of it where that is known."""

    up: tuple[Push, ...]
    down: tuple[Push, ...]


def direct_path(network: Network, layer: LayerBasis) -> Tensor:  # [outputs, features]
    """What one unit of each feature adds to each output, in float64; the mean over outputs taken away."""
    index = of(network, layer).index
    chain = [*network.sections[index:], *network.tail]
    moved = layer.inverse.double()  # [width, features]
    for section in chain:
        moved = section.skip.double().cpu() @ moved
    constant = chain[-1].target.constant if chain else network.nodes[-1].constant
    moved = moved[1:] if constant else moved
    return moved - moved.mean(0)


def direct_effects(
    network: Network, layer: LayerBasis, names: Sequence[str] | None = None, top: int = 5
) -> list[Effects | None]:
    """The ``top`` outputs that each feature pushes up and down; None where nothing passes directly.

    ``names`` names the outputs (classes, tokens). Values are for one standard deviation of the feature, the
    square root of what the layer's features are ranked by, or for one unit where that is not known.
    """
    path = direct_path(network, layer)
    names = [str(i) for i in range(len(path))] if names is None else list(names)
    if len(names) < len(path):
        raise InterbasisError(f"expected a name for each of {len(path)} outputs, received {len(names)}")
    if layer.eigenvalues is not None:
        path = path * layer.eigenvalues.clamp_min(0).sqrt()
    top = min(top, len(path))
    most, least = (path.sort(dim=0, descending=d, stable=True) for d in (True, False))
    # without a direct path, rounding at most is left of it
    reach = torch.linalg.matrix_norm(layer.inverse.double()) + 1
    silent = path.abs().amax(0) <= 1e-12 * reach
    return [
        None if silent[j] else Effects(
            tuple(Push(names[i], v) for i, v in _first(most.indices[:top, j], most.values[:top, j])),
            tuple(Push(names[i], v) for i, v in _first(least.indices[:top, j], least.values[:top, j])),
        )
        for j in range(path.shape[1])
    ]  # fmt: skip


def _first(indices: Tensor, values: Tensor) -> list[tuple[int, float]]:
    return list(zip(indices.tolist(), values.tolist(), strict=True))
