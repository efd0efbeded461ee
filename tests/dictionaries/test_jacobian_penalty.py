"""The penalty on Jacobians between dictionaries, against autograd."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from cases import Case, mlp, modular_addition, seeded
from interbasis import InterbasisError
from interbasis.dictionaries.jacobian_penalty import PointwiseMap, jacobian_penalty
from interbasis.dictionaries.settings import TrainSettings
from interbasis.dictionaries.sparse_codes import SparseCode
from interbasis.dictionaries.streams import StreamPlace
from interbasis.dictionaries.training import fit, fit_pair

TOKENS, WIDTH, HIDDEN, OUT, K, K2 = 7, 5, 9, 6, 12, 11


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU(), nn.Tanh(), nn.SiLU()])
def test_penalty_and_gradients_are_those_of_autograd(activation: nn.Module) -> None:
    g = seeded(4)
    section = PointwiseMap(
        normal(g, OUT, WIDTH), normal(g, HIDDEN, WIDTH), normal(g, HIDDEN), normal(g, OUT, HIDDEN), activation
    )
    D, b, E = normal(g, K, WIDTH), normal(g, WIDTH), normal(g, K2, OUT)
    z = SparseCode.largest_per_token(normal(g, TOKENS, K), 3)
    target = SparseCode.largest_per_token(normal(g, TOKENS, K2) - 0.5, 4)
    assert (target.values == 0).any()  # some of the largest are not active

    def penalty(D: Tensor, b: Tensor, E: Tensor, values: Any) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for t in range(TOKENS):
            at, to = z.tokens == t, target.tokens == t
            sources, targets = z.features[at], target.features[to]

            def preactivations(
                entries: Tensor, sources: Tensor = sources, targets: Tensor = targets
            ) -> Tensor:
                y = entries @ D[sources] + b
                hidden = activation(section.read @ y + section.bias)
                return E[targets] @ (section.skip @ y + section.write @ hidden)

            J = jacrev(preactivations)(values[at])
            live = (target.values[to] > 0)[:, None] & (z.values[at] > 0)
            total = total + (J.abs() * live).sum() / J.numel()
        return total / TOKENS

    tensors = [tensor.clone().requires_grad_() for tensor in (D, b, E, z.values)]
    expected = penalty(*tensors)
    dD, db, dE, dz = torch.autograd.grad(expected, tensors, materialize_grads=True)
    found = jacobian_penalty(section, z, D, b, target, E)
    assert abs(found.value - expected) <= 1e-10 * expected
    for mine, theirs in ((found.decoder, dD), (found.bias, db), (found.encoder, dE), (found.values, dz)):
        assert (mine - theirs).abs().max() <= 1e-10 * max(theirs.abs().max(), expected.detach())


def test_the_map_between_streams_is_the_section() -> None:
    case = mlp(nn.GELU(), widths=(6, 9, 7, 4))
    network = case.network
    source, target = (StreamPlace.from_network(network, layer) for layer in network.layers[:2])
    section = PointwiseMap.from_network(network, source, target)
    f = network.activations_at(0, case.inputs)
    x = f[..., source.columns]
    following = network.sections[0](f)[..., target.columns]
    mine = x @ section.skip.T + section.activation(x @ section.read.T + section.bias) @ section.write.T
    torch.testing.assert_close(mine - mine[:1], following - following[:1])


def test_coordinates_do_not_change_the_jacobian() -> None:
    g = seeded(5)
    section = PointwiseMap(
        normal(g, OUT, WIDTH), normal(g, HIDDEN, WIDTH), normal(g, HIDDEN), normal(g, OUT, HIDDEN), nn.GELU()
    )
    back, offset, forward = normal(g, WIDTH, WIDTH), normal(g, WIDTH), normal(g, OUT, OUT)
    D, b, E = normal(g, K, WIDTH), normal(g, WIDTH), normal(g, K2, OUT)
    z = SparseCode.largest_per_token(normal(g, TOKENS, K), 3)
    target = SparseCode.largest_per_token(normal(g, TOKENS, K2), 4)
    there = jacobian_penalty(section.in_coordinates(back, offset, forward), z, D, b, target, E)
    here = jacobian_penalty(section, z, D @ back.T, back @ b + offset, target, E @ forward)
    torch.testing.assert_close(there.value, here.value)


def test_attention_between_the_layers_is_refused() -> None:
    network = modular_addition().network
    places = [StreamPlace.from_network(network, layer) for layer in ("attn_in.0", "mlp_in.0")]
    with pytest.raises(InterbasisError, match="an MLP between neighbouring"):
        PointwiseMap.from_network(network, *places)


def activations(case: Case, places: list[StreamPlace]) -> tuple[Tensor, Tensor]:
    first, second = (
        case.network.activations_at(place.index, case.inputs)[:, 0, place.columns] for place in places
    )
    return first.float(), second.float()


def test_training_with_the_penalty_has_sparser_jacobians() -> None:
    case = mlp(nn.GELU(), widths=(8, 16, 8, 4), samples=3000)
    places = [StreamPlace.from_network(case.network, layer) for layer in case.network.layers[:2]]
    x = activations(case, places)
    metrics = (torch.eye(x[0].shape[1]).double(), torch.eye(x[1].shape[1]).double())
    section = PointwiseMap.from_network(case.network, *places)
    settings = TrainSettings(features=32, active=4, steps=250, batch=256, rate=5e-3)
    ended = {}
    for weight in (0.0, 2.0):
        fit_pair(
            x, metrics, section, settings, weight,
            progress=lambda *end, weight=weight: ended.update({weight: end}),
        )  # fmt: skip
    assert ended[2.0][2] < 0.5 * ended[0.0][2], ended
    losses = {weight: sum(loss for loss, _ in end[1]) for weight, end in ended.items()}
    assert losses[2.0] < 2.5 * losses[0.0], ended


def test_a_pair_without_the_penalty_is_two_dictionaries() -> None:
    case = mlp(nn.GELU(), widths=(8, 16, 8, 4), samples=500)
    places = [StreamPlace.from_network(case.network, layer) for layer in case.network.layers[:2]]
    x = activations(case, places)
    metrics = (torch.eye(x[0].shape[1]).double(), torch.eye(x[1].shape[1]).double())
    section = PointwiseMap.from_network(case.network, *places)
    settings = TrainSettings(features=24, active=3, steps=10, batch=64)
    pair = fit_pair(x, metrics, section, settings, 0.0)
    for rows, metric, dictionary in zip(x, metrics, pair, strict=True):
        assert torch.equal(fit(rows, metric, settings).encoder, dictionary.encoder)
    with pytest.raises(InterbasisError, match="topk and the same tokens"):
        fit_pair((x[0][:100], x[1]), metrics, section, settings, 0.0)
