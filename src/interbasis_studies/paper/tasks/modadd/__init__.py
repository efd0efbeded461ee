"""Section 3.1, modular addition: claims M1 to M8."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from interbasis.analysis.features.fourier_labels import compare
from interbasis.base.progress import Progress
from interbasis.run.run import Run
from interbasis.show.tables import Cell, markdown_table
from interbasis_studies.paper import published
from interbasis_studies.paper.claims import Verdict
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.jobs import Job, JobClock
from interbasis_studies.paper.plan import BASIS_LABELS
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.classifier import ClassifierTask, page
from interbasis_studies.paper.tasks.modadd import claims, measures
from interbasis_studies.paper.tasks.modadd.measures import ModaddResult

INTRODUCTION = (
    "Models: one-layer transformers for x + y mod p. Graphs: float64, gradient edges (α = 1), noise "
    "floor by the paper's rule (1e-15, no relative part), fitted on the training pairs; ablations on the "
    "test pairs. Seeds are those of the models named below: where they were trained here, seed N is not "
    "the paper's seed N, and the paper's counts are to be compared as a distribution. Rows in italics "
    "are the paper's, or those of its authors' published run files for seeds 0 and 1; the paper's "
    "pictures are not copied here, their numbers are diamonds and thin lines in the figures."
)
PAPER_MODELS: tuple[tuple[Cell, ...], ...] = (
    ("*paper, 0 to 4*", None, "100 %", "100 %"),
    ("*authors' files, 0*", None, None, "99.955 %"),
    ("*authors' files, 1*", None, None, "99.888 %"),
)


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
        return INTRODUCTION

    def sections(self, r: Reproduction[ModaddResult]) -> list[str]:
        layers = list(self.layer_names(r).values())
        return [
            page.models(r, (), lambda job: (), PAPER_MODELS),
            page.edges(self, r, published.STORED_EDGES),
            _nodes(r, layers[:-1]),
            _relevance(r, layers[1:-1]),
            _monosemantic(r, layers[:-1]),
            page.modules(r, frequencies=True),
            page.interactions(self, r),
        ]

    def pictures(self, r: Reproduction[ModaddResult]) -> Iterator[Picture]:
        from interbasis_studies.paper.tasks.modadd import figures

        return figures.pictures(self, r)


def _nodes(r: Reproduction[ModaddResult], layers: Sequence[str]) -> str:
    if not all(job.ablation.layers for job in r.jobs):
        return ""
    return (
        "## Nodes required\n\nThe fewest leading features of a layer, the constant counted, that keep "
        "test accuracy within 0.1 points; every number was tried, on the authors' models too (their own "
        "counts are limited by a coarse grid). A larger number of features need not pass, too: see the "
        "curves.\n\n"
        + page.beside_the_paper(
            r, layers, lambda job: [layer.count for layer in job.ablation.layers.values()],
            published.STORED_NODES, "authors' models",
        )
    )  # fmt: skip


def _relevance(r: Reproduction[ModaddResult], layers: Sequence[str]) -> str:
    def ours(job: ModaddResult) -> list[str]:
        return [_listed(layer.features) for by in (job.idle, job.idle_by_need) for layer in by.values()]

    paper = {
        basis: [(_listed(seed), "none" if basis == "lib" else "many", None, None) for seed in seeds]
        for basis, seeds in published.IDLE.items()
    }
    return (
        "## Functional relevance\n\nFeatures among the first 25 with incoming but no outgoing edges: how "
        "many, and which. An edge counts from 3 % of its section's largest Ê on (a thousandth of its Ê²: "
        "what a picture shows); in the last two columns from the smallest edge that the ablation needs. "
        "The paper counts by eye.\n\n"
        + page.beside_the_paper(r, [*layers, *(f"{name}, by need" for name in layers)], ours, paper, "paper")
    )


def _listed(features: Sequence[int]) -> str:
    return f"{len(features)}: {', '.join(map(str, features))}" if features else "0"


def _monosemantic(r: Reproduction[ModaddResult], layers: Sequence[str]) -> str:
    def ours(job: ModaddResult) -> list[str]:
        counts = [(count.paper, count.without_constant) for count in job.monosemantic.values()]
        sums = tuple(map(sum, zip(*counts, strict=True)))
        return [f"{with_it} ({without})" for with_it, without in [*counts, sums]]

    unknown: tuple[Cell, ...] = (None, None, None)
    paper = {
        basis: [
            (*by_layer, count)
            for by_layer, count in zip(
                [*published.STORED_MONOSEMANTIC[basis], *[unknown] * 3], row, strict=True
            )
        ]
        for basis, row in published.MONOSEMANTIC.items()
    }
    parts = [
        "## Monosemanticity\n\nFeatures over 90 % one Fourier term: among the first 10 of a layer with "
        "the constant, as the paper counts; in brackets among the first 10 after the constant. The "
        "paper's table has the last column only; the layers of its seeds 0 and 1 are from the authors' "
        "files.\n\n" + page.beside_the_paper(r, [*layers, "all"], ours, paper, "paper"),
        _distances(r, layers),
    ]
    return "\n\n".join(part for part in parts if part)


def _distances(r: Reproduction[ModaddResult], layers: Sequence[str]) -> str:
    """Distances between bases of the leading shares of the first features."""
    if len(r.finished_bases) < 2:
        return ""
    compared = [
        compare(
            {
                BASIS_LABELS[basis]: [
                    share for job in r.of_basis(basis) for share in job.monosemantic[layer].first_shares
                ]
                for basis in r.finished_bases
            }
        )
        for layer in r.jobs[0].monosemantic
    ]
    rows = [
        (f"{a} and {b}", *(f"{one.distance[a, b]:.2f} (p = {one.p_value[a, b]:.2g})" for one in compared))
        for a, b in compared[0].distance
    ]
    return (
        "Leading shares of the first ten features without the constant, all seeds together, compared by the "
        "Kolmogorov–Smirnov distance. Features of a model are not independent, so the p values are too "
        "small:\n\n" + markdown_table(("bases", *layers), rows)
    )
