"""Request for a reproduction, and the plan that follows: its bases, seeds or model, and settings."""

import shlex
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from interbasis.base.errors import InterbasisError
from interbasis.base.records import Basis, NonEmptyNames, Record
from interbasis.graph.settings import BASIS_KINDS

TaskName = Literal["modadd", "cifar10", "tinystories", "gpt2"]
LANGUAGE_TASKS = ("tinystories", "gpt2")
SEEDS = (0, 1, 2, 3, 4)
BASES: tuple[Basis, ...] = ("lib", "pca", "gib", "random")
CENTRAL_BASES: tuple[Basis, ...] = ("lib", "pca")
"""The two that most claims are about."""
BASIS_LABELS: dict[Basis, str] = {name: kind.title for name, kind in BASIS_KINDS.items()}
NULL_GRAPHS, FEW_NULL_GRAPHS = 50, 10
"""Rewired graphs that modularity is compared with; few if quick, and for images, whose graphs hold up to
190,000 edges and about whose modules the paper says nothing."""

HUB = {
    "tinystories": (
        "hf:roneneldan/TinyStories-1M", "hf:apollo-research/skeskinen-TinyStories-hf-tokenizer-gpt2",
    ),
    "gpt2": ("hf:gpt2", "hf:apollo-research/Skylion007-openwebtext-tokenizer-gpt2"),
}  # fmt: skip
"""The paper's models, and its data: tokens, by their names on the Hugging Face Hub."""
TOKENS = {"tinystories": (1_000_000, 200_000, 20_480), "gpt2": (512_000, 512_000, 20_480)}
"""Tokens of the basis, of the edges, and of the test set."""
TOKEN_OPTIONS = ("tokens", "edge_tokens", "test_tokens")
QUICK_TOKENS = (16_384, 2_048, 2_048)


class ReproduceRequest(Record):
    """Request for a reproduction; None is the default."""

    out: Path
    """Folder for the runs, the JSON and the page."""
    checkpoints: Path | None = None
    """Folder with seedN.safetensors or TASK-seedN.safetensors; default: the models are trained."""
    model: str | None = None
    """Language models: hf:FOLDER-OR-HUB-ID; default: the paper's, from the Hugging Face Hub."""
    data: str | None = None
    """The images, cifar10:PATH, or the text, tokens:PATH, text:PATH or hf:DATASET."""
    tokens: int | None = Field(None, ge=1)
    """Language models: tokens of the basis; default: 1,000,000 or 512,000."""
    edge_tokens: int | None = Field(None, ge=1)
    """Language models: tokens of the edges; default: 200,000 or 512,000."""
    test_tokens: int | None = Field(None, ge=1)
    """Language models: held-out tokens that masks are tried on; default: 20,480."""
    tolerance: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Language models: allowed increase of the cross-entropy; default: 0.1."""
    norms: bool | None = None
    """Language models: also find the edges required of layer norms; default: yes, but no with --quick."""
    queries: int | None = Field(None, ge=2)
    """Language models: query positions sampled in attention's Jacobians; default: all."""
    edge_group: int | None = Field(None, ge=1)
    """Language models: tokens per group of stochastic sources for edges; default: exact edges."""
    edge_positions: int | None = Field(None, ge=1)
    """Language models: positions per sequence at which edges are taken; default: all."""
    skip_positions: int | None = Field(None, ge=0)
    """Language models: number of positions at the start of a sequence left out of all sums
    over the data; default: 0, as in the paper."""
    norm_limit: float | None = Field(None, ge=0)
    """Language models: leave out tokens whose norm exceeds this many times the median of their layer;
    default: 0, which leaves none out, as in the paper."""
    seeds: NonEmptyNames | None = None
    """Comma-separated seeds; default: 0,1,2,3,4."""
    bases: NonEmptyNames | None = None
    """Comma-separated bases; default: lib,pca,gib,random (language models: lib,pca)."""
    quick: bool = False
    """One seed, LIB and PCA, few tokens: takes minutes."""


class ClassifierSettings(Record):
    """Settings of the measures of modular addition and of images."""

    stable: bool
    """Edges required on a logarithmic grid beside the bisection."""
    nodes: bool
    """Nodes required; for modular addition, whose layers are narrow enough to try every number."""
    null_graphs: int


class LanguageSettings(Record):
    """Settings of the measures of a language model."""

    tokens: int
    """Tokens of the basis: the first windows of the training set that hold so many."""
    edge_tokens: int
    test_tokens: int
    tolerance: float = 0.1
    norms: bool
    """Edges required of the layer norms, too."""
    quick: bool
    """Edges required in the middle block alone."""
    jacobian_queries: int | None
    edge_group: int | None = None
    edge_positions: int | None = None
    skip_positions: int = 0
    norm_limit: float = 0
    """All tokens count where it is 0, as in the paper."""

    @property
    def sampling(self) -> dict[str, int]:
        """Settings of the build that sample instead of summing over everything."""
        values = {name: getattr(self, name) for name in ("jacobian_queries", "edge_group", "edge_positions")}
        return {name: value for name, value in values.items() if value is not None}


Settings = ClassifierSettings | LanguageSettings
"""Settings of the measures of a job; with other settings it is measured again."""
LANGUAGE_OPTIONS = (
    "model", "tokens", "edge_tokens", "test_tokens", "tolerance", "norms", "queries", "edge_group",
    "edge_positions", "skip_positions", "norm_limit",
)  # fmt: skip
SEED_OPTIONS = ("checkpoints", "seeds")


class Plan(Record):
    """A reproduction in full: models over seeds, or one language model, in several bases."""

    task: TaskName
    request: ReproduceRequest
    bases: tuple[Basis, ...]
    settings: Settings
    seeds: tuple[int, ...] | None = None
    """None is all five, or those of them that there are weights for."""
    model: str = ""
    """The one language model; empty for tasks over seeds."""
    data: str | None = None
    """Data by name; a language model's training set is for bases and edges, its test set for masks."""

    @classmethod
    def from_request(cls, task: TaskName, request: ReproduceRequest) -> "Plan":
        """A plan in which what was not asked for is as in the paper, or little of it if quick.

        Raises:
            InterbasisError: The task has no such option, or a basis or seed is unknown.
        """
        for name in SEED_OPTIONS if task in LANGUAGE_TASKS else LANGUAGE_OPTIONS:
            if getattr(request, name) is not None:
                raise InterbasisError(f"{task} has no option --{name.replace('_', '-')}; leave it out")
        if task == "modadd" and request.data is not None:
            raise InterbasisError("--data is for cifar10; modular addition makes its own data")
        few = request.quick or task in LANGUAGE_TASKS
        bases = request.bases or (CENTRAL_BASES if few else BASES)
        for basis in bases:
            if basis not in get_args(Basis):
                raise InterbasisError(
                    f"expected bases among {', '.join(get_args(Basis))}, received {basis!r}"
                )
        if task in LANGUAGE_TASKS:
            model, data = HUB[task]
            if request.model is not None and request.data is None:
                raise InterbasisError(
                    f"{request.model} does not say what it was trained on; name text with --data: "
                    "tokens:PATH, text:PATH or hf:DATASET"
                )
            tokens = zip(TOKEN_OPTIONS, QUICK_TOKENS if request.quick else TOKENS[task], strict=True)
            usual = dict(tokens) | {"norms": not request.quick, "jacobian_queries": request.queries}
            known = LanguageSettings.model_fields
            given = {name: value for name, value in request if name in known and value is not None}
            return cls(
                task=task, request=request, bases=bases, model=request.model or model,
                data=request.data or data, settings=LanguageSettings.model_validate(usual | given),
            )  # fmt: skip
        settings = ClassifierSettings(
            stable=not request.quick,
            nodes=task == "modadd",
            null_graphs=FEW_NULL_GRAPHS if request.quick or task == "cifar10" else NULL_GRAPHS,
        )
        seeds: tuple[int, ...] | None = (0,) if request.quick else None
        if request.seeds:
            if not all(part.isdecimal() for part in request.seeds):
                raise InterbasisError(
                    f"expected comma-separated whole numbers as seeds, received {','.join(request.seeds)!r}"
                )
            seeds = tuple(dict.fromkeys(map(int, request.seeds)))
        return cls(
            task=task, request=request, bases=bases, seeds=seeds, settings=settings,
            data=None if task == "modadd" else request.data or "cifar10",
        )  # fmt: skip

    @property
    def out(self) -> Path:
        return self.request.out

    @property
    def command(self) -> str:
        """Command that starts or resumes this reproduction."""
        parts = ["interbasis", "reproduce", self.task]
        for name, value in self.request:
            option = "--" + name.replace("_", "-")
            if value is None or name == "out" or (name == "quick" and not value):
                continue
            if isinstance(value, bool):
                parts.append(option if value else option.replace("--", "--no-", 1))
            else:
                parts += [option, ",".join(value) if isinstance(value, tuple) else str(value)]
        return shlex.join([*parts, "--out", str(self.out)])
