"""Parts of the page that both tasks have."""

from collections.abc import Iterator
from typing import Any

from interbasis.reproduction.markdown import table
from interbasis.reproduction.paper import AUTHORS

Piece = dict[str, Any]
ROUNDING = 1e-9


def ordered(found: dict[str, Any]) -> Iterator[Piece]:
    """Pieces basis by basis, in the order of the plan."""
    yield from sorted(
        found["pieces"], key=lambda piece: (found["bases"].index(piece["basis"]), piece["seed"])
    )


def edges(found: dict[str, Any]) -> str:
    """Edges required per piece, and their range over the seeds."""
    names = [f"{row['from']} → {row['to']}" for row in found["pieces"][0]["edges"]]
    rows = [
        (piece["basis"], piece["seed"], *(_count(row) for row in piece["edges"]), *_stored(piece, found))
        for piece in ordered(found)
    ]
    stored = ("authors' own",) if _any_stored(found) else ()
    ranges = [
        (
            basis,
            len(pieces),
            *(_range([piece["edges"][k]["count"] for piece in pieces]) for k in range(len(names))),
        )
        for basis in found["bases"]
        if (pieces := [piece for piece in found["pieces"] if piece["basis"] == basis])
    ]
    stable = found["pieces"][0]["depth"]["stable"]
    note = (
        " In brackets the smallest count of a logarithmic grid from which every larger one passes as "
        "well, where it "
        "is another: accuracy is not monotone in the number of edges, and the bisection may stop above "
        "or below."
        if stable
        else ""
    )
    return (
        "## Edges required\n\nThe fewest edges of a section, by the paper's bisection, with which test "
        "accuracy stays "
        f"within 0.1 points of the untouched model's; each section alone, the constant's edges "
        f"free.{note}\n\n"
        + table(("basis", "seed", *names, *stored), rows)
        + "\n\nOver the seeds, smallest – median – largest:\n\n"
        + table(("basis", "seeds", *names), ranges)
    )


def modules(found: dict[str, Any]) -> str:
    """Modularity at both resolutions."""
    rows = []
    for piece in ordered(found):
        for row in piece["modules"]:
            if "refused" in row:
                rows.append((piece["basis"], piece["seed"], row["resolution"], *["–"] * 5, row["refused"]))
                continue
            null, fourier = row["null"], row.get("frequencies")
            rows.append((
                piece["basis"], piece["seed"], row["resolution"], row["modules"], f"{row['modularity']:.3f}",
                f"{null['mean']:.3f} ± {null['deviation']:.3f}", _deviations(null),
                f"{row['agreement']['seeds']:.2f}", _frequencies(fourier),
            ))  # fmt: skip
    return (
        "## Modules\n\nLeiden on log(Ê/ε), ε the smallest edge needed. Null: rewired graphs with the "
        "same degrees and "
        "weights; z: standard deviations above their mean. Agreement: adjusted mutual information of "
        "partitions with "
        "different seeds.\n\n"
        + table(
            ("basis", "seed", "γ", "modules", "modularity", "null", "z", "agreement",
             "frequencies with a module of their own"),
            rows,
        )
    )  # fmt: skip


def interactions(found: dict[str, Any]) -> str:
    """Sparsity of the edges without thresholds."""
    names = [f"{row['source']} → {row['target']}" for row in found["pieces"][0]["sparsity"]]
    rows = [
        (piece["basis"], piece["seed"],
         *(f"{s['participation']:.1f} / {s['gini']:.2f} / {s['hoyer']:.2f}" for s in piece["sparsity"]))
        for piece in ordered(found)
    ]  # fmt: skip
    return (
        "## Interaction sparsity\n\nWithout a threshold: how many inputs an output feature effectively "
        "has / Gini / "
        "Hoyer of all edges, each output feature's edges divided by their norm.\n\n"
        + table(("basis", "seed", *names), rows)
    )


def _count(row: dict[str, Any]) -> str:
    stable = row["stable_count"]
    return f"{row['count']:,}" + ("" if stable in (None, row["count"]) else f" ({stable:,})")


def _range(counts: list[int]) -> str:
    middle = sorted(counts)[len(counts) // 2]
    return f"{min(counts):,} – {middle:,} – {max(counts):,}"


def _any_stored(found: dict[str, Any]) -> bool:
    return any(piece["model_fingerprint"] in AUTHORS for piece in found["pieces"])


def _stored(piece: Piece, found: dict[str, Any]) -> tuple[str, ...]:
    """What the authors' file holds for the same model and basis."""
    if not _any_stored(found):
        return ()
    theirs = AUTHORS.get(piece["model_fingerprint"], {}).get(piece["basis"])
    return (", ".join(map(str, theirs)) if theirs else "–",)


def _deviations(null: dict[str, Any]) -> str:
    """z; none where all rewired graphs have the same modularity, as with a single module."""
    return f"{null['z']:+.1f}" if null["deviation"] > ROUNDING else "–"


def _frequencies(fourier: dict[str, Any] | None) -> str:
    if fourier is None:
        return "–"
    own = ", ".join(map(str, fourier["own"])) or "none"
    return f"{own} (of {len(fourier['considered'])}; agreement {fourier['agreement']:.2f})"
