"""`interbasis diff` on the command line: two checkpoints, a run, a series, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cases import normal
from command_line import Cli
from compute.torchrun import ended, torchrun
from interbasis.analysis.differences.store import load_difference
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.sae_lens import save
from interbasis.show.viewer.payload import run_payload
from interbasis_studies.training.modadd import Recipe, initial_weights


@pytest.fixture(scope="module")
def checkpoints(small_addition: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Three checkpoints: the small model of all tests, and two with changes of one MLP."""
    folder, weights = tmp_path_factory.mktemp("checkpoints"), load_file(small_addition)
    paths = [small_addition]
    for step in (1, 2):
        name = "blocks.0.mlp.W_in"
        weights[name] = weights[name] * (1 + 0.1 * normal(*weights[name].shape, seed=step).float())
        paths.append(folder / f"step-{step}.safetensors")
        save_file(weights, paths[-1])
    return [f"modadd:{path}" for path in paths]


def test_two_checkpoints(cli: Cli, checkpoints: list[Any], tmp_path: Path) -> None:
    shown = cli("diff", *checkpoints[:2], "--out", tmp_path / "diff").out
    assert "The largest difference arises in" in shown
    assert "2 sections do not differ" in shown
    assert "inverse covariance" in shown
    record = cli("diff", *checkpoints[:2], "--json").json
    changed = [name for name, section in record["sections"].items() if section["changed"]]
    assert len(changed) == 1
    assert record["sections"][changed[0]]["jacobian"]["value"] > 0
    assert (tmp_path / "diff" / "diff.json").is_file()
    assert not (tmp_path / "diff" / ".resume").exists()


def test_a_run_of_the_first_model_gives_the_metric(cli: Cli, checkpoints: list[Any], tmp_path: Path) -> None:
    cli("build", checkpoints[0], "--out", tmp_path / "run", "-q")
    record = cli("diff", tmp_path / "run", checkpoints[1], "--json").json
    assert record["metric"] == "lib"
    directions = next(s for s in record["sections"].values() if s["changed"])["output_directions"]
    assert directions[0]["features"]


def test_a_series_is_a_heat_map(cli: Cli, checkpoints: list[Any], tmp_path: Path) -> None:
    shown = cli("diff", *checkpoints, "--out", tmp_path / "series").out
    assert "Series" in shown
    assert (tmp_path / "series" / "series.svg").read_text().startswith("<?xml")
    assert sorted(path.name for path in (tmp_path / "series").glob("0*")) == ["01", "02"]
    last = cli("diff", *checkpoints, "--against", "last", "--json").json
    assert {part["first"]["name"] for part in last["differences"]} == {checkpoints[2]}


def test_refusals(cli: Cli, checkpoints: list[Any], tmp_path: Path) -> None:
    assert cli("diff", checkpoints[0]).code == 2
    assert "at least two models" in cli("diff", checkpoints[0]).err
    wider = tmp_path / "wider.safetensors"
    save_file(initial_weights(Recipe(seed=3, p=11, width=20, heads=2, hidden=24)), wider)
    refused = cli("diff", checkpoints[0], f"modadd:{wider}")
    assert refused.code == 2
    assert "of one width" in refused.err


@pytest.fixture(scope="module")
def run_with_difference(cli: Cli, checkpoints: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the difference to another checkpoint stored in it."""
    run = tmp_path_factory.mktemp("runs") / "run"
    assert cli("build", checkpoints[0], "--out", run, "-q").code == 0
    shown = "".join(cli("diff", run, checkpoints[1]).out.split())
    assert f"Storedin{run / 'diffs' / 'step-1.safetensors'}" in shown
    return run


def test_report_and_page_show_differences_of_a_run(
    cli: Cli, run_with_difference: Path, checkpoints: list[Any], tmp_path: Path
) -> None:
    run = run_with_difference
    assert cli("report", run, "--out", tmp_path / "report").code == 0
    text = (tmp_path / "report" / "report.html").read_text()
    for words in (
        "What changed",
        "The difference arises in mlp_in.0",
        "You may say</h4>",
        "No other section differs.",
        "These directions are why the models behave differently.",
        "Where models differ",
    ):
        assert words in text
    assert (tmp_path / "report" / "figures" / "differences-0.svg").is_file()
    (shown,) = run_payload(run).differences
    assert (shown.name, shown.second) == ("step-1.safetensors", checkpoints[1])
    assert [table.title for table in shown.tables][:2] == ["Sections", "Depth"]
    assert cli("report", run / "diffs" / "step-1.safetensors", "--out", tmp_path / "alone").code == 0
    alone = (tmp_path / "alone" / "report.html").read_text()
    assert "What changed" in alone
    assert "Provenance" not in alone
    (run / "diffs" / "step-1.safetensors" / "diff.safetensors").write_bytes(b"damaged")
    assert "not belong to diff.json" in run_payload(run).unreadable[0]
    assert cli("report", run, "--out", tmp_path / "report").code == 2


def test_a_transcoder_in_place_of_an_mlp(cli: Cli, checkpoints: list[Any], tmp_path: Path) -> None:
    transcoder = Dictionary(
        normal(20, 16, seed=1).float(), normal(20, seed=2).float(), normal(20, 16, seed=3).float(),
        normal(16, seed=4).float(), hook="blocks.0.mlp.hook_in", output_hook="blocks.0.hook_mlp_out",
    )  # fmt: skip
    save(transcoder, tmp_path / "transcoder")
    options = ("--transcoder", tmp_path / "transcoder", "--layer", "mlp_in.0")
    record = cli("diff", checkpoints[0], *options, "--json").json
    assert record["second"]["name"] == str(tmp_path / "transcoder")
    assert [name for name, section in record["sections"].items() if section["changed"]] == ["mlp_in.0"]
    assert record["sections"]["mlp_in.0"]["jacobian"]["value"] > 0.5
    both = cli("diff", *checkpoints[:2], *options)
    assert "stands for the second model" in both.err
    assert "expected an MLP to replace" in cli("diff", checkpoints[0], *options[:3], "attn_in.0").err


def test_models_that_cannot_be_compared_are_one_sentence(
    cli: Cli, checkpoints: list[Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
    for name in ("one", "other", "packed"):
        model.save_pretrained(tmp_path / name)
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"version": name}))
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    np.save(tmp_path / "tokens.npy", torch.randint(0, 40, (4, 8)).numpy())
    data = ("--data", f"tokens:{tmp_path}/tokens.npy,context=8")
    for second, words in (
        (f"hf:{tmp_path}/other", "expected two models with one tokenizer"),
        (checkpoints[0], "expected two models of one family"),
        (f"hf:{tmp_path}/packed", "GPTQ"),
    ):
        refused = cli("diff", f"hf:{tmp_path}/one", second, *data)
        assert refused.code == 2
        assert words in refused.err
        assert refused.err.count("\n") == 1


@pytest.mark.slow
def test_two_processes_find_what_one_finds(cli: Cli, checkpoints: list[Any], tmp_path: Path) -> None:
    assert cli("diff", *checkpoints[:2], "--out", tmp_path / "alone").code == 0
    ended(torchrun(2, "-m", "interbasis", "diff", *checkpoints[:2], "--out", tmp_path / "two"))
    alone, two = (load_difference(tmp_path / name) for name in ("alone", "two"))
    assert alone.record == two.record
    assert all(torch.equal(two.tensors[name], tensor) for name, tensor in alone.tensors.items())
