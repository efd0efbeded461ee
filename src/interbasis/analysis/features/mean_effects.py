"""Mean effects: which outputs a feature moves through all blocks above it, averaged over the data.

The outputs are y = cap(W h). The last linear map W of the model reads h, behind all blocks, even if the run's
node layers end before it; a cap, where there is one, bends each output by itself. At the token's own
position, averaged over the positions t of all samples alike, feature j moves output i by

    E[∂y_ti/∂f̂_tj] = E[cap'((W h_t)_i) · (W φ_t)_i · g_tj],      g_tj = Σ_s φ_s · ∂h_s/∂f̂_tj,

with random signs φ per position and coordinate, since E[φ_si φ_ti'] is 1 for the same entry and 0
otherwise. One backward pass per set of signs gives g at all layers and positions at once. The estimate is
unbiased; its standard error is taken from the spread over samples (or, of many samples, groups of them).

Without a cap, E[φ_t g_tj] is summed and W comes last: nothing of vocabulary size is held per sample. With
one, each token has slopes of its own, so h_t, φ_t and g_tj are kept, and outputs come from them at the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.features.records import MeanEffects, MeanPush
from interbasis.base.errors import InterbasisError
from interbasis.data.batches import Batches, Data
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.cores import Linear
from interbasis.network.network import LayerMap, Network, Section
from interbasis.numerics.random_signs import random_signs

MAX_GROUPS = 64
"""Groups of samples whose spread gives the standard errors, at most."""
MAX_ENTRIES = 2**25
"""Outputs times features, and outputs times tokens, that are held at once."""


@dataclass(frozen=True, eq=False)
class Readout:
    """The end of a network, from the layer h on: y = cap(W h)."""

    weight: Tensor | None  # W [outputs, width of h]; None is the identity
    caps: tuple[LayerMap, ...]
    first: int
    """The first coordinate of y after the constant."""

    def moved(self, changes: Tensor, h: Tensor) -> Tensor:  # [n, width] twice -> [n, outputs]
        """Derivative of y by h, without the mean over outputs, to which a softmax is blind."""
        if self.weight is not None:
            changes = changes @ self.weight.T
            h = h @ self.weight.T if self.caps else h
        for cap in self.caps:
            h, changes = cap.direct(h, changes)
        changes = changes[:, self.first :]
        return changes - changes.mean(1, keepdim=True)


def split_readout(network: Network) -> tuple[tuple[LayerMap, ...], Readout]:
    """Split the tail into the steps between the last node layer and h, and the readout from h on."""
    end = len(network.tail)
    while end and network.tail[end - 1].one_by_one:
        end -= 1
    steps, caps, weight = network.tail[:end], network.tail[end:], None
    match steps[-1:]:
        case (Section(core=Linear(), last_only=False) as last,) if last.reads_per_position:
            steps, weight = steps[:-1], last.skip  # P f at each position
    return steps, Readout(weight, caps, network.output_layer.first_coordinate)


@dataclass(frozen=True, eq=False)
class FinalActivations:
    """The layer h at all tokens, by groups of samples, with the readout that follows it."""

    readout: Readout
    sizes: Tensor  # [groups], numbers of tokens
    h: Tensor  # [tokens, width of h], empty without a cap
    signs: Tensor  # [tokens, width of h], empty without a cap
    outputs: int

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
        weight = self.readout.weight
        readout = replace(self.readout, weight=None if weight is None else weight.cpu().double())
        if not readout.caps:
            yield from (readout.moved(group, group) for group in groups)
            return
        for rows in torch.arange(len(self.h)).split(self.sizes.long().tolist()):
            total = torch.zeros(()).double()
            for part in rows.split(max(1, MAX_ENTRIES // self.outputs)):
                moved = readout.moved(self.signs[part].double(), self.h[part].double())  # [tokens, outputs]
                total = total + gradients[part].double().T @ moved
            yield total / self.sizes.mean()


@dataclass(frozen=True, eq=False)
class MeanJacobian:
    """E[∂h/∂f̂_j] at the token's own position, for some features of one layer, as a mean over groups."""

    layer: LayerBasis
    features: tuple[int, ...]
    groups: Tensor  # [groups, features, width of h]
    """Sums over the tokens of each group, divided by the mean number of tokens of a group."""
    gradients: Tensor  # g [tokens, features], empty without a cap
    final: FinalActivations

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

    Raises:
        InterbasisError: There is not a list of features for every layer but the last.
    """
    if len(layers) != len(network.nodes) or len(features) != len(layers) - 1:
        raise InterbasisError(
            f"expected a basis for each of {len(network.nodes)} node layers and features for all but the "
            f"last, received {len(layers)} and {len(features)}"
        )
    batches = data if isinstance(data, Batches) else Batches(data)
    steps, readout = split_readout(network)
    count, width = min(MAX_GROUPS, len(batches)), (steps[-1].target if steps else network.nodes[-1]).width
    sums = [torch.zeros(count, len(chosen), width, dtype=torch.float64) for chosen in features]
    sizes = torch.zeros(count, dtype=torch.float64)
    tokens: list[list[Tensor]] = []  # h, signs and g of every layer, of each sample, where there is a cap
    columns = [layer.directions(chosen) for layer, chosen in zip(layers, features, strict=False)]
    for first, inputs in batches.chunks(1):
        group = (first - batches.offset) * count // len(batches)
        with torch.enable_grad():
            activations, h = _traced_activations(network, steps, inputs.to(network.device))
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
            if readout.caps:
                tokens.append([part.detach().cpu() for part in (h[0], signs[0], *along)])
        sizes[group] += sources * h.shape[1]
    rows = [torch.cat(parts) for parts in zip(*tokens, strict=True)] or [torch.zeros(0)] * (2 + len(features))
    final = FinalActivations(readout, sizes, rows[0], rows[1], network.output_layer.width)
    return [
        MeanJacobian(layer, tuple(chosen), total / sizes.mean(), g, final)
        for layer, chosen, total, g in zip(layers, features, sums, rows[2:], strict=False)
    ]


def mean_effect_records(
    jacobians: Sequence[MeanJacobian], names: Sequence[str] | None, top: int = 5
) -> dict[str, list[MeanEffects]]:
    """Records by layer of the outputs that each feature moves most, for one standard deviation of it."""
    records = {}
    for block in _in_blocks(jacobians):
        counts = [len(jacobian.features) for jacobian in block]
        means, errors = block[0].final.effects(
            torch.cat([jacobian.groups for jacobian in block], 1),
            torch.cat([jacobian.gradients for jacobian in block], -1),
        )
        for jacobian, mean, error in zip(block, means.split(counts), errors.split(counts), strict=True):
            units = map(jacobian.layer.deviation, jacobian.features)
            records[jacobian.layer.name] = [
                _most_moved(unit * mean[k], unit * error[k], names, top) for k, unit in enumerate(units)
            ]
    return records


def _in_blocks(jacobians: Sequence[MeanJacobian]) -> Iterator[list[MeanJacobian]]:
    """Split the layers into blocks computed together: the slopes of a cap are the same for all of them."""
    block: list[MeanJacobian] = []
    rows = 0
    for jacobian in jacobians:
        rows += len(jacobian.features)
        if block and rows * jacobian.final.outputs > MAX_ENTRIES:
            yield block
            block, rows = [], len(jacobian.features)
        block.append(jacobian)
    yield block


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
    return MeanEffects(up=tuple(pushes[:half]), down=tuple(pushes[half:]), share=share)


def _traced_activations(
    network: Network, steps: Sequence[LayerMap], inputs: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Activations of every node layer but the last, and h, which autograd can follow back to each."""
    f = network.prefix(inputs).detach().requires_grad_()
    activations = [f]
    for section in network.sections:
        f = section(f)
        activations.append(f)
    for step in steps:
        f = step(f)
    return activations[:-1], f
