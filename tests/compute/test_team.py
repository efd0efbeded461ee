"""Several processes of torchrun end with the bits of one, and a killed one leaves work that is resumed."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import Cli
from compute.team_builds import BUILDS, build_all, run_commands
from compute.torchrun import TESTS, children, ended, torchrun
from graphs import assert_same_graph
from interbasis import InterbasisError
from interbasis.compute.team import ALONE, Team, team_checkpoints
from interbasis.data import Batches
from interbasis.graph import store
from tiny_models import random_model, tokens

pytestmark = pytest.mark.usefixtures("one_thread", "in_blocks")


def test_several_processes_give_the_results_of_one(tmp_path: Path, small_addition: Path) -> None:
    """Builds of shared models, then the commands: all in one start of three processes, for its seconds."""
    build_all(tmp_path / "one")
    run_commands(tmp_path / "one/run", small_addition)
    printed = ended(torchrun(3, TESTS / "compute/team_builds.py", tmp_path / "three", small_addition))
    for name in [*BUILDS, "run"]:
        assert_same_graph(tmp_path / "one" / name, tmp_path / "three" / name)
    for name in ("ablation", "curves", "features", "examples"):
        one, three = ((tmp_path / folder / f"run/{name}.json").read_text() for folder in ("one", "three"))
        assert one == three
    assert printed.count("Interaction edges") == 1, "one process prints"
    assert not (tmp_path / "three/run/.resume").exists()


def test_a_killed_process_ends_the_others_and_the_next_start_resumes(
    tmp_path: Path, cli: Cli, small_addition: Path
) -> None:
    build = ["build", f"modadd:{small_addition}", "--threads", 1, "--out"]
    assert cli(*build, tmp_path / "one").code == 0
    run = tmp_path / "two"
    command = [TESTS / "compute/in_blocks.py", *build, run]
    process = torchrun(2, *command, INTERBASIS_SAVE_EVERY="0")
    state = run / ".resume/build.2/1"
    until = time.monotonic() + 120
    while not list(state.glob("*.safetensors")) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(children(process)[-1], signal.SIGKILL)
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert " ".join(err.split()).count("has ended; run the same command again to resume") == 1
    assert time.monotonic() - began < 30
    assert not (run / "config.json").exists(), "the build was to be killed before its end"
    with_one = cli(*build, run)
    assert with_one.code == 2
    assert "by 2 processes, not one" in " ".join(with_one.err.split())
    ended(torchrun(2, *command))
    assert_same_graph(tmp_path / "one", run)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_build_to_an_error_survives_the_kill_of_either_process(
    tmp_path: Path, cli: Cli, victim: int
) -> None:
    """Killed among the rounds of edges; the scheme that was chosen gives the same bits in one process."""
    random_model("gpt2", torch.float32).save_pretrained(tmp_path / "model")
    tokens(160, 8).numpy().astype(np.uint16).tofile(tmp_path / "tokens.uint16")
    run, data = tmp_path / "two", f"tokens:{tmp_path / 'tokens.uint16'},context=8"
    build = ["build", f"hf:{tmp_path / 'model'}", "--data", data, "--error", "3%", "--out", run]
    command = [TESTS / "compute/in_blocks.py", *build]
    process = torchrun(2, *command, INTERBASIS_SAVE_EVERY="0")
    until = time.monotonic() + 120
    while not list(run.glob(".resume/build.2/*/edges*")) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(children(process)[victim], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    ended(torchrun(2, *command))
    precision = store.load(run).provenance.precision
    assert 0 < precision.reached <= 0.03
    assert cli("build", "--config", run, "--out", tmp_path / "one").code == 0
    assert_same_graph(tmp_path / "one", run)
    assert not (run / ".resume").exists()


class Two(Team):
    size = 2


def test_unfinished_work_of_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    team_checkpoints(tmp_path, "build", {"a": 1}, Two()).begin()
    assert (tmp_path / ".resume/build.2/0/settings.json").is_file()
    with pytest.raises(InterbasisError, match=r"by 2 processes, not one .*start"):
        team_checkpoints(tmp_path, "build", {"a": 1}, ALONE)
    team_checkpoints(tmp_path, "build", {"a": 1}, ALONE, restart=True)
    assert not (tmp_path / ".resume/build.2").exists()


@pytest.mark.parametrize(("samples", "multiple"), [(50, 1), (50, 4), (5, 1), (16, 3)])
def test_blocks_hold_every_sample_once(samples: int, multiple: int) -> None:
    data = torch.arange(samples)[:, None]
    for whole in (Batches(data), Batches([data[:7], data[7:]] if samples > 7 else [data])):
        blocks = whole.blocks(16, multiple)
        assert len(blocks) == 16
        rows = [inputs for block in blocks for _, inputs in block.chunks(3)]
        assert torch.equal(torch.cat(rows), data)
        assert all(block.offset % multiple == 0 or block.offset == samples for block in blocks)
        assert {block.fingerprint() for block in blocks} == {whole.fingerprint()}
