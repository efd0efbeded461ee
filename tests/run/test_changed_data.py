"""Data that changed since the build are noticed by their fingerprint; others are used on purpose only."""

from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import interbasis
from command_line import Cli
from interbasis import InterbasisError
from interbasis.graph.store import load
from interbasis.run.run import open_run

STAGES = (
    ("features", "--top", "1"),
    ("trace", "--sample", "0"),
    ("steer", "--sample", "0", "--feature", "LAYER:1", "--by", "1"),
    ("controls", "--stressed", "", "--bases", "pca"),
)


def write_rows(path: str, seed: int) -> None:
    generator = numpy.random.default_rng(seed)
    numpy.savez(path, x=generator.normal(size=(60, 6)), y=generator.integers(0, 3, 60))


@pytest.fixture
def run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    interbasis.mlp.save(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), "net.safetensors")
    write_rows("rows.npz", 0)
    ended = cli("build", "mlp:net.safetensors", "--data", "npz:rows.npz,samples=50", "--out", "run")
    assert ended.code == 0, ended.err
    return tmp_path / "run"


def arguments(
    run: Path,
    command: tuple[str, ...],
) -> list[str]:
    layer = load(run).layer_names[0]
    return [command[0], str(run), *(word.replace("LAYER", layer) for word in command[1:])]


@pytest.mark.parametrize("command", STAGES)
def test_a_stage_on_the_runs_data_notices(
    cli: Cli,
    run: Path,
    command: tuple[str, ...],
) -> None:
    assert cli(*arguments(run, command)).code == 0
    write_rows("rows.npz", 1)
    ended = cli(*arguments(run, command))
    assert ended.code == 2
    assert f"npz:rows.npz,samples=50 are not the data that {run} " in ended.err
    assert "--data to use others" in ended.err


@pytest.mark.parametrize("command", STAGES[:3])
def test_other_data_on_purpose(
    cli: Cli,
    run: Path,
    command: tuple[str, ...],
) -> None:
    write_rows("rows.npz", 1)
    ended = cli(*arguments(run, command), "--data", "npz:rows.npz")
    assert ended.code == 0, ended.err


def test_a_build_of_the_same_config_notices(cli: Cli, run: Path) -> None:
    assert cli("build", "--config", run, "--out", "again").code == 0
    write_rows("rows.npz", 1)
    ended = cli("build", "--config", run, "--out", "other")
    assert ended.code == 2
    assert "are not the data that" in ended.err
    assert cli("build", "--config", run, "--data", "npz:rows.npz", "--out", "purpose").code == 0


def test_each_kind_of_data_is_compared(cli: Cli, run: Path) -> None:
    write_rows("edges.npz", 5)
    build = ("build", "mlp:net.safetensors", "--data", "npz:rows.npz", "--edge-data", "npz:edges.npz")
    assert cli(*build, "--out", "two").code == 0
    write_rows("edges.npz", 6)
    ended = cli("build", "--config", "two", "--out", "three")
    assert "name data with --edge-data" in ended.err
    assert cli("build", "--config", "two", "--edge-data", "npz:edges.npz", "--out", "three").code == 0


def test_data_given_in_python_are_used_on_purpose(run: Path) -> None:
    write_rows("rows.npz", 1)
    with pytest.raises(InterbasisError, match="are not the data"):
        open_run(run).features(top=1)
    rows = numpy.load("rows.npz")["x"]
    network = interbasis.mlp.load("net.safetensors")
    assert open_run(run, network, torch.tensor(rows)).features(top=1).layers


def test_a_prompt_takes_no_data(cli: Cli, run: Path) -> None:
    ended = cli("trace", run, "--prompt", "words", "--data", "npz:rows.npz")
    assert ended.code == 2
    assert "where a sample is taken" in ended.err
