"""A graph between dictionaries from the command line to a page in a browser."""

import json

import pytest
import torch

from compute.in_blocks import sum_in_blocks
from compute.torchrun import TESTS, ended, torchrun
from interbasis.dictionaries import load_graph
from interbasis.run.dictionary_run import stored_descriptions, stored_traces
from show.viewer.looking import opened

pytest.importorskip("transformers")
WORDS = ["<s>", "the", "cat", "dog", "sat", "ran", "Lily", "Tom", "<b>x</b>", "a"]


@pytest.fixture(scope="module")
def folder(made_once):
    """A random GPT-2 of ten words, two dictionaries that were trained on it, and the graph between them."""

    def make(folder):
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


def build(folder):
    model, data = f"hf:{folder / 'model'}", f"tokens:{folder / 'train.uint16'},context=8"
    named = [f"{layer}={folder / 'sparse' / layer}" for layer in ("ln1.0", "ln1.1")]
    return ["build", model, "--data", data, "--dictionary", named[0], "--dictionary", named[1]]


def test_features_are_described_traced_checked_and_shown(folder, cli, browser, tmp_path):
    model, graph = f"hf:{folder / 'model'}", folder / "graph"
    found = cli("dictionary", "describe", graph, model)
    assert found.code == 0, found.err
    assert "active features have a short description" in " ".join(found.out.split())
    described = stored_descriptions(graph)
    assert described is not None
    assert described.layers[0].described > 0
    traced = cli("dictionary", "trace", graph, model, "--prompt", "Lily sat the <b>x</b>", "--json")
    assert len(traced.json["layers"]) == 2
    assert list(stored_traces(graph)) == ["lily-sat-the-b-x-b"]
    checks = cli(
        "dictionary", "check", graph, model, "--data", f"tokens:{folder / 'test.uint16'},context=8", "--json"
    )
    assert checks.json["pairs"][0]["edges"] > 20
    page = tmp_path / "page.html"
    assert cli("dictionary", "page", graph, model, "--out", page).code == 0
    with opened(browser, page.as_uri()) as shown:
        assert "ln1.1 #" in shown.inner_text("h2")
        shown.get_by_role("tab", name="Traces").click()
        assert "Next token" in shown.inner_text("h2")
        assert shown.locator("svg circle").count() == sum(
            len(layer["nodes"]) for layer in traced.json["layers"]
        )
        shown.locator("ol li button").last.click()
        before = shown.inner_text("h2")
        shown.locator("svg g.node").first.click()
        assert shown.inner_text("h2") != before
        shown.fill("#search", "zebra")
        assert "No feature matches" in shown.inner_text("#list")
        shown.get_by_role("tab", name="About").click()
        assert "pairs of features were active together" in shown.inner_text("#view")
        assert shown.locator("b").count() == 0  # a token of HTML is text


def test_two_processes_give_the_same_graph(folder, tmp_path, cli, monkeypatch):
    command = [*build(folder), "--edge-positions", 5, "--threads", 1, "--out"]
    process = torchrun(2, TESTS / "compute/in_blocks.py", *command, tmp_path / "two")
    sum_in_blocks(monkeypatch.setattr)
    assert cli(*command, tmp_path / "one").code == 0
    ended(process)
    one, two = (load_graph(tmp_path / processes) for processes in ("one", "two"))
    assert one.header.pairs == two.header.pairs
    for name, tensor in one._tensors().items():
        assert torch.equal(tensor, two._tensors()[name]), name


def test_what_does_not_fit_is_refused_in_one_sentence(folder, cli, tmp_path):
    model, out = f"hf:{folder / 'model'}", tmp_path / "out"
    for arguments, message in (
        ([*build(folder), "--out", folder / "graph"], "holds a graph already"),
        ([*build(folder), "--basis", "pca", "--out", out], "has no use for basis; leave out this setting"),
        ([*build(folder), "--memory", "1GB", "--out", out], "cannot be combined"),
        (["build", model, "--dictionary", "ln1.0", "--out", out], "expected a dictionary as LAYER=PATH"),
        (["dictionary", "describe", folder / "model", model], "has no dictionary_graph.json"),
        (["dictionary", "trace", folder / "graph", "modadd", "--prompt", "a"], "the weights differ"),
    ):
        result = cli(*arguments)
        assert (result.code, result.out) == (2, "")
        assert message in " ".join(result.err.split())
    assert not out.exists() or not list(out.iterdir())


def test_a_dictionary_that_changed_is_refused(folder, cli, tmp_path):
    from safetensors.torch import load_file, save_file

    place = folder / "sparse" / "ln1.1"
    weights = next(place.glob("*.safetensors"))
    original = weights.read_bytes()
    try:
        tensors = {name: tensor + 0.1 for name, tensor in load_file(weights).items()}
        save_file(tensors, weights)
        result = cli(
            "dictionary", "trace", folder / "graph", f"hf:{folder / 'model'}", "--prompt", "Lily sat"
        )
        assert result.code == 2
        assert "is not the dictionary that" in " ".join(result.err.split())
    finally:
        weights.write_bytes(original)
