"""Samples that are filled up: padding is in no sum, no example, no edge and no metric."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import Cli
from interbasis import build, from_hf
from interbasis.analysis.ablation.controls import with_predicted_labels
from interbasis.analysis.ablation.curves import sparsity_curves
from interbasis.analysis.ablation.search import edges_required
from interbasis.base.records import Basis
from interbasis.data.batches import Batches
from interbasis.data.samples import Samples
from interbasis.graph.named_models import open_data
from interbasis.lib.edges import edges, estimate_edges
from interbasis.numerics.random_signs import Sources
from reference import jacobian_gram, relative_error
from tiny_models import random_model, tokens


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents of 9 tokens, each beginning with token 1."""
    stream = tokens(60, 9, seed=5)
    stream[stream == 1] = 2
    stream[:, 0] = 1
    file = tmp_path_factory.mktemp("padding") / "documents.uint16"
    stream.numpy().astype(np.uint16).tofile(file)
    return file


def ragged(lengths: Sequence[int] = (3, 5, 5, 8, 1, 8, 4), longest: int = 8) -> Samples:
    """Samples of several lengths, filled up with a token that would show."""
    inputs, lengths = tokens(len(lengths), longest), torch.tensor(lengths)
    padding = torch.arange(longest) >= lengths[:, None]
    inputs, labels = inputs.where(~padding, 22), inputs.where(~padding, -100)
    return Samples(len(inputs), lambda a, b: (inputs[a:b], labels[a:b]), "tokens", batch=3, lengths=lengths)


def single_documents(data: Samples) -> list[torch.Tensor]:
    return [data.read(k, k + 1)[0][:, :length] for k, length in enumerate(data.lengths.tolist())]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox"])
def test_sums_are_over_real_tokens(name: str, small_chunks: None) -> None:
    data, network = ragged(), from_hf(random_model(name))
    graph = build(network, data, dtype="float64").graph
    alone, count = single_documents(data), data.lengths.sum()
    activations = [network.activations(document) for document in alone]
    for k, (layer, section) in enumerate(zip(graph.layers, network.sections, strict=False)):
        f = torch.cat([one[k][0] for one in activations])
        assert len(f) == count
        assert relative_error(layer.mean, f.mean(0)) <= 1e-12
        above = graph.layers[k + 1].transform
        M = sum(jacobian_gram(section, one[k], above) * one[k].shape[1] for one in activations) / count
        free = layer.inverse[:, 1 + layer.isolated :]
        M = free.T @ M @ free
        assert (M - torch.eye(len(M))).abs().max() <= 1e-6
    squares = [[e.square() * one.shape[1] for e in edges(network, graph.layers, one)] for one in alone]
    for mine, theirs in zip(graph.edges, zip(*squares, strict=True), strict=True):
        assert relative_error(mine, (sum(theirs) / count).sqrt()) <= 1e-10


@pytest.mark.parametrize(
    "sources", [Sources("positions", 64), Sources(4, 64), Sources("positions", 64, 0, 3)]
)
def test_stochastic_sources_see_real_tokens(sources: Sources, small_chunks: None) -> None:
    """Unbiased over samples of different lengths; the errors they come with say how far off they are."""
    data, network = ragged((3, 5, 5, 5, 8, 8, 8, 8, 2, 4) * 4), from_hf(random_model("gpt2"), "0")
    layers = build(network, data, edge_method=None, dtype="float64").graph.layers
    for mine, theirs in zip(
        estimate_edges(network, layers, data, sources), edges(network, layers, data), strict=True
    ):
        squares, exact = mine.rms[1:, 1:].square().sum(), theirs[1:, 1:].square().sum()
        assert (squares / exact - 1).abs() <= 0.1


def test_sampled_queries_see_real_tokens() -> None:
    data, network = ragged((3, 5, 5, 5, 8, 8, 8, 8, 2, 4) * 12), from_hf(random_model("gpt2"), "0")
    exact = build(network, data, edge_method=None, dtype="float64").graph.layers[2]
    estimates = [
        build(network, data, edge_method=None, dtype="float64", jacobian_queries=4, seed=seed).graph.layers[2]
        for seed in range(6)
    ]
    found = torch.stack([layer.eigenvalues[1:4] for layer in estimates]).mean(0)
    assert (found / exact.eigenvalues[1:4] - 1).abs().max() <= 0.03


@pytest.mark.parametrize("basis", ["lib", "gib"])
def test_longer_contexts_change_nothing(documents: Path, basis: Basis) -> None:
    network = from_hf(random_model("gpt_neox"))  # rotary: it has no longest context
    spec = f"tokens:{documents},part=all,bos=1,per=document"
    graphs = [
        build(network, open_data(f"{spec},context={context}"), basis=basis, dtype="float64").graph
        for context in (8, 16, 64)
    ]
    for other in graphs[1:]:
        for mine, theirs in zip(graphs[0].layers, other.layers, strict=True):
            assert relative_error(mine.eigenvalues, theirs.eigenvalues) <= 1e-10
            assert relative_error(mine.transform, theirs.transform) <= 1e-8
        for mine, theirs in zip(graphs[0].edges, other.edges, strict=True):
            assert relative_error(mine, theirs) <= 1e-8


def test_the_commands_leave_padding_out(documents: Path, tmp_path: Path, cli: Cli) -> None:
    """Token 0 fills up and is in no document, so no example may show it."""
    model = random_model("gpt2", torch.float32)
    model.save_pretrained(tmp_path / "model")
    data = f"tokens:{documents},context=16,part=all,bos=1,per=document"
    stream = np.fromfile(documents, dtype=np.uint16)
    stream[stream == 0] = 3
    stream.tofile(documents)
    run = tmp_path / "run"
    assert cli("build", f"hf:{tmp_path / 'model'}", "--data", data, "--out", run).code == 0
    assert cli("features", run, "--data", data).code == 0
    shown = [json.loads(file.read_text()) for file in (tmp_path / "run").rglob("*.json")]
    places = [place for found in shown for place in _places(found)]
    assert places
    assert all(0 <= position < 8 for position in places)


def _places(found: Any) -> list[int]:
    """Every position of an example in a stored result."""
    if isinstance(found, dict):
        own = [found["position"]] if isinstance(found.get("position"), int) else []
        return own + [p for value in found.values() for p in _places(value)]
    return [p for value in found for p in _places(value)] if isinstance(found, list) else []


def test_scores_count_real_tokens() -> None:
    data, network = ragged((3, 5, 5, 8, 2, 8, 4) * 4), from_hf(random_model("gpt2"))
    graph = build(network, data, dtype="float64").graph
    alone = single_documents(data)
    answers = with_predicted_labels(network, data)
    _, rows = answers.all()
    assert (rows != -100).sum() == data.lengths.sum()
    for row, document in zip(rows, alone, strict=True):
        assert torch.equal(row[: document.shape[1]], network(document).argmax(-1)[0])
    found = edges_required(network, graph, answers, "accuracy", 0.2, sections=[5])
    assert found[0].count > 0
    curves = sparsity_curves(network, graph, answers, "accuracy")
    assert curves.baseline == 1.0


def test_runs_of_one_length_and_resuming_within_a_chunk() -> None:
    batches = Batches(ragged())
    whole = [(first, inputs.shape) for first, inputs in batches.chunks(4)]
    assert whole == [(0, (1, 3)), (1, (2, 5)), (3, (1, 8)), (4, (1, 1)), (5, (1, 8)), (6, (1, 4))]
    assert [(first, inputs.shape) for first, inputs in batches.chunks(4, start=3)] == whole[2:]
    assert [tuple(labels.shape) for _, _, labels in batches.labelled_chunks(4)] == [s for _, s in whole]
    other = ragged((3, 5, 5, 8, 1, 8, 3))
    assert Batches(other).fingerprint() != batches.fingerprint()
