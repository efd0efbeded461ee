"""Planted networks with more features than dimensions, and dictionaries that find them."""

import math
from pathlib import Path

import pytest
import torch

from interbasis.run.build import build
from interbasis_studies.known.records import ScoreboardRequest
from interbasis_studies.known.scoreboard import run
from interbasis_studies.known.scoreboard_axes import MORE_AXES
from interbasis_studies.known.superposition import (
    SuperpositionSpec,
    found_features,
    plant_superposition,
    score_basis,
    score_dictionaries,
    train_dictionaries,
)
from interbasis_studies.known.truth import KnownNetwork

SMALL = SuperpositionSpec(width=24, crowding=2, samples=4000, steps=500, unread=0.15)


@pytest.fixture(scope="module")
def known() -> KnownNetwork:
    return plant_superposition(SMALL, seed=1)


def test_true_features_are_what_the_layers_hold(known: KnownNetwork) -> None:
    activations = known.network.activations(known.inputs)
    for k in range(SMALL.depth + 1):
        held = known.truth.values[k] @ known.truth.mixings[k].T
        torch.testing.assert_close(activations[k][:, 0, 1:], held)
    assert known.truth.mixings[0].shape == (24, 48)
    counts = [(values > 0).double().sum(1).mean().item() for values in known.truth.values[:2]]
    assert 1.5 < counts[0] < 2.5
    assert counts[1] < 8


def test_unread_features_have_no_effect(known: KnownNetwork) -> None:
    unread = known.truth.parts[0] < 0
    assert unread.sum() == SMALL.unread_features == 7
    g = known.truth.values[0].clone()
    g[:, unread] = 5.0
    torch.testing.assert_close(known.network(g @ known.truth.mixings[0].T), known.network(known.inputs))


def test_scores_of_the_truth_are_1(known: KnownNetwork) -> None:
    directions = [known.truth.mixings[k].T for k in range(2)]
    read = known.truth.parts[0] >= 0
    edges = torch.zeros(len(read), len(read), dtype=torch.float64)
    edges[read.nonzero(), read.nonzero().T] = known.truth.acts_on[0].double()
    found = found_features(known, directions, list(known.truth.values[:2]), [edges])
    assert list(found.values()) == pytest.approx([1.0, 1.0, 1.0])


def test_a_dictionary_finds_what_no_basis_can(known: KnownNetwork) -> None:
    lib = build(known.network, known.inputs, edge_method=None, progress=False).graph
    basis = score_basis(known, lib, SMALL.depth)
    for metric in ("raw", "both"):
        scores = score_dictionaries(known, train_dictionaries(known, SMALL, lib, metric, seed=0))
        assert scores.cosine > basis["cosine"] + 0.2
        assert scores.correlation > basis["correlation"] + 0.2
        assert scores.edge_precision > 5 * known.truth.acts_on[0].double().mean()  # chance is 0.05
        assert math.isnan(scores.modules)


def test_rows_of_the_scoreboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = SMALL.model_copy(update={"samples": 1500, "steps": 30, "depth": 1})
    monkeypatch.setitem(MORE_AXES, "superposition", (("2 per dimension", tiny),))
    request = ScoreboardRequest(axes="superposition", bases="lib,dictionary,dictionary_both", seeds=2)
    board = run(request, tmp_path, progress=False)
    assert board.bases == ("lib", "dictionary", "dictionary_both")
    for basis in board.bases:
        assert 0 < board.estimate("superposition", "2 per dimension", basis, "cosine").mean < 1
