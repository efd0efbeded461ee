"""Section 3.2, CIFAR-10 MLPs: claims C1 to C6."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from interbasis.base.progress import Progress, progress_bar
from interbasis.graph.named_models import open_data
from interbasis.run.run import Run
from interbasis.show.tables import Cell, markdown_table, percent
from interbasis_studies.paper.claims import Verdict, mean, spread
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.jobs import Job, JobClock
from interbasis_studies.paper.plan import BASIS_LABELS
from interbasis_studies.paper.published import ACCURACY, DIRECTION
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.cifar10 import claims
from interbasis_studies.paper.tasks.cifar10.directions import Cifar10Result, Images, direction, whole_model
from interbasis_studies.paper.tasks.classifier import ClassifierTask
from interbasis_studies.paper.tasks.classifier.page import edges, interactions, models, modules

INTRODUCTION = (
    "Models: MLPs 3072-60-60-10 with ReLU. Graphs: float64, gradient edges, fitted on the 50,000 training "
    "images; ablations and probes on the 10,000 test images. Animals are six of the ten classes, vehicles "
    "four (the paper says five and five). The paper's own models are not at hand: rows in italics are its "
    "numbers; its pictures are not copied here, their numbers are diamonds and dashed lines in the figures."
)
PAPER_MODELS: tuple[tuple[Cell, ...], ...] = (
    ("*paper, 0 to 4*", None, None, f"{100 * ACCURACY[0]:.1f}–{percent(ACCURACY[1], 1)}",
     percent(DIRECTION["model_accuracy"], 1), f"{DIRECTION['model']:.3f}"),
)  # fmt: skip


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
        return INTRODUCTION

    def sections(self, r: Reproduction[Cifar10Result]) -> list[str]:
        def whole(job: Cifar10Result) -> tuple[str, str]:
            return percent(job.whole.attribute_accuracy, 1), f"{job.whole.auroc:.3f}"

        return [
            models(r, ("animal or vehicle", "its AUROC"), whole, PAPER_MODELS),
            edges(self, r, {}),
            _ranges(self, r) + "\n\n" + _directions(self, r),
            modules(r, frequencies=False),
            interactions(self, r),
        ]

    def pictures(self, r: Reproduction[Cifar10Result]) -> Iterator[Picture]:
        from interbasis_studies.paper.tasks.cifar10 import figures

        return figures.pictures(self, r)


def _ranges(task: ClassifierTask[Cifar10Result], r: Reproduction[Cifar10Result]) -> str:
    """AUROC, variance and intervention per basis and layer, over the seeds."""
    rows: list[tuple[Cell, ...]] = []
    for basis in r.finished_bases:
        for layer, name in task.layer_names(r).items():
            column = [job.directions[layer] for job in r.of_basis(basis)]
            before = mean([row.accuracy_before for row in column])
            after = mean([row.accuracy_after for row in column])
            rows.append((
                BASIS_LABELS[basis], name, spread([row.auroc for row in column]),
                spread([row.second_auroc for row in column]),
                spread([row.explained for row in column], "{:.0%}"), *_accuracies(before, after),
            ))  # fmt: skip
            if basis == "lib" and layer == r.jobs[0].layers[-2]:
                rows.append((
                    "*LIB, paper*", f"{name}, seed 0", f"{DIRECTION['auroc']:.3f}", None,
                    f"{DIRECTION['explained']:.0%}", *_accuracies(DIRECTION["before"], DIRECTION["after"]),
                ))  # fmt: skip
    return (
        "## Animal against vehicle\n\nThe feature of a layer with the largest AUROC on 10,000 training "
        "images (of the first 512 features), and the second best; measured on the test images, "
        "smallest–largest over the seeds. Explained: the attribute's share of the feature's variance. "
        "Accuracy: of the ten classes, before and after the feature is set to its training mean given "
        "the true attribute, means over the seeds.\n\n"
        + markdown_table(("basis", "layer", "AUROC", "second", "explained", "accuracy", "points"), rows)
    )


def _accuracies(before: float, after: float) -> tuple[str, str]:
    return f"{percent(before, 1)} → {percent(after, 1)}", f"{100 * (after - before):+.1f}"


def _directions(task: ClassifierTask[Cifar10Result], r: Reproduction[Cifar10Result]) -> str:
    rows = [
        (
            BASIS_LABELS[job.basis], job.seed, name, f"{row.auroc:.3f} (f{row.feature})",
            f"{row.second_auroc:.3f} (f{row.second_feature})", f"{row.explained:.0%}",
            f"{percent(row.accuracy_before)} → {percent(row.accuracy_after)}",
        )
        for job in r.by_basis
        for name, row in zip(task.layer_names(r).values(), job.directions.values(), strict=True)
    ]  # fmt: skip
    return "Seed by seed:\n\n" + markdown_table(
        ("basis", "seed", "layer", "AUROC", "second", "explained", "accuracy"), rows
    )
