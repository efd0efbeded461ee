"""A graph between dictionaries from the command line to a page in a browser."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import pytest
import torch

import interbasis
from command_line import Cli
from compute.in_blocks import sum_in_blocks
from compute.torchrun import TESTS, ended, torchrun
from interbasis.analysis.dictionaries.descriptions import DescriptionsResult
from interbasis.analysis.dictionaries.trace import DictionaryTrace
from interbasis.analysis.stored_results import result_names
from interbasis.dictionaries import load_graph
from show.viewer.conftest import serving
from show.viewer.looking import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("transformers")
WORDS = ["<s>", "the", "cat", "dog", "sat", "ran", "Lily", "Tom", "<b>x</b>", "a"]


@pytest.fixture(scope="module")
def folder(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random GPT-2 of ten words, two dictionaries that were trained on it, and the graph between them."""

    def make(folder: Path) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import GPT2Config, GPT2LMHeadModel

        from command_line import run_command

        torch.manual_seed(0)
        shape = {"vocab_size": 10, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}
        GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **shape)).save_pretrained(folder / "model")
        tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="a"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(folder / "model" / "tokenizer.json"))
        (folder / "model" / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
        for name in ("train", "test"):
            torch.randint(1, 10, (1600,)).numpy().astype("uint16").tofile(folder / f"{name}.uint16")
        model, data = f"hf:{folder / 'model'}", f"tokens:{folder / 'train.uint16'},context=8"
        train = ("--layers", "ln1.0,ln1.1", "--features", 24, "--active", 3, "--steps", 60, "--batch", 64)
        result = run_command("dictionary", "train", model, *train, "--data", data, "--out", folder / "sparse")
        assert result.code == 0, result.err
        result = run_command(*build(folder), "--out", folder / "graph")
        assert result.code == 0, result.err

    return made_once("dictionary-graph", make)


def build(folder: Path) -> list[Any]:
    model, data = f"hf:{folder / 'model'}", f"tokens:{folder / 'train.uint16'},context=8"
    named = [f"{layer}={folder / 'sparse' / layer}" for layer in ("ln1.0", "ln1.1")]
    return ["build", model, "--data", data, "--dictionary", named[0], "--dictionary", named[1]]


def test_a_graph_is_analysed_by_the_commands_of_any_run(
    folder: Path, cli: Cli, browser: "Browser", tmp_path: Path
) -> None:
    """The run remembers its model, data and dictionaries; every result is read by the readers of results."""
    graph = folder / "graph"
    found = cli("features", graph)
    assert found.code == 0, found.err
    assert "have a short description" in " ".join(found.out.split())
    run: Any = interbasis.open_run(graph, progress=False)
    described = run.stored(DescriptionsResult)
    assert described.layers[0].described > 0
    assert set(described.words.values()) <= set(WORDS)
    traced = cli("trace", graph, "--prompt", "Lily sat the <b>x</b>", "--json")
    assert len(traced.json["layers"]) == 2
    assert result_names(graph, DictionaryTrace) == ["lily-sat-the-b-x-b"]
    checks = cli(
        "dictionary", "check", graph, "--data", f"tokens:{folder / 'test.uint16'},context=8", "--json"
    )
    assert checks.json["pairs"][0]["edges"] > 20
    strongest = run.graph.edges[0]
    ends = f"ln1.0:{strongest.source[0]}", f"ln1.1:{strongest.target[0]}"
    split = cli("dictionary", "paths", graph, "--source", ends[0], "--target", ends[1], "--json").json
    assert len(split["heads"]) == 2
    parts = [split["skip"], *(head[name] for head in split["heads"] for name in ("value", "key", "query"))]
    assert sum(part["mean"] for part in parts) == pytest.approx(split["total"]["mean"], abs=1e-5)
    assert split["total"]["rms"] == pytest.approx(strongest.rms_active[0].item(), rel=0.5)
    steered = cli("steer", graph, "--feature", "ln1.1:3", "--by", 3, "--prompt", "Lily sat", "--json")
    assert steered.json["unit_name"] == "RMS activations where it is active"
    ablated = cli("ablate", graph, "--tolerance", 0.001, "--json")
    assert ablated.json["pairs"]["ln1.0"]["count"] <= ablated.json["pairs"]["ln1.0"]["stored"]
    modules = cli("modules", graph, "--null-graphs", 2, "--json")
    assert len(modules.json["layers"]["ln1.0"]) == 24
    assert modules.json["epsilons_from_ablation"]
    for command in (["show", graph], ["ablate", graph], ["compare", graph, graph]):
        told = cli(*command)
        assert told.code == 0, told.err
        assert "ln1.1" in told.out
    exported = cli(
        "export", graph, "--html", tmp_path / "page.html", "--graphml", tmp_path / "g.graphml",
        "--parquet", tmp_path / "tables", "--neuronpedia", tmp_path / "g.json",
    )  # fmt: skip
    assert exported.code == 0, exported.err
    drawn = nx.read_graphml(tmp_path / "g.graphml")
    assert drawn.number_of_edges() == run.graph.header.pairs[0].stored
    ends = f"0_{strongest.source[0]}", f"1_{strongest.target[0]}"
    assert drawn.edges[ends]["weight"] == pytest.approx(strongest.rms[0].item())
    assert drawn.edges[ends]["needed"]
    assert drawn.nodes[ends[0]]["feature"] == strongest.source[0]
    assert cli("report", graph, "--out", tmp_path / "report").code == 0
    report = (tmp_path / "report" / "report.html").read_text()
    assert "from ln1.0 to ln1.1 keep the cross-entropy within 0.1" in report
    assert "predict single interventions" in report
    with opened(browser, (tmp_path / "page.html").as_uri()) as shown:
        look_at(shown, traced.json)
    with serving(graph) as server, opened(browser, server.url) as shown:
        look_at(shown, traced.json)


def look_at(shown: "Page", trace: dict[str, Any]) -> None:
    assert "ln1.1 #" in shown.inner_text("h2")
    shown.get_by_role("tab", name="Traces").click()
    assert "Next token" in shown.inner_text("h2")
    assert shown.locator("svg circle").count() == sum(len(layer["nodes"]) for layer in trace["layers"])
    shown.locator("ol li button").last.click()
    before = shown.inner_text("h2")
    shown.locator("svg g.node").first.click()
    assert shown.inner_text("h2") != before
    shown.fill("#search", "zebra")
    assert "No feature matches" in shown.inner_text("#list")
    shown.get_by_role("tab", name="About").click()
    assert "features were active together" in shown.inner_text("#view")
    assert shown.locator("b").count() == 0  # a token of HTML is text


def test_a_graph_of_somebody_else_opens_nothing(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interbasis.base.signatures._trusted", set())
    copied = folder / "copied"
    shutil.copytree(folder / "graph", copied)
    (copied / "signature.json").unlink()
    told = cli("trace", copied, "--prompt", "Lily sat")
    assert told.code == 2
    assert "has no signature of yours" in " ".join(told.err.split())
    assert "it would read hf:" in " ".join(told.err.split())
    assert cli("show", copied).code == 0
    trusted = cli("trace", copied, "--prompt", "Lily sat", "--trust")
    assert trusted.code == 0, trusted.err
    shutil.rmtree(copied)
    for file in (folder / "graph").glob("*.json"):
        text = file.read_text()
        assert f":{folder}" not in text, file  # names are relative
        assert f"={folder}" not in text, file


def test_two_processes_give_the_same_graph(
    folder: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*build(folder), "--edge-positions", 5, "--threads", 1, "--out"]
    process = torchrun(2, TESTS / "compute/in_blocks.py", *command, tmp_path / "two")
    sum_in_blocks(monkeypatch.setattr)
    assert cli(*command, tmp_path / "one").code == 0
    ended(process)
    one, two = (load_graph(tmp_path / processes) for processes in ("one", "two"))
    assert one.header.pairs == two.header.pairs
    for name, tensor in one._tensors().items():
        assert torch.equal(tensor, two._tensors()[name]), name


def test_a_graph_is_built_again_from_what_it_remembers(folder: Path, cli: Cli, tmp_path: Path) -> None:
    again = cli("build", "--config", folder / "graph", "--out", tmp_path / "again")
    assert again.code == 0, again.err
    one, two = load_graph(folder / "graph"), load_graph(tmp_path / "again")
    assert one.header.pairs == two.header.pairs
    for name, tensor in one._tensors().items():
        assert torch.equal(tensor, two._tensors()[name]), name


def test_what_does_not_fit_is_refused_in_one_sentence(folder: Path, cli: Cli, tmp_path: Path) -> None:
    model, out = f"hf:{folder / 'model'}", tmp_path / "out"
    for arguments, message in (
        ([*build(folder), "--out", folder / "graph"], "holds a graph already"),
        ([*build(folder), "--basis", "pca", "--out", out], "has no use for basis; leave out this setting"),
        (
            [*build(folder), "--memory", "10MB", "--out", out],
            "is too little for the edges from ln1.0 to ln1.1",
        ),
        (["build", model, "--dictionary", "ln1.0", "--out", out], "expected a dictionary as LAYER=PATH"),
        (["dictionary", "check", folder / "model", "--data", "x"], "is none; name one"),
        (["trace", folder / "graph", "--model", "modadd", "--prompt", "a"], "the weights differ"),
        (["curves", folder / "graph"], "is a graph between dictionaries, which this does not take; use show"),
        (
            ["trace", folder / "graph", "--prompt", "a", "--minus", "b"],
            "has no use for --minus; leave it out",
        ),
        (["features", folder / "graph", "--device", "cpu"], "has no use for --device"),
        (["steer", folder / "graph", "--feature", "ln1.1:99", "--by", 1], "has features 0 to 23"),
        (["view", folder / "graph", folder / "graph"], "one graph between dictionaries at a time"),
    ):
        result = cli(*arguments)
        assert (result.code, result.out) == (2, "")
        assert message in " ".join(result.err.split())
    assert not out.exists() or not list(out.iterdir())


def test_a_dictionary_that_changed_is_refused(folder: Path, cli: Cli, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    place = folder / "sparse" / "ln1.1"
    weights = next(place.glob("*.safetensors"))
    original = weights.read_bytes()
    try:
        tensors = {name: tensor + 0.1 for name, tensor in load_file(weights).items()}
        save_file(tensors, weights)
        result = cli("trace", folder / "graph", "--prompt", "Lily sat")
        assert result.code == 2
        assert "is not the dictionary that" in " ".join(result.err.split())
    finally:
        weights.write_bytes(original)
