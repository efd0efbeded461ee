"""The figures of modular addition: those of the paper's section 3.1 and its appendices."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from interbasis import figures
from interbasis_studies.paper import published, seed_figures
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.plan import BASIS_LABELS
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.classifier import ClassifierTask
from interbasis_studies.paper.tasks.classifier import figures as common
from interbasis_studies.paper.tasks.modadd.claims import MODULES_RESOLUTION
from interbasis_studies.paper.tasks.modadd.measures import ModaddResult

AUTHORS = "the authors' models, seeds 0 and 1 (their run files)"
REQUIRED = "Required: the fewest that keep test accuracy within 0.1 points of the untouched model's."


def pictures(task: ClassifierTask[ModaddResult], r: Reproduction[ModaddResult]) -> Iterator[Picture]:
    """All figures in the order of the page."""
    sections, layers = task.section_names(r), task.layer_names(r)
    before_output = {name: layers[name] for name in list(layers)[:-1]}
    yield _edges(r, list(sections.values()))
    yield from common.edges_tried(r, sections)
    if any(job.ablation.layers for job in r.jobs):
        yield _nodes(r, list(before_output.values()))
        yield from common.nodes_tried(r, before_output)
    yield _relevance(r, list(layers.values())[1:-1])
    yield from _monosemanticity(r, before_output)
    yield from common.modularity(r)
    yield from _clearest(r)
    yield from common.graphs(r, labels)


def labels(job: ModaddResult) -> common.Labels:
    """Fourier labels of the first features, the constant's among them."""
    return {layer: dict(enumerate(texts)) for layer, texts in job.labels.items()}


def _edges(r: Reproduction[ModaddResult], places: Sequence[str]) -> Picture:
    source = AUTHORS + ("; GIB of seed 0" if "gib" in r.finished_bases else "")
    figure = figures.required(
        common.counts_by_basis(r, lambda job: job.counts, len(places)), places, rule=REQUIRED,
        published=common.labelled(published.STORED_EDGES), source=source,
    )  # fmt: skip
    return Picture("Edges required", "edges", f"Edges required, {common.seeds_in_words(r)}.", figure)


def _nodes(r: Reproduction[ModaddResult], places: Sequence[str]) -> Picture:
    def counts(job: ModaddResult) -> list[int | None]:
        return [layer.count for layer in job.ablation.layers.values()] or [None] * len(places)

    figure = figures.required(
        common.counts_by_basis(r, counts, len(places)), places, "nodes required", REQUIRED,
        published=common.labelled(published.STORED_NODES),
        source="the authors' models, seeds 0 and 1, scanned",
    )  # fmt: skip
    return Picture("Nodes required", "nodes", f"Nodes required, {common.seeds_in_words(r)}.", figure)


def _relevance(r: Reproduction[ModaddResult], places: Sequence[str]) -> Picture:
    counts = common.counts_by_basis(r, lambda job: [layer.count for layer in job.idle.values()], len(places))
    paper = {basis: [[len(seed), None] for seed in rows] for basis, rows in published.IDLE.items()}
    figure = figures.required(
        counts, places, quantity="idle features", published=common.labelled(paper),
        source="the paper's count by eye, seeds 0 to 4; before the unembedding it has PCA many, LIB none",
        rule="Idle: incoming edges but none out, from 3 % of the section's largest on; first 25 features.",
    )  # fmt: skip
    caption = f"Features that are computed and not used, {common.seeds_in_words(r)}."
    return Picture("Functional relevance", "relevance", caption, figure)


def _monosemanticity(r: Reproduction[ModaddResult], layers: Mapping[str, str]) -> Iterator[Picture]:
    shares = {
        name: {
            BASIS_LABELS[basis]: [
                share for job in r.of_basis(basis) for share in job.monosemantic[layer].first_shares
            ]
            for basis in r.finished_bases
        }
        for layer, name in layers.items()
    }
    paper = {
        name: {
            BASIS_LABELS[basis]: [share / 100 for seed in seeds for share in seed[k]]
            for basis, seeds in published.STORED_SHARES.items()
        }
        for k, name in enumerate(layers.values())
    }
    yield Picture(
        "Monosemanticity", "monosemanticity-density",
        "Variance of a feature that its leading Fourier term explains (the paper's KDE figure).",
        seed_figures.share_densities(
            shares, published=paper, source=AUTHORS,
            about=f"The first ten features of a layer without the constant, {common.seeds_in_words(r)}.",
        ),
    )  # fmt: skip
    counts = {basis: [[count] for count in row] for basis, row in published.MONOSEMANTIC.items()}
    figure = figures.required(
        common.counts_by_basis(r, lambda job: [job.monosemantic_features], 1),
        ["first 10 features of three layers"], quantity="features over 90 % one term",
        published=common.labelled(counts), source="the paper's table, seeds 0 to 4",
    )  # fmt: skip
    words = common.seeds_in_words(r)
    caption = f"Monosemantic features of 30, the constants counted as in the paper, {words}."
    yield Picture("Monosemanticity", "monosemanticity-counts", caption, figure)


def _clearest(r: Reproduction[ModaddResult]) -> Iterator[Picture]:
    """The LIB graph whose modules at γ = 0.5 are most like frequencies; the paper picks its seed 3 by eye."""
    agreements = [
        (partition.frequencies.agreement, job)
        for job in r.of_basis("lib")
        if (partition := job.partition(MODULES_RESOLUTION)) and partition.frequencies
    ]
    if not agreements:
        return
    agreement, best = max(agreements, key=lambda pair: pair[0])
    yield Picture(
        common.GRAPHS, "graph-clearest",
        f"The LIB graph whose modules at γ = 0.5 agree most with frequencies: seed {best.seed}, adjusted "
        f"mutual information {agreement:.2f}. The paper shows its seed 3, chosen by eye.",
        common.graph_figure(best, Path(r.out), labels(best), MODULES_RESOLUTION, top=15),
    )  # fmt: skip
