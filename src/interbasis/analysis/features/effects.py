"""Direct effects: which outputs a feature pushes up and down, along the path that no core bends.

The direct path from a node layer to the output is the product of the skips, W = P_last ⋯ P_l, so feature j
moves the outputs by W C⁺[:, j] for each unit of it. For the last layers that is all there is (the
unembedding is linear); before them it is the residual stream's own contribution. Where nothing passes
directly (an MLP's hidden layers), there is no direct effect and nothing is said. Only differences between
outputs matter to a softmax, so the mean over outputs is taken away.

Where a model caps its logits, y = c · tanh(z / c) as Gemma 2 does, the path f ↦ y(W f) bends at its end, and
the effect is its derivative at the layer's mean f̄: output i moves by (1 − tanh²((W f̄)_i / c)) (W C⁺[:, j])_i.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from interbasis.analysis.features.activations import of
from interbasis.analysis.features.records import Effects, Push
from interbasis.base.errors import InterbasisError
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network

BUDGET = 2**20
"""Outputs times features that are held at once: few enough to stay in the cache."""


def direct_path(network: Network, layer: LayerBasis) -> Tensor:  # [outputs, features]
    """What one unit of each feature adds to each output, in float64; the mean over outputs taken away.

    A cap of the outputs counts with its slope at the layer's mean.
    """
    return _moved(network, layer, range(layer.features)).T


def _moved(network: Network, layer: LayerBasis, features: Sequence[int]) -> Tensor:  # [features, outputs]
    index = of(network, layer).index
    chain = [*network.sections[index:], *network.tail]
    f, moved = _mean(layer), _units(layer, features)
    for section in chain:
        f, moved = section.direct(f, moved)
    moved = moved[:, network.output_layer.first_coordinate :]
    return moved - moved.mean(1, keepdim=True)


def direct_effects(
    network: Network,
    layer: LayerBasis,
    names: Sequence[str] | None = None,
    top: int = 5,
    features: Sequence[int] | None = None,
) -> list[Effects | None]:
    """The outputs that each feature pushes up and down along the path that no core bends.

    Values are for one standard deviation of the feature, the square root of what the layer's features are
    ranked by, or for one unit where that is not known. Where logits are capped, they are derivatives of the
    capped ones at the layer's mean. Memory grows with the outputs, never with their square.

    Args:
        network: The network.
        layer: The basis of one of its node layers.
        names: Names of the outputs (classes, tokens); default: their numbers.
        top: Outputs in each direction.
        features: Some features by index; default: all.

    Returns:
        One entry per feature; None where nothing passes directly.

    Raises:
        InterbasisError: There are fewer names than outputs.
    """
    wanted = list(range(layer.features) if features is None else features)
    norm = layer.width**0.5 if layer.identity else torch.linalg.matrix_norm(layer.inverse.double()).item()
    effects: list[Effects | None] = []
    for some in _blocks(network, layer, wanted):
        moved = _moved(network, layer, some)
        outputs = moved.shape[1]
        if names is None:
            names = [str(i) for i in range(outputs)]
        if len(names) < outputs:
            raise InterbasisError(f"expected a name for each of {outputs} outputs, received {len(names)}")
        if layer.eigenvalues is not None:
            moved *= layer.eigenvalues[some].clamp_min(0).sqrt()[:, None]
        silent = moved.abs().amax(1) <= 1e-12 * (norm + 1)  # rounding of what is no direct path
        up, down = _most(moved, top, names), _most(-moved, top, names)
        squares = moved.amax(1).square() + moved.amin(1).square()
        shares = squares / moved.square().sum(1).clamp_min(torch.finfo(moved.dtype).tiny)
        effects += [
            None
            if quiet
            else Effects(
                up=tuple(rise),
                down=tuple(Push(name=push.name, value=-push.value) for push in fall),
                share=round(share, 6),
            )
            for quiet, rise, fall, share in zip(silent.tolist(), up, down, shares.tolist(), strict=True)
        ]
    return effects


def _blocks(network: Network, layer: LayerBasis, features: list[int]) -> Iterator[list[int]]:
    """Features in runs that are handled at once: all of them, unless there may be as many as outputs."""
    outputs = [*network.sections, *network.tail][-1].target.width
    size = max(1, BUDGET // outputs if layer.identity else len(features))
    for start in range(0, len(features), size):
        yield features[start : start + size]


def _units(layer: LayerBasis, features: Sequence[int]) -> Tensor:  # [features, width]
    """C⁺[:, j]: what one unit of each of these features is in the layer's coordinates."""
    if not layer.identity:
        return layer.inverse.double()[:, list(features)].T
    units = torch.zeros(len(features), layer.width, dtype=torch.float64)
    units[torch.arange(len(features)), list(features)] = 1
    return units


def _mean(layer: LayerBasis) -> Tensor:  # [width]
    """Where the path is looked at: the layer's mean, or what its features are centred about."""
    if layer.mean is not None:
        return layer.mean.double()
    return _units(layer, [0])[0] if layer.constant else torch.zeros(layer.width, dtype=torch.float64)


def _most(values: Tensor, top: int, names: Sequence[str]) -> list[list[Push]]:  # [features, outputs]
    """The largest values of each row in descending order, the first of equal ones first."""
    left, places = values.clone(), []
    for _ in range(min(top, values.shape[1])):
        places.append(left.argmax(1, keepdim=True))
        left.scatter_(1, places[-1], -torch.inf)
    indices = torch.cat(places, dim=1)
    rows = zip(indices.tolist(), values.gather(1, indices).tolist(), strict=True)
    return [[Push(name=names[i], value=v) for i, v in zip(*row, strict=True)] for row in rows]
