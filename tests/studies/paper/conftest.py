"""Tiny models and their reproductions, made once for all tests."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from interbasis.data.modadd import pairs
from interbasis.models import mlp
from interbasis_studies.paper import plan as plans
from interbasis_studies.paper import runner
from interbasis_studies.paper.plan import Plan, ReproduceRequest, TaskName
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.training.modadd import Recipe, initial_weights, logits

Reproduced = tuple[Plan, Reproduction[Any]]


def make_plan(task: TaskName, out: Path, **fields: Any) -> Plan:
    """A plan from the fields of a request by name."""
    return Plan.from_request(task, ReproduceRequest.validated(out=out, **fields))


def small_adder(seed: int) -> dict[str, torch.Tensor]:
    """A transformer that adds modulo 7, fitted to all pairs."""
    start = initial_weights(Recipe(seed=seed, p=7, width=12, heads=3, hidden=17))
    weights = {name: weight.requires_grad_() for name, weight in start.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=0.02, weight_decay=0.1)
    (x, y, _), labels = pairs(7).inputs.T, pairs(7).labels
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits(weights, x, y), labels).backward()
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


@contextmanager
def quickly() -> Iterator[None]:
    """With few rewired graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "NULL_GRAPHS", 3)
        yield


@pytest.fixture(scope="module", autouse=True)
def few_null_graphs() -> Iterator[None]:
    with quickly():
        yield


@pytest.fixture(scope="session")
def reproduction_of(
    made_once: Callable[[str, Callable[[Path], object]], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Reproduced]:
    """reproduction_of(task, weights, …): the reproduction of small models that ``weights(folder)`` writes.

    One test process does the work; every process goes on from a copy, in which it may write.
    """

    def reproduction(task: TaskName, weights: Callable[[Path], None], **options: str) -> Reproduced:
        def given(folder: Path) -> dict[str, str]:
            return {key: value.format(folder=folder) for key, value in options.items()}

        def make(folder: Path) -> None:
            folder.mkdir()
            weights(folder)
            runner.reproduce(make_plan(task, folder / "out", checkpoints=folder, **given(folder)))

        with quickly():
            folder = made_once(f"reproduced-{task}", make)
            own = tmp_path_factory.mktemp(task) / "out"
            shutil.copytree(folder / "out", own)
            plan = make_plan(task, own, checkpoints=folder, **given(folder))
            return plan, runner.reproduce(plan)

    return reproduction


@pytest.fixture(scope="session")
def additions(reproduction_of: Callable[..., Reproduced]) -> Reproduced:
    """Two modular-addition transformers, p = 7, and their reproduction in three bases."""
    return reproduction_of("modadd", two_adders, bases="lib,pca,gib")


def two_adders(folder: Path) -> None:
    for seed in (0, 1):
        save_file(small_adder(seed), folder / f"seed{seed}.safetensors")


@pytest.fixture(scope="session")
def pictures(reproduction_of: Callable[..., Reproduced]) -> Reproduced:
    """Rows of 12 numbers in which animals are brighter, and a small network."""
    return reproduction_of("cifar10", rows_and_network, data="npz:{folder}/rows.npz", bases="lib,pca")


def rows_and_network(folder: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, count in (("train", 200), ("test", 120)):
        labels = np.arange(count) % 10
        bright = 0.6 * np.isin(labels, (2, 3, 4, 5, 6, 7))[:, None]
        arrays[f"x_{split}"] = (rng.normal(size=(count, 12)) + bright).astype(np.float32)
        arrays[f"y_{split}"] = labels
    np.savez(folder / "rows.npz", **arrays)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 10))
    mlp.save(module, folder / "cifar10-seed0.safetensors", "cifar10")
