"""The whole chain, killed with SIGKILL at random moments, ends with the folder of an uninterrupted one."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import run_command
from interbasis_studies.training.modadd import Recipe, initial_weights

Command = Callable[[Path], list[str]]
"""The arguments of a command that works on a run's folder."""


@pytest.fixture(autouse=True)
def one_thread_and_every_state_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def chain(model: str, *options: str, ablate: tuple[str, ...] = ()) -> list[Command]:
    """Build, ablate, features."""
    return [
        lambda run: ["build", model, *options, "--out", str(run)],
        lambda run: ["ablate", str(run), *ablate],
        lambda run: ["features", str(run), "--top", "6", "--ends", "3", "--bands", "2", "--per-band", "2"],
    ]


def here(arguments: list[str]) -> None:
    """In this process, to the end."""
    ended = run_command(*arguments)
    assert ended.code == 0, ended.err


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "interbasis", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def files(run: Path) -> dict[Path, int]:
    """What is in a folder now, with the times of the last writes."""
    found = {}
    for folder, _, names in os.walk(run):  # which minds no folder that is gone since it was listed
        for name in names:
            path = Path(folder, name)
            with suppress(FileNotFoundError):
                found[path] = path.stat().st_mtime_ns
    return found


def watch(process: subprocess.Popen[bytes], run: Path, writes: float) -> int:
    """Wait until a process has been seen to write so often, or has ended; how often that was."""
    before, seen = files(run), 0
    while process.poll() is None and seen < writes:
        now = files(run)
        seen += now != before
        before = now
        time.sleep(0.005)
    return seen


def writes_and_seconds(command: list[str], run: Path) -> tuple[int, float]:
    """Of a process that is left alone: how often it is seen to write, and how long it takes."""
    began = time.monotonic()
    process = start(command)
    writes = watch(process, run, float("inf"))
    assert process.wait() == 0
    return writes, time.monotonic() - began


def kill(command: list[str], run: Path, writes: float, rng: random.Random) -> str:
    """Start it, kill it some time after it has written so often, and say what it was at."""
    process = start(command)
    seen = watch(process, run, writes)
    try:
        process.wait(timeout=rng.uniform(0, 0.1) if writes else rng.uniform(0, 3))
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    if process.returncode == 0:
        return "too late"
    assert process.returncode == -9
    return "within the work" if seen else "before any work was kept"


def killed(
    commands: list[Command], run: Path, kills: list[int], writes: list[int], seed: int
) -> Counter[str]:
    """Every command until it has been killed so often, spread over its writes, and then to its end."""
    rng, found = random.Random(seed), Counter[str]()
    owed = 0
    for command, wanted, most in zip(commands, kills, writes, strict=True):
        arguments, owed, ended = command(run), owed + wanted, False
        places = sorted(rng.uniform(0, 0.9 * most) for _ in range(owed))
        for behind, place in zip([0.0, *places], places, strict=False):
            what = kill(arguments, run, round(place - behind), rng)
            found[what] += 1
            if ended := what == "too late":
                break
            owed -= 1
        if not ended:
            here(arguments)
    return found


def same(one: Path, other: Path) -> None:
    """The same files with the same content, but for timings: tensors bit for bit."""
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())
    for path in one.iterdir():
        if path.suffix == ".safetensors":
            a, b = load_file(path), load_file(other / path.name)
            assert a.keys() == b.keys()
            assert [name for name in a if not torch.equal(a[name], b[name])] == []
        else:
            contents = [json.loads((run / path.name).read_text()) for run in (one, other)]
            for content in contents:
                for timings in ("timings", "processor_timings"):
                    content.get("provenance", {}).pop(timings, None)
            assert contents[0] == contents[1], path.name


def small_model(folder: Path) -> str:
    save_file(initial_weights(Recipe(p=37, width=32, heads=2, hidden=64)), folder / "small.safetensors")
    return f"modadd:{folder}/small.safetensors"


def test_a_kill_in_every_command(tmp_path: Path) -> None:
    commands = chain(
        small_model(tmp_path), "--edge-group", "8", ablate=("--edges", "--nodes", "--tolerance", "1")
    )
    for command in commands:
        here(command(tmp_path / "whole"))
    found = killed(commands, tmp_path / "parts", [1, 1, 1], [4, 20, 2], seed=0)
    assert found["within the work"] >= 2
    same(tmp_path / "whole", tmp_path / "parts")


def survives(tmp_path: Path, commands: list[Command], report: Callable[[str], None]) -> None:
    """At least 20 kills over a chain of commands, as many to each as it has of the time.

    More are planned, for a command may have ended before the last of them comes.
    """
    measured = [writes_and_seconds(command(tmp_path / "whole"), tmp_path / "whole") for command in commands]
    writes, seconds = zip(*measured, strict=True)
    shares = [max(3, round(24 * one / sum(seconds))) for one in seconds]
    shares[seconds.index(max(seconds))] += 24 - sum(shares)
    began = time.monotonic()
    found = killed(commands, tmp_path / "parts", shares, list(writes), seed=20)
    report(
        f"uninterrupted {[round(one) for one in seconds]} s with {list(writes)} writes seen, kills {shares}: "
        f"{dict(found)}, {time.monotonic() - began:.0f} s"
    )
    assert found.total() - found["too late"] >= 20
    assert found["within the work"] >= 12
    same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_twenty_kills_of_modular_addition(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    commands = chain("modadd", ablate=("--edges", "--nodes", "--data", "modadd,samples=500"))
    survives(tmp_path, commands, lambda text: record_property("kills", text) or print(text))


@pytest.mark.slow
def test_twenty_kills_of_a_language_model(
    tmp_path: Path, shared: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = shared / "tinystories-gpt-280k"
    data = f"tokens:{folder}/tokens_train.uint16,context=32,samples=10"
    commands = chain(f"hf:{folder},blocks=1-1", "--data", data, "--edge-group", "8")
    survives(tmp_path, commands, lambda text: record_property("kills", text) or print(text))
