"""Ceiling and floor of every score, and what happens in between."""

import numpy as np
import pytest
import torch

from interbasis_studies.known import PlantedSpec, fit, plant, score
from interbasis_studies.known.truth import KnownNetwork

SPEC = PlantedSpec(parts=3, size=4, hidden=8, depth=2, samples=600)


@pytest.fixture(scope="module", params=["orthogonal", "general"])
def known(request: pytest.FixtureRequest) -> KnownNetwork:
    return plant(SPEC.model_copy(update={"mixing": request.param, "correlation": 0.3}), seed=2)


def test_where_parts_do_not_touch_the_ceiling_finds_all(known: KnownNetwork) -> None:
    scores = score(known, fit(known, "ceiling"))
    for name in ("features", "matched", "subspaces", "coverage", "edge_precision", "edge_auroc"):
        assert getattr(scores, name) >= 1 - 1e-6, name
    assert scores.false_mass <= 1e-9
    assert scores.modules >= 0.9
    assert scores.effects >= 0.9


def test_correlation_costs_lib_more_than_jib(known: KnownNetwork) -> None:
    lib, jib = (score(known, fit(known, basis)) for basis in ("lib", "jib"))
    assert lib.features < 0.9 < jib.features
    assert jib.modules >= 0.95
    assert jib.edge_precision > lib.edge_precision + 0.2


def test_a_random_rotation_scores_what_theory_says() -> None:
    """Shares of a random direction in m parts of w dimensions are Dirichlet(w/2, …, w/2)."""
    draws = np.random.default_rng(0).dirichlet([SPEC.size / 2] * SPEC.parts, 100_000).max(1)
    found = []
    for seed in range(6):
        known = plant(SPEC.model_copy(update={"mixing": "none", "samples": 4000}), seed)
        layer = fit(known, "random", seed).layers[0]
        found += known.truth.shares(0, layer.transform[1:]).amax(1).tolist()
    error = np.std(draws) / len(found) ** 0.5
    assert abs(np.mean(found) - draws.mean()) <= 4 * error


def test_shares_do_not_depend_on_coordinates_within_a_part() -> None:
    known = plant(SPEC)
    layer = fit(known, "lib").layers[1]
    shares = known.truth.shares(1, layer.transform[1:])
    assert (shares.sum(1) - 1).abs().max() <= 1e-12
    turn = torch.block_diag(
        *torch.randn(3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    truth = known.truth
    values = (*truth.values[:1], truth.values[1] @ torch.linalg.inv(turn).T, *truth.values[2:])
    mixings = (*truth.mixings[:1], truth.mixings[1] @ turn, *truth.mixings[2:])
    other = type(truth)(mixings, values, truth.parts, truth.acts_on)
    assert (other.shares(1, layer.transform[1:]) - shares).abs().max() <= 1e-10


def test_ica_finds_independent_parts_that_are_not_normal() -> None:
    spec = SPEC.model_copy(update={"inputs": "laplace", "mixing": "general", "samples": 4000})
    known = plant(spec)
    assert score(known, fit(known, "ica")).features > score(known, fit(known, "pca")).features + 0.2


def test_unwhitened_depends_on_coordinates() -> None:
    """Without whitening the parts are found under rotations, and lost under a general mixing."""
    rotated, stretched = (plant(SPEC.model_copy(update={"mixing": m})) for m in ("orthogonal", "general"))
    assert score(rotated, fit(rotated, "unwhitened")).features >= 1 - 1e-6
    assert score(stretched, fit(stretched, "unwhitened")).features < 0.9
