"""Prompts of a saved run, on the command line: traces, their storage, steering."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import interbasis
from command_line import Cli
from interbasis.analysis.prompts import parse_feature
from interbasis.analysis.stages.trace import TraceResult
from interbasis.analysis.stored_results import load_named
from interbasis.analysis.traces.targets import TargetRequest
from interbasis.analysis.traces.trace import trace as trace_inputs
from interbasis.data.batches import Batches

pytest.importorskip("transformers")
WORDS = ["<s>", "the", "cat", "dog", "sat", "ran", "Lily", "Tom", "saw", "a"]


@pytest.fixture(scope="module")
def run(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A random GPT-2 of ten words with a tokenizer, built, described and grouped by the commands."""

    def make(folder: Path) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import GPT2Config, GPT2LMHeadModel

        from command_line import run_command

        torch.manual_seed(0)
        shape = {"vocab_size": 10, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
        GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **shape)).save_pretrained(folder / "model")
        tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="a"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(folder / "model" / "tokenizer.json"))
        settings = folder / "model" / "tokenizer_config.json"
        settings.write_text(json.dumps({"bos_token": "<s>"}))
        torch.randint(1, 10, (800,)).numpy().astype("uint16").tofile(folder / "text.uint16")
        data = f"tokens:{folder / 'text.uint16'},context=8"
        model, out = f"hf:{folder / 'model'}", folder / "run"
        assert run_command("build", model, "--data", data, "--out", out).code == 0
        assert run_command("features", out, "--top", 4).code == 0
        assert run_command("modules", out, "--null-graphs", 2).code == 0

    return made_once("prompted-run", make) / "run"


def test_a_prompt_is_traced_labelled_and_stored(run: Path, cli: Cli) -> None:
    ended = cli("trace", run, "--prompt", "Lily saw the", "--output", "cat", "--minus", "dog", "--json")
    result = TraceResult.model_validate({k: v for k, v in ended.json.items() if k != "run"})
    trace = result.trace
    assert [token.text for token in trace.tokens] == ["<s>", "Lily", "saw", "the"]
    assert (trace.target.kind, trace.target.name) == ("difference", "“cat” − “dog”")
    assert trace.summary.startswith("“cat” − “dog” at position 3: predictions ")
    stored = load_named(run, TraceResult)[result.name]
    assert stored.trace.nodes == trace.nodes
    labels = {node.label for node in trace.nodes if node.feature <= 4}
    assert any(labels)
    assert trace.groups
    assert {name for group in trace.groups for name in group.nodes} <= {node.name for node in trace.nodes}
    logits = interbasis.open_run(run).network(torch.tensor([[0, 6, 8, 1]]))[0, -1]
    assert trace.target.value == pytest.approx((logits[2] - logits[3]).item(), rel=1e-4)
    printed = cli("trace", run, "--sample", 3, "--name", "third").out
    assert "Stored as traces/third.json" in printed
    assert set(load_named(run, TraceResult)) == {result.name, "third"}


@pytest.mark.parametrize("loaded", [False, True])
def test_a_model_from_a_folder_brings_its_tokenizer_to_python(run: Path, loaded: bool) -> None:
    from transformers import GPT2LMHeadModel

    folder = str(run.parent / "model")
    network = interbasis.from_hf(GPT2LMHeadModel.from_pretrained(folder) if loaded else folder)
    tokens = torch.randint(1, 10, (50, 8), generator=torch.Generator().manual_seed(0))
    built = interbasis.build(network, tokens, edge_method=None, progress=False)
    tokens = built.trace("Lily saw the", checks=0).trace.tokens
    assert [token.text for token in tokens] == ["<s>", "Lily", "saw", "the"]
    described = built.features(top=1).layers["unembed"].features[0]
    assert {push.name for push in described.effects.up} <= set(WORDS)
    assert built.steer("unembed:1", 2.0, "the cat").outputs[0].name in WORDS


def test_transformer_lens_names_stand_beside_ours(
    run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    layers = cli("show", run, "--json").json["layers"]
    assert layers["ln1.0"]["hook"] == "blocks.0.hook_resid_pre"
    assert "blocks.0.ln2.hook_normalized" in cli("show", run).out
    opened = interbasis.open_run(run)
    assert opened.section_indices(["blocks.0.hook_resid_mid"]) == [opened.graph.layer_names.index("ln2.0")]
    basis, number = parse_feature(opened.graph, "blocks.0.hook_resid_mid:3")
    assert (basis.name, number) == ("ln2.0", 3)
    named = TargetRequest(layer="blocks.0.hook_resid_mid", feature=3)
    _, inputs = next(Batches(opened.data(None, "train")).chunks(1, 2))
    target = trace_inputs(opened.network, opened.graph, inputs[0], named).target
    assert (target.layer, target.feature) == ("ln2.0", 3)


def test_steering_adds_to_a_feature_everywhere(run: Path, cli: Cli) -> None:
    ended = cli("steer", run, "--feature", "mlp_in.0:2", "--by", 3, "--prompt", "Lily saw", "--json").json
    opened = interbasis.open_run(run)
    layer = opened.graph.layers[opened.graph.layer_names.index("mlp_in.0")]
    tokens = torch.tensor([[0, 6, 8]])
    f = opened.network.activations_at(opened.graph.layer_names.index("mlp_in.0"), tokens)
    f = f + 3 * layer.eigenvalues[2].sqrt().float() * layer.inverse[:, 2].float()
    for step in (
        *opened.network.sections[opened.graph.layer_names.index("mlp_in.0") :],
        *opened.network.tail,
    ):
        f = step(f)
    before = opened.network(tokens)[0, -1]
    for output in ended["outputs"]:
        assert output["before"] == pytest.approx(before[output["index"]].item(), abs=1e-4)
        assert output["after"] == pytest.approx(f[0, -1, output["index"]].item(), abs=1e-4)
        assert output["name"] == WORDS[output["index"]]
    assert ended["unit"] == pytest.approx(layer.eigenvalues[2].sqrt().item())
    greedy = opened.network(tokens)[0, -1].argmax()
    assert ended["continuation"].startswith(WORDS[greedy])
    hook = "blocks.0.ln2.hook_normalized:2"
    assert cli("steer", run, "--feature", hook, "--by", 3, "--prompt", "Lily saw", "--json").json == ended
    assert "standard deviations" in cli("steer", run, "--feature", "mlp_in.0:2", "--by", 3, "--sample", 0).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trace",), "either a prompt (a text) or the number of a sample"),
        (("trace", "--prompt", "Lily", "--output", "xyz"), "is not an output of the model"),
        (("trace", "--prompt", "Lily", "--feature", "mlp_in.0"), "expected a feature as LAYER:NUMBER"),
        (("steer", "--feature", "mlp_in.0:999", "--by", "1", "--prompt", "Lily"), "has features 0 to"),
        (("steer", "--feature", "mlp_in.0:0", "--by", "1", "--prompt", "Lily"), "feature 0 is the constant"),
        (("trace", "--sample", "100000"), "the data have samples 0 to"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    run: Path, cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    ended = cli(arguments[0], run, *arguments[1:])
    assert ended.code == 2
    assert message in ended.err
