"""Small runs with the results that the real stages write, for the tests of what reads them."""

from pathlib import Path

import torch
from torch import Tensor, nn

import interbasis
from cases import mlp, modular_addition, normal
from interbasis.analysis.workspace import OpenedRun, open_run
from interbasis.data.samples import Samples

CLASSES = ("ant", "bee", "cat", "dog")


def addition(folder: Path, basis: str = "lib", model: str = "", samples: int = 40, **settings) -> OpenedRun:
    """A random modular-addition transformer, whose own answers are the labels."""
    case = modular_addition(samples=samples)
    graph = interbasis.build(case.network, case.inputs, basis, model=model, **settings)
    return open_run(graph.save(folder), case.network, (case.inputs, answers(case.network(case.inputs))))


def classifier(
    folder: Path, *, images: bool = False, widths=(12, 9, 7, 4), samples: int = 80, **settings
) -> OpenedRun:
    """A random classifier of rows of numbers or of small images, whose own answers are the labels."""
    case = mlp(nn.ReLU(), widths=widths)
    inputs = (normal(samples, widths[0], seed=5) * 0.5).clamp(-1, 1)
    labels = answers(case.network(inputs))
    shape = (1, 3, widths[0] // 3) if images else None
    data = Samples(
        samples, lambda first, last: (inputs[first:last], labels[first:last]),
        kind="images" if images else "rows", spec="some,data", classes=CLASSES, image=shape,
    )  # fmt: skip
    return open_run(interbasis.build(case.network, inputs, **settings).save(folder), case.network, data)


def answers(outputs: Tensor) -> Tensor:  # [samples, 1, classes] -> [samples]
    return outputs.reshape(len(outputs), -1).argmax(1).to(torch.int64)
