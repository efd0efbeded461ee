"""Mean effects: which outputs a feature moves through all blocks above it, averaged over the data.

The mean Jacobian of the last node layer h in feature j of an earlier one, at the token's own position,

    E_t[∂h_t/∂f̂_jt] = E[φ_t g_jt],      g_jt = Σ_s φ_s · ∂h_s/∂f̂_jt,

with random signs φ per position and coordinate, since E[φ_si φ_ti'] is 1 for the same entry and 0
otherwise. One backward pass per set of signs gives g at all layers and positions at once. The estimate is
unbiased; its standard error is taken from the spread over samples (or, of many samples, groups of them).
What follows h is linear and comes last, nothing of vocabulary size is held per sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.data.batches import Batches, Data
from interbasis.features.records import MeanEffects, MeanPush
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network
from interbasis.numerics.random_signs import random_signs
from interbasis.runtime.errors import InterbasisError

MAX_GROUPS = 64
"""Groups of samples whose spread gives the standard errors, at most."""


@dataclass(frozen=True, eq=False)
class MeanJacobian:
    """E[∂h/∂f̂_j] at the own position, for some features of one layer, per group of samples."""

    layer: LayerBasis
    features: tuple[int, ...]
    groups: Tensor  # [groups, features, width of the last layer]

    def effects(self, network: Network, last: LayerBasis) -> tuple[Tensor, Tensor]:
        """(mean, standard error) [features, outputs] of what one unit of each feature adds to the outputs.

        Only differences between outputs matter to a softmax: the mean over outputs is taken away.
        """
        f, moved = _mean_of(last), self.groups
        for step in network.tail:
            f, moved = step.direct(f, moved)
        moved = moved[..., network.output_layer.first_coordinate :]
        moved = moved - moved.mean(-1, keepdim=True)
        error = moved.std(0) / len(moved) ** 0.5 if len(moved) > 1 else torch.full_like(moved[0], torch.nan)
        return moved.mean(0), error


def mean_jacobians(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data | Batches,
    features: Sequence[Sequence[int]],
    sources: int = 1,
    seed: int = 0,
) -> list[MeanJacobian]:
    """The mean Jacobian from every layer but the last to the last, by random signs.

    Args:
        network: The network.
        layers: A basis for each of its node layers.
        data: Inputs; all positions count alike.
        features: Which features, for every layer but the last.
        sources: Sets of signs per sample, a backward pass each.
        seed: Of the signs.

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
    groups = min(MAX_GROUPS, len(batches))
    width = network.nodes[-1].width
    sums = [torch.zeros(groups, len(some), width, dtype=torch.float64) for some in features]
    counts = torch.zeros(groups, dtype=torch.float64)
    columns = [_columns(layer, some) for layer, some in zip(layers, features, strict=False)]
    for first, inputs in batches.chunks(1):
        group = first * groups // len(batches)
        with torch.enable_grad():
            activations = _with_gradients(network, inputs.to(network.device))
        end = activations[-1]
        for source in range(sources):
            key = ("mean effects", seed, source)
            signs = random_signs(key, first, 1, end[0].numel()).view_as(end).to(end)
            gradients = torch.autograd.grad(
                end, activations[:-1], signs, retain_graph=source + 1 < sources, materialize_grads=True
            )
            for total, gradient, directions in zip(sums, gradients, columns, strict=True):
                own = gradient[0, -end.shape[1] :] @ directions.to(gradient)  # [S, features]
                total[group] += (own.T @ signs[0]).cpu().double()
        counts[group] += sources * end.shape[1]
    means = [total / counts.clamp_min(1)[:, None, None] for total in sums]
    return [
        MeanJacobian(layer, tuple(some), mean[counts > 0])
        for layer, some, mean in zip(layers, features, means, strict=False)
    ]


def records_of(
    jacobian: MeanJacobian, network: Network, last: LayerBasis, names: Sequence[str] | None, top: int = 5
) -> list[MeanEffects]:
    """The outputs that each feature moves most, for one standard deviation of it."""
    means, errors = jacobian.effects(network, last)
    return [
        _most_moved(layer_unit * mean, layer_unit * error, names, top)
        for layer_unit, mean, error in zip(
            map(jacobian.layer.deviation, jacobian.features), means, errors, strict=True
        )
    ]


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


def _with_gradients(network: Network, inputs: Tensor) -> list[Tensor]:
    """All activations, each of which the last depends on."""
    f = network.prefix(inputs).detach().requires_grad_()
    activations = [f]
    for section in network.sections:
        f = section(f)
        activations.append(f)
    return activations


def _columns(layer: LayerBasis, features: Sequence[int]) -> Tensor:  # [width, features]
    if not layer.identity:
        return layer.inverse[:, list(features)]
    return torch.nn.functional.one_hot(torch.tensor(list(features)), layer.width).T.double()


def _mean_of(layer: LayerBasis) -> Tensor:  # [width]
    if layer.mean is not None:
        return layer.mean.double()
    constant = torch.zeros(layer.width, dtype=torch.float64)
    if layer.constant and not layer.identity:
        return layer.inverse[:, 0].double()
    constant[0] = float(layer.constant)
    return constant
