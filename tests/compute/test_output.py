"""Commands whose standard streams are closed, full or without Unicode, or whose memory is limited."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Cli
from interbasis.base.output import is_out_of_memory
from interbasis.cli import main


def interbasis(*arguments: object, shell: str = "") -> subprocess.CompletedProcess[bytes]:
    """A command as a shell starts it, with redirections."""
    words = " ".join(map(str, [sys.executable, "-m", "interbasis", *arguments]))
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(["bash", "-c", f"{words} {shell}"], capture_output=True, env=variables, check=False)


@pytest.fixture(scope="module")
def command(small_addition: Path) -> list[str]:
    return ["build", f"modadd:{small_addition}", "--out"]


@pytest.mark.parametrize("shell", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_closed_and_full_streams_do_not_keep_a_command_from_its_work(
    tmp_path: Path, command: list[str], shell: str
) -> None:
    ended = interbasis(*command, tmp_path / "run", "--verbose", shell=shell)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run/config.json").is_file()
    assert (b"samples" in ended.stdout) == (">&-" not in shell.removeprefix("2>&-"))


def test_a_result_that_cannot_be_printed_is_one_sentence(tmp_path: Path, command: list[str]) -> None:
    ended = interbasis(*command, tmp_path / "run", shell="> /dev/full")
    assert ended.returncode == 2
    assert ended.stderr == (
        b"error: could not write to standard output (No space left on device); what the command stores in "
        b"files is there\n"
    )
    assert (tmp_path / "run/config.json").is_file()
    assert interbasis("--help", shell="> /dev/full").stderr == ended.stderr


@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", "90 % of E2"), ("latin-1", "90 % of Ê²"), ("cp1252", "90 % of Ê²")]
)
def test_terminals_without_unicode_show_what_they_can(
    cli: Cli,
    tmp_path: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
    expected: str,
) -> None:
    assert cli(*command, tmp_path / "run").code == 0
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    for run, code in ((str(tmp_path / "run"), 0), ("no/run/…Ωж", 2)):
        with pytest.raises(SystemExit) as ended:
            main(["show", run])
        assert ended.value.code == code
    text = out.buffer.getvalue().decode(encoding)
    assert "attn_in.0 -> mlp_in.0" in text
    assert expected in text
    assert "?" not in text
    assert "no/run/" in err.buffer.getvalue().decode(encoding)


def test_memory_that_is_too_small_for_pytorch_is_one_sentence(tmp_path: Path, command: list[str]) -> None:
    for limit in (350_000, 420_000):  # kilobytes; beyond them PyTorch raises, or ends the process
        words = " ".join([sys.executable, "-m", "interbasis", *command, str(tmp_path / "run")])
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(
            ["bash", "-c", f"ulimit -v {limit}; {words}"], capture_output=True, env=variables, check=False
        )
        assert ended.returncode == 2
        assert ended.stderr == (
            b"error: PyTorch does not fit into the memory that this process may use; raise the limit, as "
            b"with ulimit -v unlimited\n"
        )


LIMITED = """
import resource, sys
import interbasis.lib.build, interbasis.graph.named_models
from interbasis.cli import main
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20,) * 2)
main(sys.argv[1:])
"""


def test_memory_that_runs_out_in_the_work_is_one_sentence(tmp_path: Path) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("requires /proc")
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, "build", "modadd", "--threads", "1", "--out", str(tmp_path / "run")],
        capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    assert ended.stderr == (
        b"error: the memory ran out; limit it with --memory where the command has it, or use fewer samples\n"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("shapes do not match"), False),
    ],
)
def test_errors_that_say_that_memory_ran_out_are_recognised(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
