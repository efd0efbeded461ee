"""Figures that both tasks over seeds have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from interbasis import figures
from interbasis.analysis.ablation.records import EdgesRequired, NodesRequired
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import load_tensors
from interbasis.base.records import Basis
from interbasis.graph.store import load
from interbasis_studies.paper import seed_figures
from interbasis_studies.paper.figures import Picture
from interbasis_studies.paper.plan import BASIS_LABELS
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.classifier import C, ClassifierResult

V = TypeVar("V")
Labels = Mapping[str, Mapping[int, str]]
"""{layer: {feature: text}}."""
GRAPHS = "Interaction graphs"
FEATURES_PER_LAYER = 24
"""In a graph's picture: with the constant the 25 that the paper looks at."""


def counts_by_basis(
    r: Reproduction[C], counts: Callable[[C], Sequence[int | None]], places: int
) -> dict[str, list[list[int | None]]]:
    """{basis by its label: counts [seeds][places]} for a figure, None where a job is missing."""
    return {
        BASIS_LABELS[basis]: [
            [None] * places if job is None else list(counts(job)) for job in r.by_seed(basis)
        ]
        for basis in r.finished_bases
    }


def labelled(by_basis: Mapping[Basis, V]) -> dict[str, V]:
    """The same with the bases' labels as figures have them."""
    return {BASIS_LABELS[basis]: value for basis, value in by_basis.items()}


def seeds_in_words(r: Reproduction[C]) -> str:
    return f"seed {r.seeds[0]}" if len(r.seeds) == 1 else f"{len(r.seeds)} seeds"


def range_in_words(r: Reproduction[C]) -> str:
    """Words for what bars show."""
    words = seeds_in_words(r)
    return f"mean, smallest and largest over {words}" if len(r.seeds) > 1 else words


def edges_tried(r: Reproduction[C], names: Mapping[str, str]) -> Iterator[Picture]:
    """Accuracy against the number of edges, as far as the search went; ``names`` by source layer."""
    caption = "Test accuracy against the number of edges kept, for every count that the search tried."
    about = ("Edges required", "edges-tried", caption)
    yield from _tried(r, names, "edges", about, lambda job: job.ablation.sections)


def nodes_tried(r: Reproduction[C], names: Mapping[str, str]) -> Iterator[Picture]:
    """Accuracy against the number of features; ``names`` by layer."""
    caption = "Test accuracy when a layer keeps its first features only (the paper's ablation curves)."
    about = ("Nodes required", "nodes-curves", caption)
    yield from _tried(r, names, "features", about, lambda job: job.ablation.layers)


def _tried(
    r: Reproduction[C],
    names: Mapping[str, str],
    what: str,
    about: tuple[str, str, str],
    required: Callable[[C], Mapping[str, EdgesRequired | NodesRequired]],
) -> Iterator[Picture]:
    rows: dict[str, dict[str, list[seed_figures.Tried | None]]] = {}
    for job in by_seed_and_basis(r):
        results, least = required(job), job.ablation.baseline - job.ablation.tolerance
        tried = [
            seed_figures.Tried(results[name].trials, results[name].count, least) if name in results else None
            for name in names
        ]
        if any(tried):
            rows.setdefault(f"seed {job.seed}", {})[BASIS_LABELS[job.basis]] = tried
    if rows:
        yield Picture(*about, seed_figures.tried_counts(rows, list(names.values()), "accuracy", what))


def by_seed_and_basis(r: Reproduction[C]) -> list[C]:
    """Seed by seed, bases in the order of the plan."""
    return sorted(r.by_basis, key=lambda job: job.seed or 0)


def modularity(r: Reproduction[C]) -> Iterator[Picture]:
    """Modularity at both resolutions beside the rewired graphs'."""
    panels = {
        f"γ = {partition.resolution:g}": {
            BASIS_LABELS[basis]: [_modules(job, partition.resolution) for job in r.by_seed(basis)]
            for basis in r.finished_bases
        }
        for partition in r.jobs[0].partitions
    }
    yield Picture(
        "Modules", "modularity", "Modularity of the needed edges at both resolutions, and of rewired graphs.",
        seed_figures.modularity_bars(panels, [f"seed {seed}" for seed in r.seeds]),
    )  # fmt: skip


def _modules(job: ClassifierResult | None, resolution: float) -> ModulesResult | None:
    partition = job and job.partition(resolution)
    return partition.result if partition else None


def graphs(r: Reproduction[C], labels: Callable[[C], Labels]) -> Iterator[Picture]:
    """The graphs that the paper has: LIB and PCA of every seed, and GIB of the first.

    Drawn are the needed edges, coloured by the modules of γ = 1.
    """
    for job in by_seed_and_basis(r):
        if job.basis in ("lib", "pca") or (job.basis, job.seed) == ("gib", r.seeds[0]):
            caption = f"Interaction graph of seed {job.seed}, {BASIS_LABELS[job.basis]}; modules at γ = 1."
            figure = graph_figure(job, Path(r.out), labels(job), 1.0)
            yield Picture(GRAPHS, f"graph-seed{job.seed}-{job.basis}", caption, figure)


def graph_figure(
    job: ClassifierResult, out: Path, labels: Labels, resolution: float, top: int = FEATURES_PER_LAYER
) -> Figure:
    """The graph of a job with its modules at a resolution."""
    graph = load(out / job.run)
    masks = load_tensors(out / job.run, AblationResult)
    needed = {
        source: masks[name] for source in graph.section_names if (name := f"edge_mask.{source}") in masks
    }
    result = _modules(job, resolution)
    return figures.interaction_graph(
        graph, top=top, needed=needed, labels=labels, modules=None if result is None else result.layers
    )
