"""The planted transformer does what it says, and its interactions are those that are told."""

import pytest
import torch

import interbasis
from interbasis_studies.known import fit, plant_transformer, score
from interbasis_studies.known.planted import Draws
from interbasis_studies.known.programs import transformer_program
from interbasis_studies.known.truth import KnownNetwork

PROGRAM = transformer_program(Draws(1))
TOKENS, POSITIONS = PROGRAM.sizes["token"], PROGRAM.sizes["position"]


@pytest.fixture(scope="module")
def known() -> KnownNetwork:
    return plant_transformer(seed=1, samples=60)


def test_heads_do_what_they_are_called(known: KnownNetwork) -> None:
    g = known.truth.values[-2].unflatten(0, (60, POSITIONS))
    before = g[:, 1:, PROGRAM.where("previous")].argmax(-1)
    assert torch.equal(before, known.inputs[:, :-1])
    share = (known.inputs == 0).double().cumsum(1) / torch.arange(1, POSITIONS + 1)
    assert (g[..., PROGRAM.where("count")][..., 0] - share).abs().max() <= 1e-12
    row, copied = known.inputs[0].tolist(), g[0, :, PROGRAM.where("copied")].argmax(-1).tolist()
    checked = 0
    for t in range(2, POSITIONS):
        followers = {row[s + 1] for s in range(t) if row[s] == row[t]}
        if len(followers) == 1:
            checked += 1
            assert copied[t] in followers
    assert checked


def test_mixing_hides_it_and_changes_nothing(known: KnownNetwork) -> None:
    for f, T, g in zip(
        known.network.activations(known.inputs), known.truth.mixings, known.truth.values, strict=True
    ):
        assert (f.flatten(0, 1)[:, 1:] - g @ T.T).abs().max() <= 1e-12
    assert known.network(known.inputs).shape == (60, POSITIONS, 2 * TOKENS + 5)


def test_jacobians_vanish_where_no_interaction_is_told(known: KnownNetwork) -> None:
    truth, network = known.truth, known.network
    names = list(PROGRAM.sizes)
    for k, section in enumerate(network.sections):
        T_in, T_out = truth.mixings[k], truth.mixings[k + 1]
        f = network.activations_at(k, known.inputs[:2])
        J = torch.func.jacrev(section)(f)[..., 1:, :, :, 1:]  # [n, S, out, n, T, in]
        size = torch.einsum("op,nsomtj,jq->pqnsmt", T_out, J, T_in).abs().amax((2, 3, 4, 5))
        acts = truth.acts_on[k][truth.parts[k + 1]][:, truth.parts[k]]
        assert size[~acts].max() <= 1e-10
        for target in range(len(names)):
            for source in range(len(names)):
                block = size[truth.parts[k + 1] == target][:, truth.parts[k] == source]
                if truth.acts_on[k][target, source] and len(block):
                    assert block.max() > 1e-3, (section, names[target], names[source])


def test_scores_without_modules(known: KnownNetwork) -> None:
    ceiling, chance = (score(known, fit(known, basis)) for basis in ("ceiling", "random"))
    assert ceiling.features >= 1 - 1e-6
    assert ceiling.false_mass <= 1e-9
    assert ceiling.edge_precision > chance.edge_precision + 0.2
    assert ceiling.modules != ceiling.modules  # NaN
    assert isinstance(fit(known, "jib"), interbasis.InteractionGraph)
