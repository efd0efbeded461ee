"""What a reproduction of the paper's section 3.3 is made of: one language model, one piece per basis."""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Basis

LanguageTask = Literal["tinystories", "gpt2"]
LANGUAGE_TASKS: tuple[LanguageTask, ...] = ("tinystories", "gpt2")
BASES: tuple[Basis, ...] = ("lib", "pca")

HUB: dict[LanguageTask, tuple[str, str]] = {
    "tinystories": (
        "hf:roneneldan/TinyStories-1M", "hf:apollo-research/skeskinen-TinyStories-hf-tokenizer-gpt2",
    ),
    "gpt2": ("hf:gpt2", "hf:apollo-research/Skylion007-openwebtext-tokenizer-gpt2"),
}  # fmt: skip
"""The paper's models, and its data: tokens, by their names on the Hugging Face Hub."""

TOKENS: dict[LanguageTask, dict[str, int]] = {
    "tinystories": {"tokens": 1_000_000, "edge_tokens": 200_000, "test_tokens": 20_480},
    "gpt2": {"tokens": 512_000, "edge_tokens": 512_000, "test_tokens": 20_480},
}
QUICK = {"tokens": 16_384, "edge_tokens": 2_048, "test_tokens": 2_048}
"""Tokens of the quick form, in which the middle block alone is ablated."""


@dataclass(frozen=True)
class LanguagePlan:
    """Everything a reproduction on a language model was asked for."""

    task: LanguageTask
    out: Path
    model: str
    data: str
    """Its training set is what bases and edges are made from, its test set what masks are tried on."""
    tokens: int
    """Of the basis: the first windows of the training set that hold so many."""
    edge_tokens: int
    test_tokens: int
    bases: tuple[Basis, ...] = BASES
    tolerance: float = 0.1
    norms: bool = True
    """Edges required of the layer norms, too."""
    queries: int | None = None
    """Query positions sampled per sequence in attention's Jacobians; None is all."""
    edge_group: int | None = None
    """Tokens per group of stochastic sources for the edges; None is exact."""
    edge_positions: int | None = None
    """Positions sampled per sequence for the edges; None is all."""
    quick: bool = False

    @classmethod
    def of(cls, task: LanguageTask, out: Path, *, quick: bool = False, **given: Any) -> "LanguagePlan":
        """A plan in which what is not given (or None) is as in the paper, or little of it where quick."""
        model, data = HUB[task]
        chosen = {name: value for name, value in given.items() if value is not None}
        if "model" in chosen and "data" not in chosen:
            raise InterbasisError(
                f"{chosen['model']} does not say what it was trained on; name text with --data: tokens:PATH, "
                "text:PATH or hf:DATASET"
            )
        start = {"model": model, "data": data} | TOKENS[task]
        start |= QUICK | {"norms": False} if quick else {}
        plan = cls(task, out, quick=quick, **start | chosen)
        plan._check()
        return plan

    def _check(self) -> None:
        for basis in self.bases:
            if basis not in ("lib", "pca", "gib", "random", "neuron"):
                raise InterbasisError(
                    f"expected bases among lib, pca, gib, random and neuron, received {basis!r}"
                )
        for name in TOKENS[self.task]:
            if getattr(self, name) < 1:
                raise InterbasisError(f"{name} is at least 1, received {getattr(self, name)}")

    @property
    def settings(self) -> dict[str, Any]:
        """Of the builds."""
        given = {
            "jacobian_queries": self.queries,
            "edge_group": self.edge_group,
            "edge_positions": self.edge_positions,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def depth(self) -> dict[str, Any]:
        """What a finished piece was measured with; with another it is measured again."""
        names = ("tokens", "edge_tokens", "test_tokens", "tolerance", "norms", "quick")
        return {name: getattr(self, name) for name in names} | {"version": 3}

    def folder(self, basis: str) -> Path:
        return self.out / basis

    @property
    def command(self) -> str:
        """What to type to get, or go on with, this reproduction."""
        parts = ["interbasis", "reproduce", self.task]
        given = {"model": self.model, "data": self.data}
        default = LanguagePlan.of(self.task, self.out, quick=self.quick, **given)
        if (self.model, self.data) != HUB[self.task]:
            parts += ["--model", self.model, "--data", self.data]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in given or value == getattr(default, field.name):
                continue
            name = "--" + field.name.replace("_", "-")
            if isinstance(value, bool):
                parts.append(name if value else name.replace("--", "--no-", 1))
            else:
                parts += [name, ",".join(value) if isinstance(value, tuple) else str(value)]
        parts += ["--quick"] if self.quick else []
        return shlex.join([*parts, "--out", str(self.out)])
