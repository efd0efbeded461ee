"""Parts of the page that both tasks have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from interbasis.paper import paper
from interbasis.paper.markdown import table
from interbasis.paper.names import BASES, section_names

Piece = dict[str, Any]
ROUNDING = 1e-9
OWN = "here"
"""Whose models a row is about, where the table has the authors' as well."""


def ordered(found: dict[str, Any]) -> Iterator[Piece]:
    """Pieces basis by basis, in the order of the plan."""
    yield from sorted(
        found["pieces"], key=lambda piece: (found["bases"].index(piece["basis"]), piece["seed"])
    )


def beside_the_paper(
    found: dict[str, Any],
    head: Sequence[str],
    ours: Callable[[Piece], Sequence[Any]],
    theirs: Mapping[str, Sequence[Sequence[Any]]],
    whose: str,
) -> str:
    """A table with a row per piece, and below those of a basis the rows of the paper's own models.

    ``theirs`` holds the paper's rows by basis and seed.
    """
    rows: list[tuple[Any, ...]] = []
    for basis in found["bases"]:
        own = [piece for piece in ordered(found) if piece["basis"] == basis]
        rows += [(BASES[basis], OWN, piece["seed"], *ours(piece)) for piece in own]
        published = enumerate(theirs.get(basis, ())) if own else ()
        rows += [(BASES[basis], f"*{whose}*", seed, *row) for seed, row in published]
    return table(("basis", "models", "seed", *head), rows)


def edges(found: dict[str, Any]) -> str:
    """Edges required per piece, and their range over the seeds."""
    names = section_names(found)
    ranges = [
        (
            BASES[basis],
            len(pieces),
            *(_range([piece["edges"][k]["count"] for piece in pieces]) for k in range(len(names))),
        )
        for basis in found["bases"]
        if (pieces := [piece for piece in found["pieces"] if piece["basis"] == basis])
    ]
    note = (
        " In brackets the smallest count of a logarithmic grid from which every larger one passes as well, "
        "where it is another: accuracy is not monotone in the number of edges, and the bisection may stop "
        "above or below."
        if found["pieces"][0]["depth"]["stable"]
        else ""
    )
    stored: Mapping[str, Sequence[Sequence[Any]]] = paper.STORED_EDGES if found["task"] == "modadd" else {}
    return (
        "## Edges required\n\nThe fewest edges of a section, by the paper's bisection, with which test "
        "accuracy stays within 0.1 points of the untouched model's; each section alone, the constant's "
        f"edges free.{note}\n\n"
        + beside_the_paper(
            found, names, lambda piece: [_count(row) for row in piece["edges"]], stored, "authors' files"
        )
        + "\n\nOver the seeds here, smallest – median – largest:\n\n"
        + table(("basis", "seeds", *names), ranges)
    )


def modules(found: dict[str, Any]) -> str:
    """Modularity at both resolutions."""
    rows: list[tuple[Any, ...]] = []
    fourier = found["task"] == "modadd"
    for piece in ordered(found):
        for row in piece["modules"]:
            first = (BASES[piece["basis"]], piece["seed"], row["resolution"])
            if "refused" in row:
                rows.append((*first, *["–"] * (4 + fourier), row["refused"]))
                continue
            null = row["null"]
            rows.append((
                *first, row["modules"], f"{row['modularity']:.3f}",
                f"{null['mean']:.3f} ± {null['deviation']:.3f}", _deviations(null),
                f"{row['agreement']['seeds']:.2f}",
                *([_frequencies(row["frequencies"])] if fourier else []),
            ))  # fmt: skip
    head = ["basis", "seed", "γ", "modules", "modularity", "null", "z", "agreement"]
    return (
        "## Modules\n\nLeiden on log(Ê/ε), ε the smallest edge needed. Null: rewired graphs with the "
        "same degrees and weights; z: standard deviations above their mean. Agreement: adjusted mutual "
        "information of partitions with different seeds."
        + (
            " Last column: frequencies of which nine in ten features are in one module and make up nine "
            "tenths of it; the paper shows 49, 38 and 36 in its seed 3 at γ = 0.5, by eye."
            if fourier
            else ""
        )
        + "\n\n"
        + table([*head, *(["frequencies with a module of their own"] if fourier else [])], rows)
    )


def interactions(found: dict[str, Any]) -> str:
    """Sparsity of the edges without thresholds."""
    rows = [
        (BASES[piece["basis"]], piece["seed"],
         *(f"{s['participation']:.1f} / {s['gini']:.2f} / {s['hoyer']:.2f}" for s in piece["sparsity"]))
        for piece in ordered(found)
    ]  # fmt: skip
    return (
        "## Interaction sparsity\n\nWithout a threshold: how many inputs an output feature effectively has / "
        "Gini / Hoyer of all edges, each output feature's edges divided by their norm.\n\n"
        + table(("basis", "seed", *section_names(found)), rows)
    )


def _count(row: dict[str, Any]) -> str:
    stable = row["stable_count"]
    return f"{row['count']:,}" + ("" if stable in (None, row["count"]) else f" ({stable:,})")


def _range(counts: list[int]) -> str:
    if len(counts) == 1:
        return f"{counts[0]:,}"
    return f"{min(counts):,} – {median(counts):,g} – {max(counts):,}"


def _deviations(null: dict[str, Any]) -> str:
    """z; none where all rewired graphs have the same modularity, as with a single module."""
    return f"{null['z']:+.1f}" if null["deviation"] > ROUNDING else "–"


def _frequencies(fourier: dict[str, Any]) -> str:
    own = ", ".join(map(str, fourier["own"])) or "none"
    return f"{own} (of {len(fourier['considered'])}; agreement {fourier['agreement']:.2f})"
