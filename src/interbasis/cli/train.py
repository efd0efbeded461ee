"""`interbasis train`: the models of the paper, trained here."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from interbasis.cli import common


def train(
    task: Annotated[Literal["modadd", "cifar10"], Parameter(help="What the model learns.")],
    /,
    *,
    seed: Annotated[int, Parameter(help="Seed of the initial weights and of the order of the data.")] = 0,
    out: Annotated[
        Path | None, Parameter(help="Checkpoint to write; TASK-seedN.safetensors without it.")
    ] = None,
    data: Annotated[str | None, Parameter(help="cifar10 alone: where the images are, cifar10:PATH.")] = None,
    steps: Annotated[int | None, Parameter(help="modadd alone: at most this many steps.")] = None,
    epochs: Annotated[int | None, Parameter(help="cifar10 alone: passes over the images.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Train a model of the paper and write it as a safetensors checkpoint.

    A run that was killed goes on where it was when the same command is given again.
    Example: interbasis train modadd --seed 0 --out modadd.safetensors
    """
    from safetensors import safe_open

    from interbasis.runtime.errors import InterbasisError
    from interbasis.runtime.files import check_writable

    path = out or Path(f"{task}-seed{seed}.safetensors")
    if path.exists():
        raise InterbasisError(f"{path} exists already; name another file, or delete it to train anew")
    if seed < 0:
        raise InterbasisError(f"the seed is at least 0, not {seed}")
    foreign = {"--data": data, "--epochs": epochs} if task == "modadd" else {"--steps": steps}
    for option, value in foreign.items():
        if value is not None:
            raise InterbasisError(f"{option} is not an option of train {task}")
    for option, value in {"--steps": steps, "--epochs": epochs}.items():
        if value is not None and value < 1:
            raise InterbasisError(f"{option} is at least 1, not {value}")
    check_writable(path.parent)
    with _live_line() as line:
        if task == "modadd":
            _modadd(seed, steps, path, line)
        else:
            _cifar10(seed, epochs, data or "cifar10", path, line)
    with safe_open(path, "pt") as file:
        import json

        found = json.loads(file.metadata()["training"])
    common.show({"checkpoint": str(path), "task": task, "seed": seed} | found, as_json, _lines)


def _modadd(seed: int, steps: int | None, path: Path, line: "_Line") -> None:
    from interbasis.training.modadd import Recipe, train

    recipe = Recipe(seed=seed) if steps is None else Recipe(seed=seed, steps=steps)
    train(recipe, path, lambda step, loss, accuracy: line(step, recipe.steps, loss, accuracy))


def _cifar10(seed: int, epochs: int | None, spec: str, path: Path, line: "_Line") -> None:
    from interbasis.run.specs import open_data
    from interbasis.runtime.errors import InterbasisError
    from interbasis.training.cifar10 import Recipe, train

    if not spec.startswith("cifar10"):
        raise InterbasisError(f"train cifar10 takes images as cifar10 or cifar10:PATH, not {spec!r}")
    recipe = Recipe(seed=seed) if epochs is None else Recipe(seed=seed, epochs=epochs)
    train(recipe, (open_data(spec, "train"), open_data(spec, "test")), path, line)


class _Line:
    """The loss as it falls, rewritten in place on a terminal's standard error."""

    def __init__(self, shown: bool):
        self.shown = shown
        self.began: tuple[float, int] | None = None

    def __call__(self, step: int, steps: int, loss: float, accuracy: float) -> None:
        if not self.shown:
            return
        now = time.monotonic()
        start, first = self.began or (now, step)
        self.began = (start, first)
        rate = (step - first) / (now - start) if now > start else 0.0
        speed = f" · {rate:,.0f} steps/s · {(steps - step) / rate:,.0f} s at most" if rate else ""
        text = f"step {step:,} of {steps:,} · loss {loss:.3g} · test accuracy {accuracy:.2%}{speed}"
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


@contextmanager
def _live_line() -> Iterator[_Line]:
    shown = sys.stderr.isatty()
    try:
        yield _Line(shown)
    finally:
        if shown:
            sys.stderr.write("\n")


def _lines(result: dict[str, Any]) -> list[str]:
    return [
        f"{result['task']}, seed {result['seed']}: test accuracy {result['test_accuracy']:.2%}, "
        f"{result['steps_per_second']:,.0f} steps per second · saved in {result['checkpoint']}"
    ]
