"""Files are the user's own, and nothing is left of writing them."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from command_line import Cli
from commands_at_once import Command
from interbasis.base.files import host, write_atomically, write_text_atomically

KILLED_WHILE_WRITING = """
import sys, time
from pathlib import Path
from interbasis.base.files import write_atomically
def write(path):
    path.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
write_atomically(Path(sys.argv[1]), write)
"""


@pytest.fixture
def umask() -> Iterator[Callable[..., int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_every_file_of_a_run_has_the_mode_that_the_umask_leaves(
    cli: Cli,
    tmp_path: Path,
    small_addition: Path,
    umask: Callable[..., int],
    mask: int,
    expected: int,
) -> None:
    umask(mask)
    run = tmp_path / "run"
    assert cli("build", f"modadd:{small_addition}", "--out", run).code == 0
    assert cli("ablate", run, "--tolerance", "1").code == 0
    files = {path.name: mode(path) for path in run.iterdir()}
    assert len(files) == 5  # the graph, the result with its tensors, the signature
    assert set(files.values()) == {expected}, files


def test_a_tensor_file_of_another_library_has_it_too(tmp_path: Path, umask: Callable[..., int]) -> None:
    umask(0o027)
    write_atomically(tmp_path / "x", lambda path: save_file({"x": torch.zeros(2)}, path))
    assert mode(tmp_path / "x") == 0o640


def test_the_next_write_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path / "a.svg")], stdout=subprocess.PIPE
    )
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"writing\n"
    write_text_atomically(tmp_path / "b.svg", "while it is written")
    assert len(list(tmp_path.iterdir())) == 2
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    write_text_atomically(tmp_path / "c.svg", "afterwards")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.svg", "c.svg"]


def test_temporary_files_of_other_machines_and_programs_are_left_alone(tmp_path: Path) -> None:
    names = [".a.svg.elsewhere-99999999-abc.tmp", ".mine.tmp", ".a.b.tmp", f".a.svg.{host()}-1-abc.tmp"]
    for name in names:
        (tmp_path / name).mkdir()
    old = tmp_path / ".b.svg.elsewhere-7-abc.tmp"
    old.mkdir()
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    write_text_atomically(tmp_path / "b.svg", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "b.svg"])


def test_figures_that_were_killed_leave_nothing_after_the_next_time(
    cli: Cli, tmp_path: Path, small_addition: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "figures"
    assert cli("build", f"modadd:{small_addition}", "--out", run).code == 0
    killed = Command("figures", run, "--format", "svg", "--out", out)
    deadline = time.monotonic() + 60
    while not list(out.glob(".*.tmp")):
        assert time.monotonic() < deadline
    killed.kill()
    assert list(out.glob(".*.tmp"))
    assert cli("figures", run, "--format", "svg", "--out", out).code == 0
    assert not list(out.glob(".*"))
