"""Effects of features: outputs that they push directly and on average, and features that nothing uses.

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

Mean effects are those through all blocks above the feature, averaged over the data. The outputs are
y = cap(W h). The last linear map W of the model reads h, behind all blocks, even if the run's node layers end
before it; a cap, where there is one, bends each output by itself. At the token's own position, averaged over
the positions t of all samples alike, feature j moves output i by

    E[∂y_ti/∂f̂_tj] = E[cap'((W h_t)_i) · (W φ_t)_i · g_tj],      g_tj = Σ_s φ_s · ∂h_s/∂f̂_tj,

with random signs φ per position and coordinate, since E[φ_si φ_ti'] is 1 for the same entry and 0
otherwise. One backward pass per set of signs gives g at all layers and positions at once. The estimate is
unbiased; its standard error is taken from the spread over samples (or, of many samples, groups of them).

Without a cap, E[φ_t g_tj] is summed and W comes last: nothing of vocabulary size is held per sample. With
one, each token has slopes of its own, so h_t, φ_t and g_tj are kept, and outputs come from them at the end.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.features.activations import FeatureReader
from interbasis.analysis.features.dataset_examples import largest
from interbasis.analysis.features.records import Effects, Idle, MeanEffects, MeanPush, Push
from interbasis.base.errors import InterbasisError
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.cores import Linear
from interbasis.network.network import LayerMap, Network, NodeLayer, Section
from interbasis.numerics.random_signs import random_signs

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
    f = torch.zeros(layer.width) if layer.mean is None else layer.mean
    if layer.mean is None and layer.constant:
        f = layer.directions([0])[:, 0]
    f = f.double()
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
        contrasts = _contrast(moved.abs().amax(1), moved.square().mean(1), outputs)
        up, down = largest(moved.T, top).T, largest(-moved.T, top).T  # [features, top]
        effects += [
            None
            if quiet
            else Effects(
                up=_pushes(row, rise, names),
                down=_pushes(row, fall, names),
                share=round(share, 6),
                contrast=round(contrast, 4),
            )
            for quiet, row, rise, fall, share, contrast in zip(
                silent.tolist(), moved, up, down, shares.tolist(), contrasts.tolist(), strict=True
            )
        ]
    return effects


def _contrast(largest: Tensor, mean_square: Tensor, outputs: int) -> Tensor:
    """A largest effect against √(2 ln outputs) root mean squares of all."""
    expected = (2 * math.log(max(outputs, 2)) * mean_square).sqrt()
    return largest / expected.clamp_min(torch.finfo(expected.dtype).tiny)


def _pushes(moved: Tensor, outputs: Tensor, names: Sequence[str]) -> tuple[Push, ...]:
    return tuple(Push(name=names[i], value=moved[i].item()) for i in outputs.tolist())


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
    records = []
    for k, layer in list(enumerate(graph.layers))[1:-1]:
        incoming, outgoing = thresholds[k - 1], thresholds[k]
        reached, used = (inner[k - 1] > incoming).any(1)[:top], (inner[k] > outgoing).any(0)[:top]
        features = tuple(((reached & ~used).nonzero().flatten() + layer.first_feature).tolist())
        places = {"layer": layer.name, "considered": len(reached), "features": features}
        records.append(Idle(**places, incoming=incoming, outgoing=outgoing))
    return records


MAX_GROUPS = 64
"""Groups of samples whose spread gives the standard errors, at most."""
CLEAR_ERRORS = 4
"""Standard errors from which on the largest mean effect of thousands is more than the luckiest estimate."""
MAX_ENTRIES = 2**25
"""Outputs times features, and outputs times tokens, that are held at once."""


@dataclass(frozen=True, eq=False)
class FinalLayer:
    """The layer h at all tokens, by groups of samples, and the end of the network after it: y = cap(W h)."""

    weight: Tensor | None  # W [outputs, width of h]; None is the identity
    caps: tuple[LayerMap, ...]
    output: NodeLayer
    """The layer y."""
    sizes: Tensor  # [groups], numbers of tokens
    h: Tensor  # [tokens, width of h], empty without a cap
    signs: Tensor  # [tokens, width of h], empty without a cap

    def effects(self, groups: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, standard error) [features, outputs], from what a `MeanJacobian` holds."""
        count, sizes = len(self.sizes), self.sizes / self.sizes.mean()
        total, squares, by_size = (torch.zeros(()).double() for _ in range(3))
        for size, moved in zip(sizes, self._moved(groups, gradients), strict=True):
            total, squares, by_size = total + moved, squares + moved.square(), by_size + size * moved
        mean = total / count
        # the spread about size · mean: a group with more tokens is expected to add more
        scatter = (squares - 2 * mean * by_size + mean.square() * sizes.square().sum()).clamp_min(0)
        return mean, (scatter / (count * (count - 1))).sqrt() if count > 1 else mean * torch.nan

    def _moved(self, groups: Tensor, gradients: Tensor) -> Iterator[Tensor]:  # [features, outputs] each
        """Contribution of every group to the mean over groups."""
        if not self.caps:
            yield from (self._read_out(group, group) for group in groups)
            return
        for rows in torch.arange(len(self.h)).split(self.sizes.long().tolist()):
            total = torch.zeros(()).double()
            for part in rows.split(max(1, MAX_ENTRIES // self.output.width)):
                moved = self._read_out(self.signs[part].double(), self.h[part].double())  # [tokens, outputs]
                total = total + gradients[part].double().T @ moved
            yield total / self.sizes.mean()

    def _read_out(self, changes: Tensor, h: Tensor) -> Tensor:  # [n, width] twice -> [n, outputs]
        """Changes of y by those of h, without the mean over outputs, to which a softmax is blind."""
        if self.weight is not None:
            changes = changes @ self.weight.T
            h = h @ self.weight.T if self.caps else h
        for cap in self.caps:
            h, changes = cap.direct(h, changes)
        changes = changes[:, self.output.first_coordinate :]
        return changes - changes.mean(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class MeanJacobian:
    """E[∂h/∂f̂_j] at the token's own position, for some features of one layer, as a mean over groups."""

    layer: LayerBasis
    features: tuple[int, ...]
    groups: Tensor  # [groups, features, width of h]
    """Sums over the tokens of each group, divided by the mean number of tokens of a group."""
    gradients: Tensor  # g [tokens, features], empty without a cap
    final: FinalLayer

    def effects(self) -> tuple[Tensor, Tensor]:
        """(mean, standard error) [features, outputs] of what one unit of each feature adds to the outputs.

        Only differences between outputs matter to a softmax: the mean over outputs is taken away.
        """
        return self.final.effects(self.groups, self.gradients)


def mean_jacobians(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data | Batches,
    features: Sequence[Sequence[int]],
    sources: int = 1,
    seed: int = 0,
) -> list[MeanJacobian]:
    """Estimate the mean Jacobian from every layer but the last to the layer that outputs are read from.

    Args:
        network: The network.
        layers: A basis for each of its node layers.
        data: Inputs; all positions count alike.
        features: Indices of features, for every layer but the last.
        sources: Sets of signs per sample, a backward pass each.
        seed: Seed of the signs.

    Returns:
        One entry per layer but the last, in order.
    """
    batches = data if isinstance(data, Batches) else Batches(data)
    steps, caps, weight = _split_tail(network)
    count, width = min(MAX_GROUPS, len(batches)), (steps[-1].target if steps else network.nodes[-1]).width
    sums = [torch.zeros(count, len(chosen), width, dtype=torch.float64) for chosen in features]
    sizes = torch.zeros(count, dtype=torch.float64)
    tokens: list[list[Tensor]] = []  # h, signs and g of every layer, of each sample, where there is a cap
    columns = [layer.directions(chosen) for layer, chosen in zip(layers, features, strict=False)]
    for first, inputs in batches.chunks(1):
        group = (first - batches.offset) * count // len(batches)
        with torch.enable_grad():  # h can be followed back to every node layer
            activations = [network.prefix(inputs.to(network.device)).detach().requires_grad_()]
            for step in (*network.sections, *steps):
                activations.append(step(activations[-1]))
        h, activations = activations[-1], activations[: len(network.sections)]
        most = None  # entries of h in the longest sample, where samples differ in length
        if batches.lengths is not None:
            most = (int(batches.lengths.max()) - inputs.shape[1] + h.shape[1]) * h.shape[2]
        for source in range(sources):
            # signs of a sample that no other sample shares, [1, S, width]
            signs = random_signs(("mean effects", seed, source), first, 1, h[0].numel(), most)
            signs = signs.view_as(h).to(h)
            gradients = torch.autograd.grad(
                h, activations, signs, retain_graph=source + 1 < sources, materialize_grads=True
            )
            along = [
                gradient[0, -h.shape[1] :] @ directions.to(gradient)  # g [S, features]
                for gradient, directions in zip(gradients, columns, strict=True)
            ]
            for total, g in zip(sums, along, strict=True):
                total[group] += (g.T @ signs[0]).cpu().double()
            if caps:
                tokens.append([part.detach().cpu() for part in (h[0], signs[0], *along)])
        sizes[group] += sources * h.shape[1]
    empty = [torch.zeros(0, size) for size in (width, width, *map(len, features))]
    h, signs, *by_layer = [torch.cat(parts) for parts in zip(*tokens, strict=True)] or empty
    weight = None if weight is None else weight.cpu().double()
    final = FinalLayer(weight, caps, network.output_layer, sizes, h, signs)
    return [
        MeanJacobian(layer, tuple(chosen), total / sizes.mean(), g, final)
        for layer, chosen, total, g in zip(layers, features, sums, by_layer, strict=False)
    ]


def mean_effect_records(
    jacobians: Sequence[MeanJacobian], names: Sequence[str] | None, top: int = 5
) -> dict[str, list[MeanEffects]]:
    """Records by layer of the outputs that each feature moves most, for one standard deviation of it.

    Features of all layers are computed together, in blocks: the slopes of a cap are the same for all.
    """
    records: dict[str, list[MeanEffects]] = {jacobian.layer.name: [] for jacobian in jacobians}
    final = jacobians[0].final
    places = [(jacobian.layer, j) for jacobian in jacobians for j in jacobian.features]
    groups = torch.cat([jacobian.groups for jacobian in jacobians], 1)
    gradients = torch.cat([jacobian.gradients for jacobian in jacobians], 1)
    for block in torch.arange(len(places)).split(max(1, MAX_ENTRIES // final.output.width)):
        effects = zip(*final.effects(groups[:, block], gradients[:, block]), strict=True)
        for k, (mean, error) in zip(block.tolist(), effects, strict=True):
            layer, unit = places[k][0], places[k][0].deviation(places[k][1])
            records[layer.name].append(_most_moved(unit * mean, unit * error, names, top))
    return records


def _most_moved(mean: Tensor, error: Tensor, names: Sequence[str] | None, top: int) -> MeanEffects:
    order = mean.argsort(descending=True).tolist()
    pushes = [
        MeanPush(name=str(k) if names is None else names[k], value=mean[k].item(), error=error[k].item())
        for k in (*order[:top], *order[::-1][:top])
    ]
    half = len(pushes) // 2
    clear = (mean.abs() > 2 * error)[[order[0], order[-1]]].all()
    squares = mean.square() - error.square()  # unbiased for the square of what is estimated
    share = (squares[order[0]] + squares[order[-1]]) / squares.sum() if clear else 0.0
    share = min(max(float(share), 0.0), 1.0) if squares.sum() > 0 else 0.0
    largest = mean.abs().argmax()
    contrast = _contrast(mean[largest].abs(), mean.square().mean(), len(mean)).item()
    known = bool(mean[largest].abs() > CLEAR_ERRORS * error[largest])
    return MeanEffects(
        up=tuple(pushes[:half]),
        down=tuple(pushes[half:]),
        share=share,
        contrast=round(contrast, 4) if known else 0.0,
    )


def _split_tail(network: Network) -> tuple[tuple[LayerMap, ...], tuple[LayerMap, ...], Tensor | None]:
    """Steps of the tail between the last node layer and h, the caps at its end, and W between them."""
    end = len(network.tail)
    while end and network.tail[end - 1].one_by_one:
        end -= 1
    steps, caps = network.tail[:end], network.tail[end:]
    match steps[-1:]:
        case (Section(core=Linear(), last_only=False) as last,) if last.reads_per_position:
            return steps[:-1], caps, last.skip  # P f at each position
    return steps, caps, None
