"""Records of a reproduction: the result of every job, and all of them with their verdicts."""

from typing import ClassVar, Generic, TypeVar

from pydantic import Field

from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import Result
from interbasis.base.records import Basis, Record
from interbasis_studies.paper.claims import Verdict
from interbasis_studies.paper.plan import Settings, TaskName


class Seconds(Record):
    """Time of one stage of a job, all its resumed parts together."""

    wall: float
    processor: float
    """Sum over all threads."""


class JobTimes(Result):
    """Times of the stages of a job; stored in its run as they end."""

    file: ClassVar[str] = "times"
    command: ClassVar[str] = "reproduce"

    stages: dict[str, Seconds] = Field(default_factory=dict)
    peak_bytes: int | None = None
    """Most memory of the process, if the system tells."""
    threads: int = 0
    phases: dict[str, float] = Field(default_factory=dict)
    """Wall-clock seconds of the phases of the build."""


class JobResult(Result):
    """One model in one basis: what is known of every task's jobs. Stored last, it says that all is done."""

    file: ClassVar[str] = "reproduction"
    command: ClassVar[str] = "reproduce"

    basis: Basis
    seed: int | None
    """None for the one language model."""
    run: str
    """Name of the run's folder."""
    model: str
    """The model by name, as builds take it."""
    model_fingerprint: str
    settings: Settings
    layers: tuple[str, ...]
    """Names of the node layers."""
    ablation: AblationResult
    times: JobTimes = JobTimes()

    @classmethod
    def remedy(cls, run: object) -> str:
        return f"name another --out, or delete {run}"

    @property
    def counts(self) -> list[int]:
        """Edges required, section by section."""
        return list(self.ablation.counts.values())


class MissingJob(Record):
    """A job that is not finished."""

    basis: Basis
    seed: int | None
    has_model: bool
    """Whether its weights are given, or will be trained."""


class Machine(Record):
    """The machine that a report is written on."""

    processor: str
    cores: int
    memory: str
    system: str
    python: str
    torch: str


class SavedFigure(Record):
    """A figure on disk."""

    section: str
    """Heading of the page that it belongs to."""
    caption: str
    file: str
    """Relative to the folder of the page."""


class NamedSection(Record):
    """What was measured of the section between two node layers."""

    source: str
    target: str

    @property
    def name(self) -> str:
        return f"{self.source} → {self.target}"


class ComparedEdges(NamedSection):
    """Edges required of one section in LIB and in PCA, on the same draws of the test windows."""

    lib: int
    lib_possible: int
    """Edges between the features that LIB keeps."""
    pca: int
    pca_possible: int
    lib_interval: tuple[int, int]
    pca_interval: tuple[int, int]
    ratio: float
    """LIB's over PCA's."""
    interval: tuple[float, float]
    """95 % of the ratio on paired draws."""


J = TypeVar("J", bound=JobResult)


class Reproduction(Record, Generic[J]):
    """All finished jobs of a plan, with a verdict per claim."""

    task: TaskName
    date: str
    command: str
    out: str
    quick: bool
    bases: tuple[Basis, ...]
    jobs: tuple[J, ...]
    missing: tuple[MissingJob, ...]
    machine: Machine
    comparison: tuple[ComparedEdges, ...] = ()
    """LIB beside PCA, for a language model."""
    verdicts: tuple[Verdict, ...] = ()
    figures: tuple[SavedFigure, ...] = ()

    @property
    def finished_bases(self) -> list[Basis]:
        """Bases with at least one job, in the order of the plan."""
        done = {job.basis for job in self.jobs}
        return [basis for basis in self.bases if basis in done]

    @property
    def seeds(self) -> list[int]:
        """Seeds with at least one job."""
        return sorted({job.seed for job in self.jobs if job.seed is not None})

    def of_basis(self, basis: Basis) -> list[J]:
        """The jobs of a basis by seed."""
        return sorted((job for job in self.jobs if job.basis == basis), key=lambda job: job.seed or 0)

    def by_seed(self, basis: Basis) -> list[J | None]:
        """The jobs of a basis, one for every seed that any basis has; None where it has none."""
        jobs = {job.seed: job for job in self.jobs if job.basis == basis}
        return [jobs.get(seed) for seed in self.seeds]

    def paired(self, *bases: Basis) -> list[list[J]]:
        """Jobs [bases][seeds], of the seeds that have all of these bases."""
        columns = [self.by_seed(basis) for basis in bases]
        complete = [row for row in zip(*columns, strict=True) if None not in row]
        return [[row[k] for row in complete if row[k] is not None] for k in range(len(bases))]

    @property
    def by_basis(self) -> list[J]:
        """All jobs, basis by basis in the order of the plan."""
        return [job for basis in self.finished_bases for job in self.of_basis(basis)]

    @property
    def models(self) -> list[J]:
        """One job per seed, for what belongs to the model and not to a basis."""
        return list({job.seed: job for job in sorted(self.jobs, key=lambda job: job.seed or 0)}.values())
