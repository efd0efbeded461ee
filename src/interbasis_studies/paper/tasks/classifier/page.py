"""Parts of the page that both tasks over seeds have."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from interbasis.analysis.ablation.records import EdgesRequired
from interbasis.base.records import Basis
from interbasis.show.tables import Cell, markdown_table, percent
from interbasis_studies.paper.plan import BASIS_LABELS
from interbasis_studies.paper.records import Reproduction
from interbasis_studies.paper.tasks.classifier import C, ClassifierTask, Partition

SMALLEST_DEVIATION = 1e-9
"""Standard deviations of rewired graphs' modularity below this are rounding, as with a single module."""
Rows = Mapping[Basis, Sequence[Sequence[Cell]]]
"""The paper's rows by basis and seed."""


def models(
    r: Reproduction[C],
    head: Sequence[str],
    cells: Callable[[C], Sequence[Cell]],
    paper: Sequence[Sequence[Cell]],
) -> str:
    """The models and their accuracies, those of the paper below them."""
    rows = [
        (str(job.seed), f"`{job.model.partition(':')[2]}`", percent(job.train_accuracy),
         percent(job.test_accuracy, 3), *cells(job))
        for job in r.models
    ]  # fmt: skip
    head = ("seed", "checkpoint", "train accuracy", "test accuracy", *head)
    return "## Models\n\n" + markdown_table(head, [*rows, *paper])


def beside_the_paper(
    r: Reproduction[C], head: Sequence[str], ours: Callable[[C], Sequence[Cell]], paper: Rows, whose: str
) -> str:
    """A table with a row per job, and below those of a basis the rows of the paper's own models."""
    rows: list[Sequence[Cell]] = []
    for basis in r.finished_bases:
        label = BASIS_LABELS[basis]
        rows += [(label, "here", job.seed, *ours(job)) for job in r.of_basis(basis)]
        rows += [(label, f"*{whose}*", seed, *row) for seed, row in enumerate(paper.get(basis, ()))]
    return markdown_table(("basis", "models", "seed", *head), rows)


def edges(task: ClassifierTask[C], r: Reproduction[C], published: Rows) -> str:
    """Edges required per job, and their range over the seeds."""
    names = list(task.section_names(r).values())
    ranges: list[tuple[Cell, ...]] = [
        (BASIS_LABELS[basis], len(r.of_basis(basis)),
         *map(_range, zip(*(job.counts for job in r.of_basis(basis)), strict=True)))
        for basis in r.finished_bases
    ]  # fmt: skip
    note = (
        " In brackets the smallest count of a logarithmic grid from which every larger one passes as well, "
        "where it is another: accuracy is not monotone in the number of edges, and the bisection may stop "
        "above or below."
        if task.settings.stable
        else ""
    )
    return (
        "## Edges required\n\nThe fewest edges of a section, by the paper's bisection, with which test "
        "accuracy stays within 0.1 points of the original model's; each section alone, the constant's "
        f"edges free.{note}\n\n"
        + beside_the_paper(
            r, names, lambda job: [_count(section) for section in job.ablation.sections.values()], published,
            "authors' files",
        )
        + "\n\nOver the seeds here, smallest – median – largest:\n\n"
        + markdown_table(("basis", "seeds", *names), ranges)
    )  # fmt: skip


def modules(r: Reproduction[C], frequencies: bool) -> str:
    """Modularity at both resolutions."""
    rows = [
        (BASIS_LABELS[job.basis], job.seed, partition.resolution, *_partition(partition, frequencies))
        for job in r.by_basis
        for partition in job.partitions
    ]
    head = ["basis", "seed", "γ", "modules", "modularity", "null", "z", "agreement"]
    return (
        "## Modules\n\nLeiden on log(Ê/ε), ε the smallest edge needed. Null: rewired graphs with the "
        "same degrees and weights; z: standard deviations above their mean. Agreement: adjusted mutual "
        "information of partitions with different seeds."
        + (
            " Last column: frequencies of which nine in ten features are in one module and make up nine "
            "tenths of it; the paper shows 49, 38 and 36 in its seed 3 at γ = 0.5, by eye."
            if frequencies
            else ""
        )
        + "\n\n"
        + markdown_table([*head, *(["frequencies with a module of their own"] if frequencies else [])], rows)
    )


def interactions(task: ClassifierTask[C], r: Reproduction[C]) -> str:
    """Sparsity of the edges without thresholds."""
    rows = [
        (BASIS_LABELS[job.basis], job.seed,
         *(f"{s.participation:.1f} / {s.gini:.2f} / {s.hoyer:.2f}" for s in job.sparsity.values()))
        for job in r.by_basis
    ]  # fmt: skip
    return (
        "## Interaction sparsity\n\nWithout a threshold: how many inputs an output feature effectively has / "
        "Gini / Hoyer of all edges, each output feature's edges divided by their norm.\n\n"
        + markdown_table(("basis", "seed", *task.section_names(r).values()), rows)
    )


def _count(section: EdgesRequired) -> str:
    stable = section.stable_count
    return f"{section.count:,}" + ("" if stable in (None, section.count) else f" ({stable:,})")


def _range(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return f"{counts[0]:,}"
    return f"{min(counts):,} – {median(counts):,g} – {max(counts):,}"


def _partition(partition: Partition, frequencies: bool) -> list[Cell]:
    result = partition.result
    if result is None or result.null is None:
        return [*["–"] * (4 + frequencies), partition.problem]
    null = result.null
    cells: list[Cell] = [
        result.modules, f"{result.modularity:.3f}", f"{null.mean:.3f} ± {null.deviation:.3f}",
        f"{null.z:+.1f}" if null.deviation > SMALLEST_DEVIATION else None,
        f"{result.agreement_over_seeds:.2f}",
    ]  # fmt: skip
    if known := partition.frequencies:
        separated = ", ".join(map(str, known.own)) or "none"
        cells.append(f"{separated} (of {len(known.considered)}; agreement {known.agreement:.2f})")
    return cells
