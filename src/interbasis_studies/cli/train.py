"""`interbasis train`: the models of the paper, trained here."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field, JsonValue

from interbasis.base.records import Record
from interbasis.cli import common

_Line = Callable[[int, int, float, float], None]
"""Called as line(step, steps in all, training loss, test accuracy)."""


class TrainRequest(Record):
    """Request for a training run."""

    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights and of the order of the data."""
    out: Path | None = None
    """Checkpoint to write; default: TASK-seedN.safetensors."""
    data: str | None = None
    """cifar10 and cifar10-conv only: where the images are, cifar10:PATH."""
    steps: int | None = Field(default=None, ge=1)
    """modadd only: at most this many steps."""
    modulus: int | None = Field(default=None, ge=3)
    """modadd only: p, the number that sums are taken modulo; default: 113."""
    fraction: float | None = Field(default=None, gt=0, lt=1)
    """modadd only: share of all pairs to train on; default: 0.3. With more, the task is learnt sooner."""
    keep_every: int = Field(default=0, ge=0)
    """modadd only: also keep a checkpoint of every so many steps, as NAME-STEP.safetensors; 0 keeps none."""
    epochs: int | None = Field(default=None, ge=1)
    """cifar10 and cifar10-conv only: passes over the images."""


class TrainResult(Record):
    """The checkpoint, with what its metadata say of the training."""

    checkpoint: Path
    task: str
    seed: int
    test_accuracy: float
    steps_per_second: float
    recipe: dict[str, JsonValue]
    """Every setting of the training."""


def train(
    task: Annotated[Literal["modadd", "cifar10", "cifar10-conv"], Parameter(help="What the model learns.")],
    /,
    *,
    request: Annotated[TrainRequest | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Train a model of the paper, or a small residual network.

    Interrupted training resumes when the same command is run again.

    Example: interbasis train modadd --seed 0 --out modadd.safetensors
    """
    from safetensors import safe_open

    from interbasis.base.errors import InterbasisError
    from interbasis.base.files import check_writable
    from interbasis.compute.locks import only_task

    request = request or TrainRequest()
    path = request.out or Path(f"{task}-seed{request.seed}.safetensors")
    if path.exists():
        raise InterbasisError(f"{path} exists already; name another file, or delete it to train again")
    for option in ("data", "epochs") if task == "modadd" else ("steps", "modulus", "fraction", "keep_every"):
        if getattr(request, option):
            raise InterbasisError(f"--{option.replace('_', '-')} is not an option of train {task}")
    check_writable(path.parent)
    with only_task(path.parent, f"train {path.name}"), _live_line() as line:
        if task == "modadd":
            _modadd(request, path, line)
        else:
            _images(task, request, path, line)
    with safe_open(path, "pt") as file:
        recipe = json.loads(file.metadata()["training"])
    measured = {name: recipe.pop(name) for name in ("test_accuracy", "steps_per_second")}
    result = TrainResult(checkpoint=path, task=task, seed=request.seed, recipe=recipe, **measured)
    sentence = (
        f"{task}, seed {result.seed}: test accuracy {result.test_accuracy:.2%}, "
        f"{result.steps_per_second:,.0f} steps per second · saved in {path}"
    )
    common.show(result, as_json, lambda _: [sentence])


def _modadd(request: TrainRequest, path: Path, line: "_Line") -> None:
    from interbasis_studies.training.modadd import Recipe, train

    recipe = Recipe(
        request.seed, request.modulus or Recipe.p, fraction=request.fraction or Recipe.fraction,
        steps=request.steps or Recipe.steps,
    )  # fmt: skip
    advance = lambda step, loss, accuracy: line(step, recipe.steps, loss, accuracy)  # noqa: E731
    train(recipe, path, advance, request.keep_every)


def _images(task: str, request: TrainRequest, path: Path, line: "_Line") -> None:
    from interbasis.base.errors import InterbasisError
    from interbasis.graph.named_models import open_data
    from interbasis_studies.training import cifar10, cifar10_conv

    spec = request.data or "cifar10"
    if not spec.startswith("cifar10"):
        raise InterbasisError(f"train {task} takes images as cifar10 or cifar10:PATH, not {spec!r}")
    data = open_data(spec, "train"), open_data(spec, "test")
    if task == "cifar10":
        mlp = cifar10.Cifar10Recipe(request.seed, epochs=request.epochs or cifar10.Cifar10Recipe.epochs)
        cifar10.train(mlp, data, path, line)
    else:
        conv = cifar10_conv.ConvRecipe(request.seed, epochs=request.epochs or cifar10_conv.ConvRecipe.epochs)
        cifar10_conv.train(conv, data, path, line)


@contextmanager
def _live_line() -> Iterator[_Line]:
    """The loss as it falls, rewritten in place on a terminal's standard error."""
    if not sys.stderr.isatty():
        yield lambda step, steps, loss, accuracy: None
        return
    began: list[tuple[float, int]] = []

    def write(step: int, steps: int, loss: float, accuracy: float) -> None:
        now = time.monotonic()
        began.append((now, step))
        start, first = began[0]
        rate = (step - first) / (now - start) if now > start else 0.0
        speed = f" · {rate:,.0f} steps/s · {(steps - step) / rate:,.0f} s at most" if rate else ""
        text = f"step {step:,} of {steps:,} · loss {loss:.3g} · test accuracy {accuracy:.2%}{speed}"
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()

    try:
        yield write
    finally:
        sys.stderr.write("\n")
