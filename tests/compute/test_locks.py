"""Two commands on one run at the same time: each gives what it gives alone, or is refused in one sentence."""

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from command_line import Cli, Ended
from commands_at_once import Paused
from graphs import assert_same_graph
from interbasis import InterbasisError, open_run
from interbasis.analysis.run_record import read_results
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import load_result
from interbasis.base.files import host
from interbasis.compute import locks
from interbasis.compute.locks import Holder, building, only_task, working
from interbasis.graph.store import load
from pairs import Pairs, run_pairs

IN_USE = (
    r"error: \S+ is in use by {0} \(process \d+ on \S+, since [-0-9]+ [:0-9]+\)( and {0} \([^()]*\))*; "
    r"wait until that has ended, or use another folder"
)
ABLATE = ("--tolerance", "1")


@pytest.fixture(autouse=True)
def every_state_kept(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")


@pytest.fixture
def build(small_addition: Path, tmp_path: Path) -> Callable[..., tuple[Any, ...]]:
    """The arguments of a build of a small model."""
    model = f"modadd:{small_addition}"
    return lambda *options, run=tmp_path / "run": ("build", model, "--threads", 1, *options, "--out", run)


@pytest.fixture
def run(cli: Cli, build: Callable[..., tuple[Any, ...]], tmp_path: Path) -> Path:
    assert cli(*build()).code == 0
    return tmp_path / "run"


def refused(ended: Ended, task: str) -> bool:
    return ended.code == 2 and re.fullmatch(IN_USE.format(task), ended.err.strip()) is not None


@pytest.mark.parametrize("options", [("--basis", "pca"), ("--basis", "pca", "--overwrite"), ()])
def test_a_second_build_is_refused_while_the_first_one_works(
    cli: Cli,
    tmp_path: Path,
    build: Callable[..., tuple[Any, ...]],
    options: tuple[str, ...],
) -> None:
    first = Paused(tmp_path / "flag", *build())
    second = cli(*build(*options))
    assert refused(second, "build"), second
    ended = first.go_on()
    assert ended.code == 0, ended.err
    assert cli(*build(run=tmp_path / "alone")).code == 0
    assert_same_graph(load(tmp_path / "run"), load(tmp_path / "alone"))
    assert not list((tmp_path / "run").glob(".*"))


def test_builds_and_the_same_stage_are_refused_while_a_stage_works(
    cli: Cli, tmp_path: Path, run: Path, build: Callable[..., tuple[Any, ...]]
) -> None:
    before = load(run)
    first = Paused(tmp_path / "flag", "ablate", run, *ABLATE)
    for command in (build("--basis", "pca", "--overwrite"), ("ablate", run, "--tolerance", "2")):
        ended = cli(*command)
        assert refused(ended, "ablate"), ended
    with pytest.raises(InterbasisError, match="is in use by ablate"):
        before.save(run)
    assert cli("curves", run).code == 0
    assert cli(*build()).code == 0  # which only opens what is there
    assert first.go_on().code == 0
    stored = load_result(run, AblationResult)
    assert cli("ablate", run, *ABLATE).code == 0
    assert stored == load_result(run, AblationResult)
    assert cli(*build("--basis", "pca", "--overwrite")).code == 0
    assert not list(run.glob(".*"))


def test_stages_are_refused_while_a_run_is_built_again(
    cli: Cli, tmp_path: Path, run: Path, build: Callable[..., tuple[Any, ...]]
) -> None:
    first = Paused(tmp_path / "flag", *build("--basis", "pca", "--overwrite"))
    for command in ("ablate", "curves", "features", "controls", "modules", "trace --sample 1"):
        name, *options = command.split()
        ended = cli(name, run, *options)
        assert refused(ended, "build"), ended
    assert first.go_on().code == 0
    assert {path.name for path in run.glob("*.json")} == {"config.json", "signature.json"}


def test_shards_of_one_build_share_its_folder_and_exclude_other_builds(
    cli: Cli, tmp_path: Path, build: Callable[..., tuple[Any, ...]]
) -> None:
    first = Paused(tmp_path / "flag", *build("--shard", "1/2"))
    assert cli(*build("--shard", "2/2")).code == 0
    assert refused(cli(*build("--shard", "1/2")), "shard 1 of 2")
    for options in (("--shard", "2/2", "--basis", "pca"), ("--shard", "2/3"), ()):
        ended = cli(*build(*options))
        assert refused(ended, "build"), ended
    run = tmp_path / "run"
    assert refused(cli("merge", run / "shards", "--out", run), "build")
    assert first.go_on().code == 0
    for _ in range(9):
        if (run / "config.json").exists():
            break
        assert cli("merge", run / "shards", "--out", run).code == 0
        for number in (1, 2):
            cli(*build("--shard", f"{number}/2"))
    assert cli(*build(run=tmp_path / "alone")).code == 0
    assert_same_graph(load(run), load(tmp_path / "alone"))
    assert not list(run.glob(".*"))


def test_a_killed_command_holds_nothing(cli: Cli, tmp_path: Path, run: Path) -> None:
    killed = Paused(tmp_path / "flag", "ablate", run, *ABLATE)
    killed.kill()
    assert (run / ".ablate.lock").exists()
    assert cli("ablate", run, *ABLATE).code == 0
    assert not list(run.glob(".*"))


def left_by(run: Path, **fields: str) -> Path:
    """A lock of a process that is not on this machine."""
    values = {"host": "elsewhere", "boot": "another kernel"} | fields
    holder = Holder(lock="y", group="x", task="build", process=1, since="2026-01-01 00:00:00", **values)
    run.mkdir(exist_ok=True)
    (run / ".graph.lock").write_text(holder.to_json() + "\n")
    return run / ".graph.lock"


def test_a_lock_from_before_a_reboot_holds_nothing(tmp_path: Path) -> None:
    left_by(tmp_path, host=host())
    began = time.monotonic()
    with building(tmp_path):
        assert time.monotonic() - began < 2
    assert not list(tmp_path.iterdir())


def test_a_lock_of_another_machine_holds_while_it_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SECONDS_WITHOUT_BEAT", 0.5)
    path = left_by(tmp_path)
    beating = Thread(target=lambda: [os.utime(path) or time.sleep(0.02) for _ in range(40)])
    beating.start()
    with (
        pytest.raises(InterbasisError, match=r"in use by build \(process 1 on elsewhere"),
        building(tmp_path),
    ):
        pass
    beating.join()
    assert path.exists()
    with building(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_is_touched_as_long_as_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "SECONDS_BETWEEN_BEATS", 0.05)
    with building(tmp_path):
        os.utime(tmp_path / ".graph.lock", (0, 0))
        deadline = time.monotonic() + 20
        while (tmp_path / ".graph.lock").stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (tmp_path / ".graph.lock").stat().st_mtime > 0


def test_threads_exclude_each_other_and_a_thread_does_not_exclude_itself(tmp_path: Path) -> None:
    refusals = []

    def other() -> None:
        try:
            with working(tmp_path, "ablate"):
                pass
        except InterbasisError as error:
            refusals.append(str(error))

    with building(tmp_path), building(tmp_path), working(tmp_path, "curves"), only_task(tmp_path, "x"):
        thread = Thread(target=other)
        thread.start()
        thread.join()
    assert len(refusals) == 1
    with working(tmp_path, "ablate"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks."""

    def flock(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_without_locks_a_warning_says_so(
    cli: Cli, build: Callable[..., tuple[Any, ...]], tmp_path: Path, no_locks: None
) -> None:
    ended = cli(*build())
    assert ended.code == 0
    assert ended.err.startswith(
        f"warning: the file system of {tmp_path / 'run'} has no locks (No locks available)"
    )


def test_a_result_is_not_stored_for_a_graph_that_was_replaced_meanwhile(
    cli: Cli, build: Callable[..., tuple[Any, ...]], run: Path, no_locks: None
) -> None:
    opened = open_run(run)
    rebuilt: list[Any] = []

    def rebuild(phase: str, done: int, total: int) -> None:
        if not rebuilt:
            rebuilt.append(cli(*build("--basis", "pca", "--overwrite")))

    with pytest.raises(InterbasisError, match=r"built again.*nothing is stored"):
        replace(opened, progress=rebuild).ablate(tolerance=1.0)
    assert rebuilt[0].code == 0
    assert not (run / "ablation.json").exists()
    assert not (run / "ablation.safetensors").exists()


def test_stages_of_a_graph_that_was_replaced_are_refused_at_once(
    cli: Cli, build: Callable[..., tuple[Any, ...]], run: Path
) -> None:
    opened = open_run(run)
    assert cli("ablate", run, *ABLATE).code == 0
    assert read_results(opened).ablation is not None
    assert cli(*build("--basis", "pca", "--overwrite")).code == 0
    assert cli("ablate", run, *ABLATE).code == 0
    for stage in (opened.ablate, opened.curves, opened.features, opened.controls, opened.modules):
        with pytest.raises(InterbasisError, match="was built again after"):
            stage()
    with pytest.raises(InterbasisError, match="was built again after"):
        opened.trace(sample=1)
    assert opened.stored(AblationResult) is None  # those of the new graph are not taken for its own
    assert read_results(opened).ablation is None
    assert read_results(open_run(run)).ablation is not None


def test_pairs_of_commands_give_right_results_or_one_refusal(tmp_path: Path, small_addition: Path) -> None:
    """As in tests/slow/test_pairs.py."""
    chosen = [("ablate", "build pca", 0.05), ("build gib", "build pca", 0.1)]
    assert run_pairs(Pairs(small_addition, tmp_path, seconds=0.005), chosen).total() == 2
