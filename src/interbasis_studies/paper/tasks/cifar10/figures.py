"""The figures of CIFAR-10: those of the paper's section 3.2."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from interbasis_studies.paper import seed_figures
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.plan import BASIS_LABELS
from interbasis_studies.paper.published import DIRECTION, FEW_EDGES
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.cifar10.directions import Cifar10Result
from interbasis_studies.paper.tasks.classifier import ClassifierTask
from interbasis_studies.paper.tasks.classifier import figures as common

ANIMALS = "Animal against vehicle"
RANKS = ("best", "2nd", "3rd", "4th")


def pictures(task: ClassifierTask[Cifar10Result], r: Reproduction[Cifar10Result]) -> Iterator[Picture]:
    """All figures in the order of the page."""
    sections, layers = task.section_names(r), task.layer_names(r)
    yield _edges(r, list(sections.values()))
    yield from common.edges_tried(r, sections)
    yield _auroc(r, layers)
    yield from _effects(r, layers)
    yield from common.modularity(r)
    yield from common.graphs(r, labels)


def labels(job: Cifar10Result) -> common.Labels:
    """The best direction of every layer."""
    return {row.layer: {row.feature: f"animal {row.auroc:.2f}"} for row in job.directions.values()}


def _edges(r: Reproduction[Cifar10Result], places: Sequence[str]) -> Picture:
    title = "edges required"
    figure = seed_figures.spread_bars(
        {title: _values(r, lambda job: job.counts)}, places, "edges, log scale", scale="log", bottom=1,
        lines={title: FEW_EDGES},
        explanation="Fewest edges that keep test accuracy within 0.1 points; "
        f"{common.range_in_words(r)}. Dashed: the paper's “about {FEW_EDGES}” for LIB.",
    )  # fmt: skip
    return Picture("Edges required", "edges", f"Edges required, {common.seeds_in_words(r)}.", figure)


def _auroc(r: Reproduction[Cifar10Result], layers: Mapping[str, str]) -> Picture:
    """The best directions of every layer as classifiers of animal against vehicle."""
    ranks = min(len(row.best_auroc) for job in r.jobs for row in job.directions.values())
    panels = {
        name: {
            BASIS_LABELS[basis]: [
                [job.directions[layer].best_auroc[rank] for job in r.of_basis(basis)] for rank in range(ranks)
            ]
            for basis in r.finished_bases
        }
        for layer, name in layers.items()
    }
    whole = sum(job.whole.auroc for job in r.models) / len(r.models)
    paper = [DIRECTION["auroc"], *[None] * (ranks - 1)]
    few = "" if ranks == len(RANKS) else f" Of {len(RANKS)} features that the paper shows {ranks} were kept."
    figure = seed_figures.spread_bars(
        panels, RANKS[:ranks], "AUROC", bottom=0.5, top=1, lines=dict.fromkeys(panels, whole),
        published={layers[r.jobs[0].layers[-2]]: {"LIB": paper}},
        explanation="AUROC of single features for animal against vehicle on the test images, the features "
        f"ranked on training images; {common.range_in_words(r)}. Dashed: the whole models, {whole:.3f} "
        f"(paper {DIRECTION['model']}). Diamond: the paper's {paper[0]}."
        + few,
    )  # fmt: skip
    caption = "The best directions of every layer as classifiers of animal against vehicle."
    return Picture(ANIMALS, "auroc", caption, figure)


def _effects(r: Reproduction[Cifar10Result], layers: Mapping[str, str]) -> Iterator[Picture]:
    names, last_hidden = list(layers.values()), r.jobs[0].layers[-2]
    explained = [DIRECTION["explained"] if layer == last_hidden else None for layer in layers]
    gain = DIRECTION["after"] - DIRECTION["before"]
    raised = [gain if layer == last_hidden else None for layer in layers]
    over = f"{common.range_in_words(r).capitalize()}. Diamond: the paper's"
    yield Picture(
        ANIMALS, "explained", "Share of the best direction's variance that animal or vehicle explains.",
        seed_figures.spread_bars(
            {"variance explained": _values(r, lambda job: [d.explained for d in job.directions.values()])},
            names, "variance explained", scale="percent",
            published={"variance explained": {"LIB": explained}},
            explanation=f"{over} {DIRECTION['explained']:.0%}.",
        ),
    )  # fmt: skip
    gains = _values(r, lambda job: [d.accuracy_after - d.accuracy_before for d in job.directions.values()])
    yield Picture(
        ANIMALS, "intervention", "Test accuracy gained when the best direction is set by the true attribute.",
        seed_figures.spread_bars(
            {"intervention": gains}, names, "accuracy, points", scale="points",
            published={"intervention": {"LIB": raised}},
            explanation=f"{over} {DIRECTION['before']:.1%} → {DIRECTION['after']:.1%}.",
        ),
    )  # fmt: skip


def _values(
    r: Reproduction[Cifar10Result], values: Callable[[Cifar10Result], Sequence[float]]
) -> dict[str, list[list[float]]]:
    """{basis by its label: values [places][seeds]}."""
    return {
        BASIS_LABELS[basis]: [list(column) for column in zip(*map(values, r.of_basis(basis)), strict=True)]
        for basis in r.finished_bases
    }
