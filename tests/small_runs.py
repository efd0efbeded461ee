"""Small runs with the results that the real stages write, for the tests of what reads them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import interbasis
from cases import mlp, modular_addition, normal
from interbasis.analysis.ablation.records import Control
from interbasis.base.records import Basis, Method
from interbasis.data.batches import Data
from interbasis.data.samples import Samples
from interbasis.network.network import Network
from interbasis.run.run import Run, open_run

CLASSES = ("ant", "bee", "cat", "dog")


def addition(folder: Path, basis: Basis = "lib", model: str = "", samples: int = 40, **settings: Any) -> Run:
    """A random modular-addition transformer, whose own answers are the labels."""
    case = modular_addition(samples=samples)
    graph = interbasis.build(case.network, case.inputs, basis=basis, model=model, **settings).graph
    return open_run(graph.save(folder), case.network, (case.inputs, answers(case.network(case.inputs))))


def classifier(
    folder: Path,
    *,
    images: bool = False,
    widths: tuple[int, ...] = (12, 9, 7, 4),
    samples: int = 80,
    **settings: Any,
) -> Run:
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


def control_rows(
    network: Network, fit_data: Data, data: Data, *, edge_method: Method = "gradient", **settings: Any
) -> list[Control]:
    """Rows of the controls of a run that was built on ``fit_data`` and is evaluated on ``data``."""
    run = interbasis.build(network, fit_data, test_data=data, edge_method=edge_method)
    return list(run.controls(**settings).rows.values())
