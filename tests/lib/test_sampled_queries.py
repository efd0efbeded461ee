"""Errors of Λ where attention's queries are sampled: in the layers before it too, and wherever Λ is shown."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import interbasis
from cases import CASES, normal
from command_line import Cli
from interbasis import build
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.store import load
from interbasis.lib.jacobians import Jacobians
from interbasis.lib.statistics import Wanted, collect
from interbasis.network.cores import Attention
from interbasis.show.export import plain_graph
from interbasis.show.figures import eigenvalue_spectra
from interbasis.show.report import claims
from interbasis.show.report.record import read_runs
from interbasis.show.viewer.payload import run_payload
from reference import jacobian_gram, relative_error

pytest.importorskip("transformers")
from tiny_models import random_model, tokens

SEEDS = range(24)
LEADING = 3
"""Features of a layer whose Λ are looked at."""


def leading(layer: LayerBasis) -> slice:
    return slice(1 + layer.isolated, 1 + layer.isolated + LEADING)


@pytest.mark.parametrize(
    ("name", "basis"),
    [("gpt2", "lib"), ("gpt2", "random"), pytest.param("qwen3", "lib", marks=pytest.mark.slow)],
)
def test_errors_of_all_layers_before_are_as_large_as_the_deviations(name: str, basis: str) -> None:
    """Over many seeds, against the exact build: two sampled attentions, whose errors compound."""
    network, inputs = interbasis.from_hf(random_model(name)), tokens(8, 8)
    settings: dict[str, Any] = {"basis": basis, "edge_method": None}
    found = [build(network, inputs, **settings, jacobian_queries=4, seed=seed).graph.layers for seed in SEEDS]
    seeds = SEEDS if basis == "random" else [0]  # whose rotation depends on the seed
    exact = [build(network, inputs, **settings, seed=seed).graph.layers for seed in seeds]
    sampled = network.layers.index("heads.1" if name == "qwen3" else "attn_in.1")
    deviations = []
    for k in range(len(network.nodes) - 1):
        layers = [graph[k] for graph in found]
        if k > sampled:  # nothing was sampled after it
            assert all(layer.eigenvalue_errors is None for layer in layers)
            assert all(torch.equal(layer.transform, exact[0][k].transform) for layer in layers[:1])
            continue
        true = torch.stack([exact[s % len(exact)][k].eigenvalues[leading(layers[0])] for s in SEEDS])
        ours = torch.stack([layer.eigenvalues[leading(layer)] for layer in layers])
        errors = torch.stack([layer.eigenvalue_errors[leading(layer)] for layer in layers])
        actual = ((ours - true) / true).square().mean().sqrt().item()
        claimed = (errors / true).square().mean().sqrt().item()
        assert 0.5 < claimed / actual < 2, (layers[0].name, claimed, actual)
        deviations.append(actual)
        assert layers[0].eigenvalue_errors[0] == 0  # the constant's
    assert deviations[0] > 0.01
    if basis == "lib":
        assert deviations[0] > 1.3 * deviations[sampled]  # both attentions, not the second alone


@pytest.mark.parametrize("name", ["gelu", "modadd", "general", "gpt2", "llama"])
def test_a_deviation_of_the_next_features_goes_through_every_core(name: str) -> None:
    """M′ of CᵀC + CᵀEC, by autograd, less that of CᵀC."""
    case = CASES[name]()
    network, batches = case.network.double(), Batches(case.inputs)
    statistics = collect(network, batches, Wanted())
    jacobians = Jacobians(Executor(network), statistics, batches)
    activations = network.activations(case.inputs)
    for k, section in enumerate(network.sections):
        first = 1 if section.source.constant else 0
        transform = normal(5, section.target.width, seed=k)
        E = normal(5, 5, seed=k + 50)
        E = 0.3 * (E + E.T) / torch.linalg.matrix_norm(E + E.T, 2)
        values, vectors = torch.linalg.eigh(torch.eye(5).double() + E)
        root = vectors * values.sqrt() @ vectors.T
        found = jacobians.to_next(k, transform, E[None])
        plain = jacobians.to_next(k, transform)
        assert torch.equal(found.K, plain.K)
        assert plain.noise is None
        expected = [
            jacobian_gram(section, activations[k], C)[first:, first:] for C in (root @ transform, transform)
        ]
        (noise,) = found.noise if found.X is None else found.X.T @ found.noise @ found.X
        assert relative_error(noise, expected[0] - expected[1]) <= 1e-10


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    random_model("gpt2", torch.float32).save_pretrained(folder / "model")
    tokens(8, 8).numpy().astype(np.uint16).tofile(folder / "tokens.uint16")
    data = f"tokens:{folder / 'tokens.uint16'},context=8"
    for name, queries in (("sampled", ["--jacobian-queries", 4]), ("exact", [])):
        settings = ["--data", data, "--dtype", "float64", *queries, "--out", folder / name]
        assert cli("build", f"hf:{folder / 'model'}", *settings).code == 0
    return folder / "sampled"


def test_errors_of_lambda_are_shown_by_show_and_report(run: Path, cli: Cli) -> None:
    layers = load(run).layers
    rows = list(cli("show", run, "--json").json["layers"].values())
    for row, layer in zip(rows, layers, strict=True):
        if layer.eigenvalue_errors is None:
            assert row["eigenvalue_error"] is None
            continue
        Λ, order = layer.eigenvalues[1:], layer.eigenvalues[1:].argsort(descending=True)
        leading = order[: 1 + int((Λ[order].cumsum(0) < 0.9 * Λ.sum()).sum())]
        median = (layer.eigenvalue_errors[1:] / Λ)[leading].median().item()
        half_normal = 0.67448975  # the median of |x|, x normal: one degree of freedom
        assert row["eigenvalue_error"] == pytest.approx(median / half_normal)
    assert sum(row["eigenvalue_error"] is not None for row in rows) == 9
    printed = cli("show", run).out
    assert "all queries of all samples" in " ".join(printed.split())
    assert f"{rows[0]['eigenvalue_error']:.1%}" in printed
    code, shown, _ = cli("show", run.parent / "exact")
    assert code == 0
    assert "against all queries" not in shown
    (reported,) = read_runs([run])
    said = " ".join(claim.text for claim in claims(reported) if claim.allowed)
    assert f"standard errors: ln1.0 {rows[0]['eigenvalue_error']:.1%}" in said


def test_errors_of_lambda_are_on_the_page_in_exports_and_in_figures(run: Path) -> None:
    graph, payload, plain = load(run), run_payload(run), plain_graph(run)
    for k, layer in enumerate(graph.layers):
        told = payload.layers[k].eigenvalue_errors
        rows = [node.eigenvalue_error for node in plain.nodes if node.layer_index == k]
        if layer.eigenvalue_errors is None:
            assert told is None
            assert set(rows) == {None}
            continue
        values = np.frombuffer(base64.b64decode(told), "<f4")
        np.testing.assert_allclose(values, layer.eigenvalue_errors, rtol=1e-6)
        assert rows == layer.eigenvalue_errors.tolist()
    bands = [bool(panel.collections) for panel in eigenvalue_spectra({"lib": graph}).axes]
    assert bands == [layer.eigenvalue_errors is not None for layer in graph.layers]


@pytest.mark.parametrize("queries", [4, 3])
def test_sampled_queries_are_unbiased_and_say_how_far_off_they_may_be(queries: int) -> None:
    case = CASES["gpt2"]()
    network = case.network.between(["attn_in.0", "ln2.0"])
    exact = build(network, case.inputs, edge_method=None).graph.layers[0]
    everything = build(network, case.inputs, edge_method=None, jacobian_queries=6).graph.layers[0]
    assert everything.eigenvalue_errors is None
    assert torch.equal(everything.transform, exact.transform)
    seeds = range(40)
    found = [
        build(network, case.inputs, edge_method=None, jacobian_queries=queries, seed=seed).graph.layers[0]
        for seed in seeds
    ]
    total = torch.stack([layer.eigenvalues[1:].sum() for layer in found])
    assert (total.mean() - exact.eigenvalues[1:].sum()).abs() <= 4 * total.std() / len(seeds) ** 0.5
    actual = torch.stack([layer.eigenvalues[1:4] - exact.eigenvalues[1:4] for layer in found])
    claimed = torch.stack([layer.eigenvalue_errors[1:4] for layer in found])
    ratio = claimed.square().mean().sqrt() / actual.square().mean().sqrt()
    assert 0.5 < ratio < 2
    again = build(
        network, list(case.inputs.split(2)), edge_method=None, jacobian_queries=queries
    ).graph.layers[0]
    assert relative_error(found[0].eigenvalues, again.eigenvalues) <= 1e-10


def test_an_odd_number_of_queries_is_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the queries is looked at, and 3 give other numbers than 2; errors compound as for even ones."""
    network, inputs = interbasis.from_hf(random_model("gpt2")), tokens(8, 8)
    looked_at = []
    sums_at = Attention.sums_at

    def counting(self: Any, u: Tensor, queries: Any, *more: Any) -> dict[str, Tensor]:
        looked_at.append(queries.shape[1])
        return sums_at(self, u, queries, *more)

    monkeypatch.setattr(Attention, "sums_at", counting)
    first = {}
    for number in (2, 3, 4, 5):
        looked_at.clear()
        first[number] = build(network, inputs, edge_method=None, jacobian_queries=number).graph.layers[0]
        assert looked_at == [-(-number // 2), number // 2] * 2  # of both attentions
    for odd in (3, 5):
        assert not torch.equal(first[odd].eigenvalues, first[odd - 1].eigenvalues)
    exact = build(network, inputs, edge_method=None).graph.layers[0]
    here = leading(exact)
    found = [build(network, inputs, edge_method=None, jacobian_queries=3, seed=seed).graph for seed in SEEDS]
    actual = torch.stack([graph.layers[0].eigenvalues[here] - exact.eigenvalues[here] for graph in found])
    claimed = torch.stack([graph.layers[0].eigenvalue_errors[here] for graph in found])
    assert (
        0.5
        < (claimed / exact.eigenvalues[here]).square().mean().sqrt()
        / (actual / exact.eigenvalues[here]).square().mean().sqrt()
        < 2
    )
