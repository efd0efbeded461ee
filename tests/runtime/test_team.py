"""Several processes of torchrun end with the bits of one, and a killed one leaves work that is resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import interbasis
from interbasis import InterbasisError
from interbasis.data import Batches
from interbasis.graph.store import tensors_of
from interbasis.runtime.team import ALONE, Team, team_checkpoints
from runtime.team_builds import BUILDS, build_all

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def torchrun(processes: int, *arguments: object, **options) -> subprocess.Popen:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", processes, *arguments]
    return subprocess.Popen(
        [*map(str, command)],
        env=environment | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen) -> str:
    """Its standard output, if all went well."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def assert_same_graph(one: Path, other: Path) -> None:
    a, b = (tensors_of(interbasis.load(folder)) for folder in (one, other))
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def test_builds_have_the_bits_of_one_process(tmp_path):
    build_all(tmp_path / "one")
    ended(torchrun(3, TESTS / "runtime/team_builds.py", tmp_path / "three"))
    for name in BUILDS:
        assert_same_graph(tmp_path / "one" / name, tmp_path / "three" / name)


def test_the_commands_give_the_results_of_one_process(tmp_path, cli, small_addition):
    build = ["build", f"modadd:{small_addition}", "--threads", 1, "--out"]
    assert cli(*build, tmp_path / "one").code == 0
    ended(torchrun(2, "-m", "interbasis", *build, tmp_path / "two"))
    assert_same_graph(tmp_path / "one", tmp_path / "two")
    assert not (tmp_path / "two/.resume").exists()
    for command in (["ablate", "--edges", "--nodes", "--intervals", "--tolerance", 0.5], ["curves"]):
        name, *options = command
        assert cli(name, tmp_path / "one", *options).code == 0
        printed = ended(torchrun(2, "-m", "interbasis", name, tmp_path / "two", *options))
        assert printed.count("metric") <= 2, "one process prints"
        file = {"ablate": "ablation", "curves": "curves"}[name]
        assert (tmp_path / f"one/{file}.json").read_text() == (tmp_path / f"two/{file}.json").read_text()
    assert not (tmp_path / "two/.resume").exists()


def test_a_killed_process_ends_the_others_and_the_next_start_resumes(tmp_path, cli, small_addition):
    build = ["build", f"modadd:{small_addition}", "--threads", 1, "--out"]
    assert cli(*build, tmp_path / "one").code == 0
    run = tmp_path / "two"
    process = torchrun(2, "-m", "interbasis", *build, run, INTERBASIS_SAVE_EVERY="0")
    state = run / ".resume/build.2/1"
    until = time.monotonic() + 120
    while not list(state.glob("*.safetensors")) and time.monotonic() < until:
        time.sleep(0.01)
    victims = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(victims[-1]), signal.SIGKILL)
    began = time.monotonic()
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert time.monotonic() - began < 30
    assert not (run / "config.json").exists(), "the build was to be killed before its end"
    with_one = cli(*build, run)
    assert with_one.code == 2
    assert "begun by 2 processes, not one process" in " ".join(with_one.err.split())
    ended(torchrun(2, "-m", "interbasis", *build, run))
    assert_same_graph(tmp_path / "one", run)


class Two(Team):
    size = 2


def test_unfinished_work_of_another_number_of_processes_is_refused(tmp_path):
    team_checkpoints(tmp_path, "build", {"a": 1}, Two()).begin()
    assert (tmp_path / ".resume/build.2/0/settings.json").is_file()
    with pytest.raises(InterbasisError, match="begun by 2 processes, not one process; start as many"):
        team_checkpoints(tmp_path, "build", {"a": 1}, ALONE)
    team_checkpoints(tmp_path, "build", {"a": 1}, ALONE, restart=True)
    assert not (tmp_path / ".resume/build.2").exists()


@pytest.mark.parametrize(("samples", "multiple"), [(50, 1), (50, 4), (5, 1), (16, 3)])
def test_blocks_hold_every_sample_once(samples, multiple):
    data = torch.arange(samples)[:, None]
    for whole in (Batches(data), Batches([data[:7], data[7:]] if samples > 7 else [data])):
        blocks = whole.divided(ALONE, 16).blocks(multiple)
        assert len(blocks) == 16
        rows = [inputs for block in blocks for _, inputs in block.chunks(3)]
        assert torch.equal(torch.cat(rows), data)
        assert all(block.offset % multiple == 0 or block.offset == samples for block in blocks)
        assert {block.fingerprint() for block in blocks} == {whole.fingerprint()}
