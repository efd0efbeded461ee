"""Runs in other programs' forms: what is written is what the graph holds."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn

import small_runs
from attribution_schemas import complaints, validator
from cases import mlp, modular_addition
from command_line import Cli
from interbasis import build
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import load_result, load_tensors, save_result
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.show.export import neuronpedia_graph, plain_graph, write_graphml, write_parquet
from interbasis.show.rows import share_out

NASTY = "<b>&\x00\x1b \U0001f600"
HALF = "half a pair \ud83d"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """A run with results of the real stages, some of its labels made nasty."""
    run = small_runs.addition(tmp_path_factory.mktemp("export") / "run", model="a <model>")
    run.ablate(metric="cross_entropy", tolerance=0.01)
    run.modules(null_graphs=0)
    features = run.features(top=4)
    layers = dict(features.layers)
    for name, labels in (("attn_in.0", (NASTY, "")), ("mlp_in.0", (HALF,))):
        told = zip(layers[name].features, labels, strict=False)
        changed = [feature.model_copy(update={"label": label}) for feature, label in told]
        rest = layers[name].features[len(changed) :]
        layers[name] = layers[name].model_copy(update={"features": (*changed, *rest)})
    save_result(run.folder, features.model_copy(update={"layers": layers}))
    return run.folder


@pytest.fixture
def run(made: Path | None, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def inner(graph: InteractionGraph, k: int) -> dict[Any, Any]:
    first = [1 if layer.constant else 0 for layer in graph.layers[k : k + 2]]
    return {
        (f"{k}_{j}", f"{k + 1}_{i}"): graph.edges[k][i, j].item()
        for i in range(first[1], graph.layers[k + 1].features)
        for j in range(first[0], graph.layers[k].features)
        if graph.edges[k][i, j] > 0
    }


def test_rows_are_the_whole_graph_without_the_constants_edges(run: Path) -> None:
    graph, plain = load(run), plain_graph(run, None)
    expected: dict[tuple[str, str], float] = {}
    for k in range(len(graph.edges)):
        expected |= inner(graph, k)
    assert {(e.source, e.target): e.strength for e in plain.edges} == expected
    assert len(plain.nodes) == sum(layer.features for layer in graph.layers)
    nodes = {node.id: node for node in plain.nodes}
    assert nodes["0_0"].constant
    assert nodes["0_1"].label == NASTY
    assert nodes["0_2"].label is None
    assert nodes["1_1"].label == "half a pair \ufffd"
    assert nodes["1_3"].eigenvalue == graph.layers[1].eigenvalues[3].item()
    modules = load_result(run, ModulesResult).layers
    assert all(node.module == modules[node.layer][node.feature] for node in plain.nodes)
    masks = load_tensors(run, AblationResult)
    for edge in plain.edges:
        i, j = (int(name.split("_")[1]) for name in (edge.target, edge.source))
        mask = masks[f"edge_mask.{graph.layers[edge.section].name}"]
        assert edge.needed == bool(mask[i, j])
        assert edge.error is None
    assert sum(edge.needed for edge in plain.edges) == sum(load_result(run, AblationResult).counts.values())
    assert plain.left_out.startswith("All edges")


def test_parts_of_an_ablation_stand_at_their_section(tmp_path: Path) -> None:
    run = small_runs.addition(tmp_path / "run")
    result = run.ablate(sections="mlp_in.0", metric="cross_entropy", tolerance=1e-6)
    plain = plain_graph(run.folder, None)
    assert {edge.needed for edge in plain.edges if edge.section != 1} == {None}
    assert sum(edge.needed for edge in plain.edges if edge.section == 1) == result.counts["mlp_in.0"] > 0


def test_a_limit_keeps_the_strongest_of_each_section_and_says_so(run: Path) -> None:
    graph, plain = load(run), plain_graph(run, 30)
    assert len(plain.edges) == 30
    for k, note in enumerate(plain.sections):
        all_of_them = sorted(inner(graph, k).values(), reverse=True)
        kept = [edge.strength for edge in plain.edges if edge.section == k]
        assert kept == all_of_them[: note.written]
        assert note.smallest_written == kept[-1]
        share = sum(v * v for v in kept) / sum(v * v for v in all_of_them)
        assert note.share_of_squares == pytest.approx(share, rel=1e-12)
        assert f"{note.written:,} of {note.edges:,}" in plain.left_out
    with pytest.raises(InterbasisError, match="at least one edge"):
        plain_graph(run, 0)


def test_a_limit_is_shared_out_without_waste() -> None:
    assert share_out(10, [100, 2, 100]) == [4, 2, 4]
    assert share_out(1000, [3, 4]) == [3, 4]
    assert sum(share_out(11, [100, 100, 100])) == 11
    assert share_out(5, []) == []


def test_of_many_sections_the_worst_is_named(tmp_path: Path) -> None:
    case = mlp(nn.ReLU(), widths=(5, 6, 5, 6, 5, 6, 5, 4))
    plain = plain_graph(build(case.network, case.inputs).save(tmp_path / "run"), 14)
    worst = min(plain.sections, key=lambda section: section.share_of_squares)
    every = sum(section.edges for section in plain.sections)
    assert f"(14 of {every:,}; " in plain.left_out
    assert f"that of {worst.source} → " in plain.left_out
    assert plain.left_out.count("→") == 1


def test_estimated_edges_carry_their_errors(tmp_path: Path) -> None:
    case = mlp(nn.GELU())
    graph = build(case.network, case.inputs, edge_group=4).graph
    plain = plain_graph(graph.save(tmp_path / "run"))
    edge = plain.edges[0]
    i, j = (int(name.split("_")[1]) for name in (edge.target, edge.source))
    assert edge.error == graph.edge_errors[0][i, j].item()
    assert edge.needed is None
    assert plain.nodes[0].module is None


def test_graphml_is_read_back_the_same(run: Path, tmp_path: Path) -> None:
    plain = plain_graph(run, 40)
    read = nx.read_graphml(write_graphml(plain, tmp_path / "run.graphml"))
    assert read.is_directed()
    assert set(read.nodes) == {node.id for node in plain.nodes}
    weights = {(a, b): data["weight"] for a, b, data in read.edges(data=True)}
    assert weights == {(edge.source, edge.target): edge.strength for edge in plain.edges}
    assert read.nodes["0_1"]["label"] == "<b>&\ufffd\ufffd \U0001f600"
    assert "label" not in read.nodes["0_2"]
    assert read.graph["left_out"] == plain.left_out
    assert json.loads(read.graph["interbasis"])["about"]["model"] == "a <model>"


def test_parquet_is_read_back_the_same(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    plain = plain_graph(run, 40)
    nodes, edges = (parquet.read_table(file) for file in write_parquet(plain, tmp_path / "deep" / "tables"))
    assert nodes.column("label").to_pylist()[:3] == ["constant", NASTY, None]
    assert nodes.column("eigenvalue").to_pylist() == [node.eigenvalue for node in plain.nodes]
    assert edges.column("strength").to_pylist() == [edge.strength for edge in plain.edges]
    assert edges.column("error").to_pylist() == [None] * 40
    assert json.loads(edges.schema.metadata[b"interbasis"])["left_out"] == plain.left_out


def test_parquet_without_pyarrow_is_one_sentence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InterbasisError, match=r"pip install 'interbasis\[parquet\]'"):
        write_parquet(plain_graph(run), tmp_path / "tables")
    assert not (tmp_path / "tables").exists()


def test_neuronpedia_has_what_the_schema_requires_and_says_what_is_left_out(run: Path) -> None:
    plain = plain_graph(run, 40)
    found = neuronpedia_graph(plain, "My Run!")
    assert {"metadata", "qParams", "nodes", "links"} <= set(found)
    assert {"slug", "scan", "prompt_tokens", "prompt"} <= set(found["metadata"])
    assert found["metadata"]["slug"] == "my-run"
    ids = {node["node_id"] for node in found["nodes"]}
    for node in found["nodes"]:
        required = {"node_id", "feature", "layer", "ctx_idx", "feature_type", "jsNodeId", "clerp"}
        assert set(node) == required
        assert (type(node["feature"]), type(node["layer"]), node["ctx_idx"]) == (int, str, 0)
    kinds = {node["layer"]: node["feature_type"] for node in found["nodes"]}
    assert kinds == {"0": "cross layer transcoder", "1": "cross layer transcoder",
                     "2": "cross layer transcoder", "3": "logit"}  # fmt: skip
    assert [link["weight"] for link in found["links"]] == [edge.strength for edge in plain.edges]
    assert all({link["source"], link["target"]} <= ids for link in found["links"])
    assert {one for _, *members in found["qParams"]["supernodes"] for one in members} <= ids
    assert "not the attribution graph" in found["metadata"]["info"]["description"]
    assert any("signs" in line for line in found["metadata"]["left_out"])
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("name", ["neuronpedia", "circuit_tracer"])
def test_the_schemas_refuse_what_their_readers_would(run: Path, name: str) -> None:
    graph = neuronpedia_graph(plain_graph(run, 4))
    check = validator(name)
    assert check.is_valid(graph)
    for part, key in (("metadata", "slug"), ("metadata", "prompt_tokens"), ("nodes", "node_id")):
        broken = json.loads(json.dumps(graph))
        del (broken[part][0] if part == "nodes" else broken[part])[key]
        assert not check.is_valid(broken)
    for feature in ("7", 1.5):
        broken = json.loads(json.dumps(graph))
        broken["nodes"][0]["feature"] = feature
        assert not check.is_valid(broken)


def test_the_command_writes_all_forms(run: Path, tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("pyarrow")
    names = tmp_path / "a.graphml", tmp_path / "tables", tmp_path / "np.json"
    options = zip(("--graphml", "--parquet", "--neuronpedia"), names, strict=True)
    arguments = [part for option in options for part in option]
    printed = cli("export", run, *arguments, "--edges", 12, "--json").json
    assert len(printed["files"]) == 4
    assert "Only the strongest edges" in printed["left_out"]
    assert nx.read_graphml(names[0]).number_of_edges() == 12
    assert len(json.loads(names[2].read_text())["links"]) == 12
    assert complaints(names[2]) == []
    assert cli("export", run, *arguments, "--edges", 0).code == 0
    assert nx.read_graphml(names[0]).number_of_edges() == sum(
        map(len, (inner(load(run), k) for k in range(3)))
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no output was chosen"),
        (["--edges", "-1", "--graphml", "x"], "--edges cannot be -1"),
        (["another-run", "--graphml", "x"], "only shown in the page"),
        (["--graphml", "/nowhere/x.graphml"], "could not write"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Path, options: list[str], message: str, cli: Cli) -> None:
    code, _, err = cli("export", run, *options)
    assert code == 2
    assert message in " ".join(err.split())


def test_a_graph_without_edges_has_nodes_only(tmp_path: Path) -> None:
    case = modular_addition()
    plain = plain_graph(build(case.network, case.inputs, edge_method=None).save(tmp_path / "run"))
    assert plain.edges == ()
    assert len(plain.nodes) > 4
    assert torch.tensor([node.constant for node in plain.nodes]).sum() == 3
