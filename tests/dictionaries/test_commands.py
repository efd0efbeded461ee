"""`interbasis dictionary train` and `score`, as a person or a script uses them."""

from pathlib import Path

import pytest

from command_line import Cli
from compute.torchrun import TESTS, ended, torchrun
from interbasis.dictionaries import load

TRAIN = ("--layers", "attn_in.0,mlp_in.0", "--features", 20, "--active", 3, "--steps", 12, "--batch", 32)


def test_training_and_scores(cli: Cli, small_addition: Path, tmp_path: Path) -> None:
    model, out = f"modadd:{small_addition}", tmp_path / "sparse"
    told = cli("dictionary", "train", model, *TRAIN, "--metric", "lib", "--out", out)
    assert told.code == 0, told.err
    assert "attn_in.0: step 12 of 12, loss" in told.err
    assert "metric lib" in told.out
    assert load(out / "mlp_in.0").features == 20
    scored = cli("dictionary", "score", out, model)
    assert scored.code == 0, scored.err
    assert "variance explained" in " ".join(scored.out.split())
    scores = cli("dictionary", "score", out, model, "--json").json["scores"]
    assert list(scores) == ["attn_in.0", "mlp_in.0"]
    assert 0 < scores["mlp_in.0"]["active"] <= 3


def test_what_is_refused_is_one_sentence(cli: Cli, small_addition: Path, tmp_path: Path) -> None:
    model = f"modadd:{small_addition}"
    for arguments, message in (
        (["train", model, "--out", tmp_path / "x"], "--layers is required"),
        (["train", model, *TRAIN, "--metric", "fischer", "--out", tmp_path / "x"], "fischer"),
        (["train", model, *TRAIN, "--rate", 0, "--out", tmp_path / "x"], "--rate cannot be 0"),
        (["score", tmp_path / "x", model], "expected the folder of a dictionary at"),
    ):
        told = cli("dictionary", *arguments)
        assert (told.code, told.out) == (2, "")
        assert message in " ".join(told.err.split())
    assert not (tmp_path / "x").exists()


def test_layers_are_divided_among_processes(
    cli: Cli, small_addition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["dictionary", "train", f"modadd:{small_addition}", *TRAIN, "--metric", "both", "--out"]
    assert cli(*command, tmp_path / "one").code == 0
    ended(torchrun(2, TESTS / "compute/in_blocks.py", *command, tmp_path / "two"))
    for layer in ("attn_in.0", "mlp_in.0"):
        one, two = (load(tmp_path / folder / layer) for folder in ("one", "two"))
        assert (one.encoder - two.encoder).abs().max() < 1e-4 * one.encoder.abs().max()
    assert not (tmp_path / "two" / ".resume").exists()
