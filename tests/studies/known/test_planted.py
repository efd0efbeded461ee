"""Planted networks are what they say: parts that do not act on each other, mixed in every layer."""

from typing import Any

import pytest
import torch
from torch import Tensor

from interbasis.network.network import Section
from interbasis_studies.known import PlantedSpec, plant
from interbasis_studies.known.truth import NO_PART

SMALL = {"parts": 3, "size": 2, "hidden": 4, "outputs": 1, "depth": 2, "samples": 30}


@pytest.mark.parametrize(
    "parameters",
    [{}, {"mixing": "general"}, {"correlation": 0.5, "scale": 10}, {"cross_talk": 0.3, "activation": "relu"},
     {"unread": 2, "inputs": "sparse"}, {"duplicated": True, "activation": "tanh", "inputs": "uniform"}],
    ids=str,
)  # fmt: skip
def test_the_network_computes_what_the_parts_compute(parameters: dict[str, Any]) -> None:
    """f = T g in every layer, for g computed without mixing; sections map 0 to 0."""
    known = plant(PlantedSpec(**SMALL, **parameters), seed=3)
    activations = known.network.activations(known.inputs)
    for f, T, g in zip(activations, known.truth.mixings, known.truth.values, strict=True):
        assert (f[:, 0, 1:] - g @ T.T).abs().max() <= 1e-12 * max(1, g.abs().max())
    assert torch.equal(activations[0][..., 0], torch.ones(30, 1))
    zero = torch.zeros(1, 1, known.network.nodes[0].width, dtype=torch.float64)
    assert known.network.sections[0](zero).abs().max() == 0


def test_parts_act_on_each_other_through_cross_talk_alone() -> None:
    for cross_talk in (0.0, 0.2):
        known = plant(PlantedSpec(**SMALL, cross_talk=cross_talk), seed=1)
        network, truth = known.network, known.truth
        T = truth.mixings
        for k, section in enumerate(network.sections):

            def true_coordinates(
                g: Tensor, section: Section = section, k: int = k, T: tuple[Tensor, ...] = T
            ) -> Tensor:
                f = torch.cat([torch.ones(1), g @ T[k].T])[None, None]
                return torch.linalg.solve(T[k + 1], section(f)[0, 0, 1:])

            J = torch.func.jacrev(true_coordinates)(truth.values[k][0]).abs()
            acts = truth.acts_on[k][truth.parts[k + 1]][:, truth.parts[k]]
            assert J[~acts].max() <= 1e-12
            assert J[acts].max() > 1e-3
        assert truth.acts_on[0].sum() == (6 if cross_talk else 3)
        assert truth.acts_on[-1].sum() == 3  # outputs read their own part alone


def test_a_parameter_changes_what_it_is_about_and_nothing_else() -> None:
    plain, correlated = plant(PlantedSpec(**SMALL)), plant(PlantedSpec(**SMALL, correlation=0.3))
    assert not torch.equal(plain.inputs, correlated.inputs)
    for one, other in zip(plain.network.sections, correlated.network.sections, strict=True):
        assert torch.equal(one.read, other.read)
        assert torch.equal(one.write, other.write)
    assert torch.equal(plain.inputs, plant(PlantedSpec(**SMALL)).inputs)
    assert not torch.equal(plain.inputs, plant(PlantedSpec(**SMALL), seed=1).inputs)


def test_inputs_have_the_asked_moments() -> None:
    spec = PlantedSpec(parts=2, size=1, samples=40_000, correlation=0.4, scale=5)
    for inputs in ("normal", "uniform", "laplace", "sparse"):
        S = plant(spec.model_copy(update={"inputs": inputs})).truth.covariance(0)
        deviations = S.diagonal().sqrt()
        assert (deviations - torch.tensor([1.0, 5.0])).abs().max() <= 0.2
        assert abs(S[0, 1] / deviations.prod() - 0.4) <= 0.05


def test_unread_directions_and_duplicates_are_labelled() -> None:
    known = plant(PlantedSpec(**SMALL, unread=2))
    assert known.truth.parts[0].tolist() == [0, 0, 1, 1, 2, 2, NO_PART, NO_PART]
    assert (
        not known.network.sections[0].read[:, 1:].matmul(known.truth.mixings[0])[:, -2:].abs().max() > 1e-12
    )
    twin = plant(PlantedSpec(**SMALL, duplicated=True)).truth
    assert twin.count == 2
    assert twin.parts[0].tolist() == [0, 0, 0, 0, 1, 1]
    assert torch.allclose(twin.values[-2][:, :2], twin.values[-2][:, 2:4], rtol=1e-12)


def test_crowding_has_fewer_dimensions_than_features() -> None:
    known = plant(PlantedSpec(parts=8, size=1, crowding=2, samples=20, inputs="sparse"))
    assert known.network.nodes[0].width == 5
    assert known.truth.mixings[0].shape == (4, 8)
