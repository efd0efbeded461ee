"""Interface of a section of the paper: models, measures, claims, tables, figures."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Generic

from interbasis.analysis.stored_results import load_result
from interbasis.base.progress import Progress, silent
from interbasis.graph.settings import BuildRequest
from interbasis.run.named_build import build_by_name
from interbasis.run.run import Run
from interbasis_studies.paper.claims import Verdict
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.jobs import Job, JobClock
from interbasis_studies.paper.plan import Plan
from interbasis_studies.paper.records import J, Reproduction


class Task(ABC, Generic[J]):
    """A section of the paper, as planned."""

    title: ClassVar[str]
    quick_form: ClassVar[str]
    """Sentence about the parts that the quick form leaves out."""
    result_type: type[J]

    def __init__(self, plan: Plan):
        self.plan = plan

    @abstractmethod
    def jobs(self) -> list[Job]:
        """All jobs of the plan, the most telling first."""

    @abstractmethod
    def build_request(self, job: Job, progress: Progress) -> BuildRequest:
        """Request for the build of a job; its model is trained first where that is necessary."""

    @abstractmethod
    def measure(self, job: Job, opened: Run, clock: JobClock) -> J:
        """Ablate and measure; what is stored already is not computed again."""

    @abstractmethod
    def verdicts(self, r: Reproduction[J]) -> list[Verdict]:
        """All claims, those whose numbers are not there yet as open."""

    @abstractmethod
    def introduction(self, r: Reproduction[J]) -> str:
        """Text of the page about models and data."""

    @abstractmethod
    def scope(self, r: Reproduction[J]) -> str:
        """Scope of the verdicts."""

    @abstractmethod
    def sections(self, r: Reproduction[J]) -> list[str]:
        """The page's tables, each part with its heading."""

    @abstractmethod
    def pictures(self, r: Reproduction[J]) -> Iterator[Picture]:
        """The page's figures, in its order."""

    def finished(self, job: Job) -> J | None:
        """The result of a job; None if it is not finished, or was measured with other settings."""
        if not (job.folder / "config.json").is_file():
            return None
        result = load_result(job.folder, self.result_type)
        return result if result is not None and result.settings == self.plan.settings else None

    def run(self, job: Job, progress: Progress = silent) -> J:
        """Build, ablate and measure one model in one basis, and store the result."""
        request = self.build_request(job, progress)
        request = request.model_copy(update={"exact": not request.settings.sampled})
        clock, built = JobClock(job.folder), (job.folder / "config.json").is_file()
        opened = build_by_name(
            request, job.folder, progress=progress, remedy=f"name another --out, or delete {job.folder}"
        )
        if not built:
            clock.stop("build")
        result = self.measure(job, opened, clock)
        clock.stop("measures")
        phases = {name: round(seconds, 1) for name, seconds in opened.graph.provenance.timings.items()}
        times = clock.times.model_copy(update={"phases": phases})
        result = result.model_copy(update={"times": times})
        opened.store(result)
        return result
