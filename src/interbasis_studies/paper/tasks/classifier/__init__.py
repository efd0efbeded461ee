"""Common parts of modular addition and the image classifiers: models over seeds, measured alike."""

from itertools import product
from pathlib import Path
from typing import ClassVar, TypeVar

from interbasis.analysis.ablation.curves import interaction_sparsity
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.records import Sparsity
from interbasis.analysis.ablation.search import DEFAULT_TOLERANCE
from interbasis.analysis.features.effects import idle
from interbasis.analysis.features.records import Idle
from interbasis.analysis.stages import modules
from interbasis.analysis.stages.ablate import AblateRequest
from interbasis.analysis.stages.modules import ModulesRequest, ModulesResult
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.base.records import Record
from interbasis.graph.named_models import SHIPPED
from interbasis.graph.settings import BuildRequest
from interbasis.run.run import Run
from interbasis_studies.paper.jobs import Job, JobClock, ablate_missing, common_result
from interbasis_studies.paper.plan import CENTRAL_BASES, SEEDS, ClassifierSettings
from interbasis_studies.paper.records import JobResult, Reproduction
from interbasis_studies.paper.task import Task

RESOLUTIONS = (0.5, 1.0)
MAX_EDGES_FOR_MODULES = 100_000


class Frequencies(Record):
    """Agreement of a partition of the features of modular addition with their frequencies."""

    own: tuple[int, ...]
    """Frequencies that have a module to themselves."""
    considered: tuple[int, ...]
    features: int
    """Features that have both a frequency and a module."""
    agreement: float
    """Adjusted mutual information of frequency and module over these."""


class Partition(Record):
    """Modules over the edges required at one resolution, or why there are none."""

    resolution: float
    result: ModulesResult | None = None
    problem: str = ""
    frequencies: Frequencies | None = None


class ClassifierResult(JobResult):
    """A classifier in one basis."""

    train_accuracy: float
    idle: dict[str, Idle]
    """By layer; an edge counts from 3 % of its section's largest."""
    idle_by_need: dict[str, Idle]
    """By layer; an edge counts from the smallest that the ablation needs."""
    sparsity: dict[str, Sparsity]
    """By the name of the section's source layer."""
    partitions: tuple[Partition, ...]
    """At each of the resolutions."""

    @property
    def test_accuracy(self) -> float:
        return self.ablation.baseline

    def partition(self, resolution: float) -> Partition | None:
        return next((part for part in self.partitions if part.resolution == resolution), None)


C = TypeVar("C", bound=ClassifierResult)


class ClassifierTask(Task[C]):
    """Five models in four bases."""

    quick_form = "fewer seeds and bases, no search for stable counts."
    build_settings: ClassVar[dict[str, float]] = {}
    layer_words: ClassVar[dict[str, str]]
    """Names of the node layers on the page."""
    section_words: ClassVar[tuple[str, ...]]

    @property
    def settings(self) -> ClassifierSettings:
        assert isinstance(self.plan.settings, ClassifierSettings)
        return self.plan.settings

    def seeds(self) -> tuple[int, ...]:
        """The seeds that there are weights for, or that can be trained."""
        folder, wanted = self.plan.request.checkpoints, self.plan.seeds or SEEDS
        if folder is None:
            return wanted
        if not folder.is_dir():
            raise InterbasisError(f"expected a folder of checkpoints at {folder}, but there is none")
        available = tuple(seed for seed in wanted if any(path.is_file() for path in self._given(seed)))
        missing = [seed for seed in self.plan.seeds or () if seed not in available]
        if missing or not available:
            seed = missing[0] if missing else 0
            names = " or ".join(path.name for path in self._given(seed))
            raise InterbasisError(f"{folder} has no checkpoint of seed {seed}; expected {names}")
        return available

    def checkpoint(self, seed: int, progress: Progress = silent) -> Path:
        """The checkpoint of a seed; its training is started, or resumed, where it is not there yet."""
        task, request = self.plan.task, self.plan.request
        if request.checkpoints is not None:
            path = next((path for path in self._given(seed) if path.is_file()), None)
            if path is None:
                raise InterbasisError(f"{request.checkpoints} has no checkpoint of seed {seed}")
            return path.absolute()
        if request.quick and task == "modadd" and seed == 0:
            return SHIPPED
        path = request.out / "checkpoints" / f"{task}-seed{seed}.safetensors"
        if not path.is_file():
            self.train(seed, path, progress)
        return path.absolute()

    def _given(self, seed: int) -> list[Path]:
        """Files that may hold the weights of a seed in the user's folder."""
        names = f"{self.plan.task}-seed{seed}.safetensors", f"seed{seed}.safetensors"
        return [(self.plan.request.checkpoints or Path()) / name for name in names]

    def train(self, seed: int, path: Path, progress: Progress) -> None:
        """Train the model of a seed."""
        raise NotImplementedError

    def jobs(self) -> list[Job]:
        available = self.seeds()
        first = [basis for basis in self.plan.bases if basis in CENTRAL_BASES]
        second = [basis for basis in self.plan.bases if basis not in CENTRAL_BASES]
        return [
            Job(basis, self.plan.out / f"seed{seed}-{basis}", seed, seed in available)
            for bases in (first, second)
            for seed, basis in product(self.plan.seeds or SEEDS, bases)
        ]

    def build_request(self, job: Job, progress: Progress) -> BuildRequest:
        assert job.seed is not None
        family = "modadd" if self.plan.task == "modadd" else "mlp"
        model = f"{family}:{self.checkpoint(job.seed, progress)}"
        return BuildRequest(
            model=model, data=self.plan.data, basis=job.basis, seed=job.seed, **self.build_settings
        )

    def measure_common(self, job: Job, opened: Run, clock: JobClock) -> ClassifierResult:
        """Measure the quantities that both tasks share."""
        request = AblateRequest(
            nodes=self.settings.nodes, metric="accuracy", tolerance=DEFAULT_TOLERANCE["accuracy"],
            stable=self.settings.stable,
        )  # fmt: skip
        if ablate_missing(opened, request):
            clock.stop("ablation")
        common = common_result(job, opened, self.settings)
        needed = [section.epsilon for section in common.ablation.sections.values()]
        train = Evaluation(opened.network, opened.graph, opened.data(None, "train"))
        return ClassifierResult(
            **dict(common),
            train_accuracy=train.baseline.value,
            idle={layer.layer: layer for layer in idle(opened.graph)},
            idle_by_need={layer.layer: layer for layer in idle(opened.graph, thresholds=needed)},
            sparsity={section.source: section for section in interaction_sparsity(opened.graph)},
            partitions=tuple(
                _partition(opened, sum(common.counts), resolution, self.settings.null_graphs)
                for resolution in RESOLUTIONS
            ),
        )

    def layer_names(self, r: Reproduction[C]) -> dict[str, str]:
        """The node layers in words; by their own names where there are other layers."""
        layers = r.jobs[0].layers
        return self.layer_words if tuple(self.layer_words) == layers else {name: name for name in layers}

    def section_names(self, r: Reproduction[C]) -> dict[str, str]:
        """The sections in words, by the names of their source layers."""
        sections, words = r.jobs[0].ablation.sections, self.section_words
        if len(words) != len(sections):
            words = tuple(section.name for section in sections.values())
        return dict(zip(sections, words, strict=True))

    def scope(self, r: Reproduction[C]) -> str:
        count = len(set(r.seeds) & set(SEEDS))
        if count >= len(SEEDS):
            return "all five seeds"
        return f"**{count} of {len(SEEDS)} seeds, so they are provisional**"


def _partition(opened: Run, edges: int, resolution: float, null_graphs: int) -> Partition:
    """Leiden's modules over the edges required; a graph with next to none, or with very many, has none."""
    if edges > MAX_EDGES_FOR_MODULES:
        problem = f"{edges:,} edges are needed, too many to look for modules"
        return Partition(resolution=resolution, problem=problem)
    request = ModulesRequest(resolution=resolution, null_graphs=null_graphs, cuts=False)
    try:
        return Partition(resolution=resolution, result=modules.run(opened, request))
    except InterbasisError as error:
        return Partition(resolution=resolution, problem=str(error))
