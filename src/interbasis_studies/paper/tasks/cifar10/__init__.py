"""Section 3.2, CIFAR-10 MLPs: claims C1 to C6."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from interbasis.base.progress import Progress, progress_bar
from interbasis.graph.named_models import open_data
from interbasis.run.run import Run
from interbasis_studies.paper.claims import Verdict
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.jobs import Job, JobClock
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.cifar10 import claims, page
from interbasis_studies.paper.tasks.cifar10.directions import Cifar10Result, Images, direction, whole_model
from interbasis_studies.paper.tasks.classifier import ClassifierTask


class Cifar10(ClassifierTask[Cifar10Result]):
    """MLPs that tell ten classes of images apart."""

    title = "CIFAR-10 MLPs, reproduced (paper 3.2; claims C1 to C6)"
    result_type = Cifar10Result
    layer_words: ClassVar[dict[str, str]] = {
        "linear.0": "input", "linear.1": "hidden 1", "linear.2": "hidden 2", "output": "output",
    }  # fmt: skip
    section_words = ("input → hidden 1", "hidden 1 → hidden 2", "hidden 2 → output")

    @cached_property
    def images(self) -> Images:
        """All images in memory, once for all jobs."""
        train, test = (open_data(self.plan.data or "", split).all() for split in ("train", "test"))
        return Images(train, test)

    def train(self, seed: int, path: Path, progress: Progress) -> None:
        from interbasis_studies.training import cifar10

        spec = self.plan.data or ""
        data = open_data(spec, "train"), open_data(spec, "test")
        cifar10.train(
            cifar10.Cifar10Recipe(seed=seed), data, path,
            lambda step, steps, loss, accuracy: progress(f"training, seed {seed}", step, steps),
        )  # fmt: skip

    def measure(self, job: Job, opened: Run, clock: JobClock) -> Cifar10Result:
        common, network = self.measure_common(job, opened, clock), opened.network.double()
        with progress_bar(opened.progress) as advance:
            directions = {
                layer.name: direction(network, layer, self.images, advance) for layer in opened.graph.layers
            }
        return Cifar10Result(**dict(common), whole=whole_model(network, self.images), directions=directions)

    def verdicts(self, r: Reproduction[Cifar10Result]) -> list[Verdict]:
        return claims.verdicts(r)

    def introduction(self, r: Reproduction[Cifar10Result]) -> str:
        return page.INTRODUCTION

    def sections(self, r: Reproduction[Cifar10Result]) -> list[str]:
        return page.sections(self, r)

    def pictures(self, r: Reproduction[Cifar10Result]) -> Iterator[Picture]:
        from interbasis_studies.paper.tasks.cifar10 import figures

        return figures.pictures(self, r)
