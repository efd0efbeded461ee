"""Section 3.1, modular addition: claims M1 to M8."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from interbasis.base.progress import Progress
from interbasis.run.run import Run
from interbasis_studies.paper.claims import Verdict
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.jobs import Job, JobClock
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.classifier import ClassifierTask
from interbasis_studies.paper.tasks.modadd import claims, measures, page
from interbasis_studies.paper.tasks.modadd.measures import ModaddResult


class ModularAdditionTask(ClassifierTask[ModaddResult]):
    """One-layer transformers that add modulo 113."""

    title = "Modular addition, reproduced (paper 3.1; claims M1 to M8)"
    result_type = ModaddResult
    build_settings: ClassVar[dict[str, float]] = {"relative_threshold": 0.0}
    """The noise floor is the paper's rule, no relative part."""
    layer_words: ClassVar[dict[str, str]] = {
        measures.ATTENTION: "before attention",
        measures.MLP: "before the MLP",
        measures.UNEMBEDDING: "before the unembedding",
        "output": "output",
    }
    section_words = ("attention", "MLP", "unembedding")

    def train(self, seed: int, path: Path, progress: Progress) -> None:
        from interbasis_studies.training import modadd

        recipe = modadd.Recipe(seed=seed)
        modadd.train(
            recipe, path, lambda step, loss, accuracy: progress(f"training, seed {seed}", step, recipe.steps)
        )

    def measure(self, job: Job, opened: Run, clock: JobClock) -> ModaddResult:
        return measures.measure(self.measure_common(job, opened, clock), opened)

    def verdicts(self, r: Reproduction[ModaddResult]) -> list[Verdict]:
        return claims.verdicts(r)

    def introduction(self, r: Reproduction[ModaddResult]) -> str:
        return page.INTRODUCTION

    def sections(self, r: Reproduction[ModaddResult]) -> list[str]:
        return page.sections(self, r)

    def pictures(self, r: Reproduction[ModaddResult]) -> Iterator[Picture]:
        from interbasis_studies.paper.tasks.modadd import figures

        return figures.pictures(self, r)
