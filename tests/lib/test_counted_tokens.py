"""Tokens left out of all sums over the data, against the definition with the same masks."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from cases import CASES, as_general, attention_section
from cases import activations as random_activations
from interbasis import InterbasisError, build
from interbasis.base.records import Basis
from interbasis.data import Batches
from interbasis.graph.store import load
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.edges import EdgeSettings, edges, estimate_edges, measure
from interbasis.network.cores import AttentionShape, Counted, Rotary
from interbasis.network.network import Network, Section
from interbasis.network.section_jacobian import DenseJacobian
from interbasis.numerics.integration import rule
from interbasis.numerics.random_signs import Sources
from reference import edges as reference_edges
from reference import jacobian_gram, relative_error

WITH_POSITIONS = ["gpt2", "gpt-neox", "llama", "modadd", "modadd-2-blocks", "positionwise"]
SETTINGS: dict[str, Any] = {"skip_positions": 1, "norm_limit": 1.05}
ROUNDING = 1e-10


def masks(
    network: Network, inputs: Tensor, skip_positions: int = 1, norm_limit: float = 1.05
) -> tuple[Any, list[Any]]:
    """What counts at every node layer, spelled out."""
    result = []
    fs = network.activations(inputs)
    for node, f in zip(network.nodes, fs, strict=True):
        sizes = f[..., int(node.constant) + node.isolated :].square().sum(-1).sqrt()
        counts = sizes <= norm_limit * sizes.flatten().sort().values[(sizes.numel() - 1) // 2]
        if f.shape[1] == fs[0].shape[1]:
            counts[:, :skip_positions] = False
        result.append(counts)
    return fs, result


@pytest.mark.parametrize("kind", ["lib", "gib", "pca"])
@pytest.mark.parametrize("name", WITH_POSITIONS)
def test_bases_and_edges_count_what_they_are_told_to(name: str, kind: Basis) -> None:
    case = CASES[name]()
    graph = build(case.network, case.inputs, basis=kind, **SETTINGS).graph
    fs, counts = masks(case.network, case.inputs)
    assert any(not c.all() for c in counts[1:])
    for k, (f, count) in enumerate(zip(fs, counts, strict=True)):
        layer = graph.layers[k]
        rows = f[count]
        assert relative_error(layer.mean, rows.mean(0)) <= ROUNDING
        if k == len(fs) - 1:
            continue
        section, target = case.network.sections[k], graph.layers[k + 1]
        values = rows @ layer.transform.T
        alone = torch.arange(layer.features - 1) < layer.isolated
        within = (alone[:, None] == alone).double()
        covariance = values[:, 1:].T @ values[:, 1:] / len(values)
        assert relative_error(within * covariance, torch.diag(layer.eigenvalues[1:])) <= 1e-8
        if kind == "lib":
            M = jacobian_gram(section, f, target.transform, count, counts[k + 1])
            M = layer.inverse[:, 1:].T @ M @ layer.inverse[:, 1:]
            assert (within * M - torch.eye(len(M))).abs().max() <= 1e-8
        if kind == "gib":
            rest = case.network.sections[k:]
            M = jacobian_gram(partial(through, rest), f, graph.layers[-1].transform, count, counts[-1])
            M = layer.inverse[:, 1:].T @ M @ layer.inverse[:, 1:]
            assert (within * M - torch.eye(len(M))).abs().max() <= 1e-8
        expected = reference_edges(section, f, layer, target, seen=count, told=counts[k + 1])
        assert relative_error(graph.edges[k], expected) <= ROUNDING


def through(sections: Iterable[Section], f: Tensor) -> Tensor:
    for section in sections:
        f = section(f)
    return f


SHAPES = {
    "plain": AttentionShape(2, 3),
    "bidirectional": AttentionShape(2, 3, causal=False),
    "window": AttentionShape(2, 3, window=2),
    "cap": AttentionShape(2, 3, cap=2.0),
    "rotary": AttentionShape(2, 4, rotary=Rotary((1.0, 0.3))),
    "partial rotary, cap": AttentionShape(2, 5, cap=2.0, rotary=Rotary((0.7, 0.2))),
    "grouped": AttentionShape(4, 3, key_heads=2),
    "grouped, rotary, window": AttentionShape(4, 4, window=3, rotary=Rotary((1.0, 0.3)), key_heads=2),
}


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_skips_keys_and_queries(shape: str, last_only: bool) -> None:
    section: Any = attention_section(SHAPES[shape], last_only)
    f = random_activations(section, 4, 6)
    generator = torch.Generator().manual_seed(3)
    seen, told = (torch.rand(4, 6, generator=generator) < 0.6 for _ in range(2))
    u, outputs = section.read_outs(f), section.outputs(f)
    transform = torch.randn(4, section.target.width, dtype=torch.float64, generator=generator)
    counted = Counted(seen.double(), told.double())
    pairs = int((seen & told)[:, outputs].sum())
    expected = jacobian_gram(section, f, transform, seen, told[:, outputs])[1:, 1:]
    queries = torch.arange(outputs.start, outputs.stop).expand(4, -1)
    metric = DenseJacobian.from_section(section, transform).metric
    parts = [section.core.sums_at(u, some, metric, counted) for some in queries.split(2, dim=1)]
    whole = section.core.sums_at(u, queries, metric, counted)
    for name, total in whole.items():
        assert relative_error(sum(part[name] for part in parts), total) <= ROUNDING
    some: Any
    for some in (section, as_general(section)):
        jacobian = DenseJacobian.from_section(some, transform)
        moments = some.core.moments(
            some.core.batch_sums(u, outputs, jacobian.metric, None, counted), jacobian.metric
        )
        gram = jacobian.gram(moments, pairs, int(seen.sum()))
        assert relative_error(gram.matrix, expected) <= ROUNDING


@pytest.mark.parametrize("group", [4, "positions"])
@pytest.mark.parametrize("positions", [None, 3])
def test_estimated_edges_count_the_same_tokens(
    group: int | Literal["positions"], positions: int | None
) -> None:
    """The mean over seeds of ΣÊ² is that of the counted tokens, and not that of all."""
    case = CASES["llama"]()
    network, inputs = case.network, case.inputs
    layers = build(network, inputs, edge_method=None, **SETTINGS).graph.layers
    limits = tuple(build_limits(network, inputs))
    counted = CountedTokens.from_limits(network, 1, limits)
    gradient = rule("gradient", 1)
    exact = measure(network, layers, Batches(inputs), EdgeSettings(gradient, None, counted))
    seeds = 12
    totals = [torch.zeros_like(sums.square) for sums in exact]
    for seed in range(seeds):
        settings = EdgeSettings(gradient, Sources(group, 2, seed, positions), counted)
        for total, sums in zip(totals, measure(network, layers, Batches(inputs), settings), strict=True):
            total += sums.square / seeds
    everything = measure(network, layers, Batches(inputs), EdgeSettings(gradient))
    for total, sums, more in zip(totals, exact, everything, strict=True):
        assert abs(total.sum() / sums.square.sum() - 1) < 0.15
        assert more.square.sum() / sums.square.sum() > 1.3


@pytest.mark.parametrize("name", WITH_POSITIONS)
def test_edges_of_a_graphs_bases_are_the_graphs(name: str, tmp_path: Path) -> None:
    """`measure_edges(network, graph.layers, data)` leaves out what the build left out, loaded or not."""
    case = CASES[name]()
    network = case.network.double()
    graph = build(network, case.inputs, dtype="float64", **SETTINGS).graph
    everything = build(network, case.inputs, dtype="float64", norm_limit=0).graph
    for layers in (graph.layers, load(graph.save(tmp_path)).layers):
        for found, expected in zip(edges(network, layers, case.inputs), graph.edges, strict=True):
            assert relative_error(found, expected) <= ROUNDING
    for found, expected in zip(edges(network, everything.layers, case.inputs), everything.edges, strict=True):
        assert relative_error(found, expected) <= ROUNDING
    sources = Sources(2, 2, 0)
    grouped = build(network, case.inputs, dtype="float64", edge_group=2, **SETTINGS).graph
    estimates = estimate_edges(network, graph.layers, case.inputs, sources)
    for found, expected in zip(estimates, grouped.edges, strict=True):
        assert relative_error(found.rms, expected) <= ROUNDING


def build_limits(network: Network, inputs: Tensor) -> list[Any]:
    graph = build(network, inputs, basis="pca", edge_method=None, **SETTINGS).graph
    return [direction.norm_limit for direction in graph.provenance.largest_directions.values()]


def test_results_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from interbasis.compute import executor

    case = CASES["llama"]()
    whole = build(case.network, case.inputs, **SETTINGS).graph
    monkeypatch.setattr(executor, "CHUNK_BYTES", 1)
    monkeypatch.setattr(executor, "FINE_CHUNK_BYTES", 1)
    parts = build(case.network, case.inputs, **SETTINGS).graph
    for one, other in zip(whole.edges, parts.edges, strict=True):
        assert relative_error(one, other) <= 1e-8


def test_language_models_leave_massive_tokens_out_by_default() -> None:
    case = CASES["llama"]()
    assert build(case.network, case.inputs, edge_method=None).graph.config.norm_limit == 3
    isolated = build(case.network, case.inputs, edge_method=None, isolate_largest=True).graph
    assert isolated.config.norm_limit == 0
    addition = CASES["modadd"]()
    assert build(addition.network, addition.inputs, edge_method=None).graph.config.norm_limit == 0


def test_the_largest_direction_stands_alone() -> None:
    """Its feature is the first principal direction, and no other feature has any of it."""
    case = CASES["llama"]()
    graph = build(case.network, case.inputs, edge_method=None, isolate_largest=True).graph
    pca = build(case.network, case.inputs, basis="pca", edge_method=None, norm_limit=0).graph
    for node, layer, principal in zip(case.network.nodes, graph.layers[:-1], pca.layers[:-1], strict=False):
        assert layer.isolated == node.isolated + 1
        alone = 1 + node.isolated
        direction = principal.transform[alone, 1:]
        along = layer.transform[1:, 1:] @ direction
        own = layer.transform[alone, 1:]
        assert relative_error(own / own.norm(), direction * own.dot(direction).sign()) <= 1e-8
        others = torch.cat([along[: alone - 1], along[alone:]]) / layer.transform[1:, 1:].norm(dim=1).max()
        assert others.abs().max() <= 1e-8


def test_nothing_left_to_count_is_refused() -> None:
    case = CASES["llama"]()
    with pytest.raises(InterbasisError, match="no token counts at"):
        build(case.network, case.inputs, skip_positions=6)
    with pytest.raises(InterbasisError, match="a limit below the median"):
        build(case.network, case.inputs, norm_limit=0.5)
