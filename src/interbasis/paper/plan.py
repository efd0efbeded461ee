"""What a reproduction is made of: one piece per seed and basis, each a run's folder."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Basis

Task = Literal["modadd", "cifar10"]
SEEDS = (0, 1, 2, 3, 4)
BASES: tuple[Basis, ...] = ("lib", "pca", "gib", "random")
QUICK_BASES: tuple[Basis, ...] = ("lib", "pca")
NULL_GRAPHS, FEW_NULL_GRAPHS = 50, 10
"""Rewired graphs that modularity is compared with; few where it is quick, and for images, whose graphs hold
up to 190,000 edges and about whose modules the paper says nothing."""


@dataclass(frozen=True)
class Depth:
    """How far every piece is looked into; a piece that was finished with another depth is measured again."""

    stable: bool = True
    """Edges required on a logarithmic grid beside the bisection."""
    nodes: bool = True
    """Nodes required; for modular addition, whose layers are narrow enough to try every number."""
    null_graphs: int = NULL_GRAPHS


@dataclass(frozen=True)
class Plan:
    """Everything a reproduction was asked for."""

    task: Task
    out: Path
    seeds: tuple[int, ...] | None = None
    """None is all five, or those of them that there are weights for where these are given."""
    bases: tuple[Basis, ...] = BASES
    checkpoints: Path | None = None
    """Folder with seedN.safetensors or TASK-seedN.safetensors; None is to train them."""
    data: str | None = None
    """The images by name, cifar10:PATH; modular addition makes its own."""
    quick: bool = False

    @classmethod
    def of(cls, task: Task, out: Path, *, quick: bool = False, **given: Any) -> "Plan":
        """A plan in which what is not given (or None) is everything, or little of it where it is quick."""
        chosen = {name: value for name, value in given.items() if value is not None}
        if quick:
            chosen = {"seeds": (0,), "bases": QUICK_BASES} | chosen
        plan = cls(task, out, quick=quick, **chosen)
        if plan.seeds is not None and (not plan.seeds or min(plan.seeds) < 0):
            raise InterbasisError(f"seeds are whole numbers from 0 on, received {list(plan.seeds)}")
        for basis in plan.bases:
            if basis not in (*BASES, "neuron"):
                raise InterbasisError(
                    f"expected bases among {', '.join(BASES)} and neuron, received {basis!r}"
                )
        if task == "modadd" and plan.data is not None:
            raise InterbasisError("--data is for cifar10; modular addition makes its own data")
        return plan

    @property
    def depth(self) -> Depth:
        graphs = FEW_NULL_GRAPHS if self.quick or self.task == "cifar10" else NULL_GRAPHS
        return Depth(stable=not self.quick, nodes=self.task == "modadd", null_graphs=graphs)

    @property
    def settings(self) -> dict[str, Any]:
        """Of the builds. For modular addition the noise floor is the paper's rule, no relative part."""
        return {"relative_threshold": 0.0} if self.task == "modadd" else {}

    @property
    def model_family(self) -> str:
        return "modadd" if self.task == "modadd" else "mlp"

    @property
    def data_spec(self) -> str | None:
        return None if self.task == "modadd" else self.data or "cifar10"

    def pieces(self, seeds: tuple[int, ...]) -> Iterator[tuple[int, Basis]]:
        """Seed by seed the two bases that most claims are about, and after all these the others."""
        first = tuple(basis for basis in self.bases if basis in QUICK_BASES)
        for some in (first, tuple(basis for basis in self.bases if basis not in first)):
            yield from product(seeds, some)

    def folder(self, seed: int, basis: str) -> Path:
        return self.out / f"seed{seed}-{basis}"

    @property
    def command(self) -> str:
        """What to type to get, or go on with, this reproduction."""
        parts = ["interbasis", "reproduce", self.task]
        if self.checkpoints is not None:
            parts += ["--checkpoints", str(self.checkpoints)]
        if self.data is not None:
            parts += ["--data", self.data]
        if self.quick:
            parts += ["--quick"]
        default = Plan.of(self.task, self.out, quick=self.quick)
        if self.seeds != default.seeds and self.seeds is not None:
            parts += ["--seeds", ",".join(map(str, self.seeds))]
        if self.bases != default.bases:
            parts += ["--bases", ",".join(self.bases)]
        return shlex.join([*parts, "--out", str(self.out)])
