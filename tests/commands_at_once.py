"""Commands in processes that have imported everything before they begin, so that they overlap."""

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from command_line import Ended, run_command

CONTEXT = multiprocessing.get_context("forkserver")
STAGES = ("build", "ablate", "curves", "features", "controls", "modules", "trace", "steer")
CONTEXT.set_forkserver_preload([
    "commands_at_once", *(f"interbasis.cli.{name}" for name in STAGES),
    *(f"interbasis.analysis.stages.{name}" for name in STAGES), *(f"interbasis.{name}" for name in (
        "fit.build", "features.analysis", "ablation.search", "ablation.controls", "ablation.curves",
        "communities.modules", "communities.vertex_cuts", "traces.trace", "traces.steering", "run.specs",
        "run.prompts", "run.summary", "models.modadd", "data.modadd", "terminal.summary",
    )),
])  # fmt: skip
FILE_OPERATIONS = ("open", "os.", "shutil.", "tempfile.", "fcntl.")
"""Events of Python's audit hooks at which a command that is slowed down may wait."""
SECONDS_TO_WAIT = 120


class Command:
    """A command in another process, begun at once."""

    began: float
    ended: float
    """When it began and ended, in seconds of the system's clock."""

    def __init__(
        self, *arguments: object, wait: float = 0.0, pause: Path | None = None, slow: "Slow | None" = None
    ) -> None:
        self._answer, answer = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(
            target=_run,
            args=([str(word) for word in arguments], wait, pause, slow, dict(os.environ), answer),
            daemon=True,
        )
        self._process.start()
        answer.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def end(self) -> Ended:
        """How it ended."""
        assert self._answer.poll(SECONDS_TO_WAIT), "the command takes too long"
        self.began, self.ended, ended = self._answer.recv()
        self._process.join()
        return ended

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _run(
    arguments: list[str], wait: float, pause: Path | None, slow: "Slow | None", environment: dict[str, str],
    answer: Any,
) -> None:  # fmt: skip
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    if pause is not None:
        _pause_at_first_state(pause)
    time.sleep(wait)
    if slow is not None:
        slow.install()
    began = time.monotonic()
    ended = run_command(*arguments)
    answer.send((began, time.monotonic(), ended))


def _pause_at_first_state(flag: Path) -> None:
    """Wait in the middle of the work, until the file that says so is removed."""
    from interbasis.compute.checkpoints import Checkpoint

    save: Callable[..., None] = Checkpoint.save

    def paused(*arguments: object, **named: object) -> None:
        save(*arguments, **named)
        if not flag.with_suffix(".seen").exists():
            flag.touch()
            flag.with_suffix(".seen").touch()
            end = time.monotonic() + SECONDS_TO_WAIT
            while flag.exists() and time.monotonic() < end:
                time.sleep(0.01)

    Checkpoint.save = paused  # type: ignore[method-assign]


class Slow(NamedTuple):
    """Random waits before file operations in a folder, so that those of two commands come in any order."""

    folder: Path
    seed: int
    seconds: float
    """On average."""

    def install(self) -> None:
        draw, place = random.Random(self.seed), str(self.folder)

        def wait(event: str, arguments: tuple[object, ...]) -> None:
            if event.startswith(FILE_OPERATIONS) and place in str(arguments[:2]):
                time.sleep(draw.expovariate(1 / self.seconds))

        sys.addaudithook(wait)


class Paused(Command):
    """A command that has come to the middle of its work, and goes on when it is told to."""

    def __init__(self, flag: Path, *arguments: object) -> None:
        self.flag = flag
        flag.with_suffix(".seen").unlink(missing_ok=True)
        super().__init__(*arguments, pause=flag)
        begun = time.monotonic()
        while not flag.exists():
            assert time.monotonic() < begun + SECONDS_TO_WAIT, "it does not come to its first state"
            assert not self._answer.poll(), self._answer.recv()
            time.sleep(0.01)

    def go_on(self) -> Ended:
        self.flag.unlink()
        return self.end()
