"""Effects of features: the outputs that they push up and down directly, and features that nothing uses.

The direct path from a node layer to the output is the product of the skips, W = P_last ⋯ P_l, so feature j
moves the outputs by W C⁺[:, j] for each unit of it. For the last layers that is all there is (the
unembedding is linear); before them it is the residual stream's own contribution. Where nothing passes
directly (an MLP's hidden layers), there is no direct effect and nothing is said. Only differences between
outputs matter to a softmax, so the mean over outputs is taken away.

Where a model caps its logits, y = c · tanh(z / c) as Gemma 2 does, the path f ↦ y(W f) bends at its end, and
the effect is its derivative at the layer's mean f̄: output i moves by (1 − tanh²((W f̄)_i / c)) (W C⁺[:, j])_i.

A feature is *idle* if an edge comes in and none goes out. An edge counts if Ê exceeds a threshold of its
section: a fraction of the section's largest edge (the constant's left out), or an absolute value such as the
smallest edge that an ablation still needs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from interbasis.analysis.features.activations import FeatureReader
from interbasis.analysis.features.records import Effects, Idle, Push
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network

MAX_BLOCK_ENTRIES = 2**20
"""Outputs times features that are held at once: few enough to stay in the cache."""
MIN_EDGE_FRACTION = 0.03
"""Such an edge has a thousandth of the largest one's Ê², which is what line widths show: it cannot be seen.
Counts hang on this choice; give it with them."""


def direct_path(
    network: Network, layer: LayerBasis, features: Sequence[int] | None = None
) -> Tensor:  # [features, outputs]
    """Change of each output per unit of each feature, in float64, less the mean over outputs.

    A cap of the outputs counts with its slope at the layer's mean, or at the point that features are centred
    about where the mean is not known.
    """
    moved = layer.directions(range(layer.features) if features is None else features).double().T
    if layer.mean is not None:
        f = layer.mean.double()
    elif layer.constant:
        f = layer.directions([0])[:, 0].double()
    else:
        f = torch.zeros(layer.width, dtype=torch.float64)
    for step in (*network.sections[FeatureReader(network, layer).index :], *network.tail):
        f, moved = step.direct(f, moved)
    moved = moved[:, network.output_layer.first_coordinate :]
    return moved - moved.mean(1, keepdim=True)


def direct_effects(
    network: Network,
    layer: LayerBasis,
    names: Sequence[str] | None = None,
    top: int = 5,
    features: Sequence[int] | None = None,
) -> list[Effects | None]:
    """Return the outputs that each feature pushes up and down along the path that no core bends.

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
    outputs = network.output_layer.width - network.output_layer.first_coordinate
    names = [str(i) for i in range(outputs)] if names is None else names
    if len(names) < outputs:
        raise InterbasisError(f"expected a name for each of {outputs} outputs, received {len(names)}")
    chosen = list(range(layer.features) if features is None else features)
    # there may be as many features as outputs where they are the outputs
    size = MAX_BLOCK_ENTRIES // network.output_layer.width if layer.identity else len(chosen)
    norm = layer.width**0.5 if layer.identity else torch.linalg.matrix_norm(layer.inverse.double()).item()
    effects: list[Effects | None] = []
    for start in range(0, len(chosen), max(1, size)):
        block = chosen[start : start + max(1, size)]
        moved = direct_path(network, layer, block)
        if layer.eigenvalues is not None:
            moved *= layer.eigenvalues[block].clamp_min(0).sqrt()[:, None]
        silent = moved.abs().amax(1) <= 1e-12 * (norm + 1)  # rounding where there is no direct path
        squares = moved.amax(1).square() + moved.amin(1).square()
        shares = squares / moved.square().sum(1).clamp_min(torch.finfo(moved.dtype).tiny)
        up, down = _largest(moved, top), _largest(-moved, top)
        effects += [
            None
            if quiet
            else Effects(
                up=tuple(Push(name=names[i], value=value) for i, value in rise),
                down=tuple(Push(name=names[i], value=-value) for i, value in fall),
                share=round(share, 6),
            )
            for quiet, rise, fall, share in zip(silent.tolist(), up, down, shares.tolist(), strict=True)
        ]
    return effects


def _largest(values: Tensor, top: int) -> list[list[tuple[int, float]]]:  # [features, outputs]
    """(output, value) of the largest in each row in descending order, the first of equal ones first."""
    left, places = values.clone(), []
    for _ in range(min(top, values.shape[1])):
        places.append(left.argmax(1, keepdim=True))
        left.scatter_(1, places[-1], -torch.inf)
    indices = torch.cat(places, dim=1)
    rows = zip(indices.tolist(), values.gather(1, indices).tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def idle(
    graph: InteractionGraph,
    top: int | None = 25,
    fraction: float = MIN_EDGE_FRACTION,
    thresholds: Sequence[float] | None = None,
) -> list[Idle]:
    """Find the idle features of every layer that has edges on both sides.

    Args:
        graph: A graph with edges.
        top: Features of each layer that are considered; None is all.
        fraction: An edge counts from this fraction of its section's largest on.
        thresholds: An absolute Ê per section instead.

    Returns:
        One record per inner layer.

    Raises:
        InterbasisError: The graph has no edges, or thresholds do not match its sections.
    """
    if not graph.edges:
        raise InterbasisError("this run was built without edges; build it again with an edge method")
    if thresholds is not None and len(thresholds) != len(graph.edges):
        raise InterbasisError(
            f"expected a threshold for each of {len(graph.edges)} sections, received {len(thresholds)}"
        )
    inner = [graph.inner_edges(k) for k in range(len(graph.edges))]
    if thresholds is None:
        thresholds = [fraction * (edges.max().item() if edges.numel() else 0.0) for edges in inner]
    layers = []
    for k in range(1, len(graph.layers) - 1):
        layer, shift = graph.layers[k], graph.layers[k].first_feature
        reached = (inner[k - 1] > thresholds[k - 1]).any(1)[:top]
        used = (inner[k] > thresholds[k]).any(0)[:top]
        features = (reached & ~used).nonzero().flatten() + shift
        layers.append(
            Idle(
                layer=layer.name,
                considered=len(reached),
                features=tuple(features.tolist()),
                incoming=thresholds[k - 1],
                outgoing=thresholds[k],
            )
        )
    return layers
