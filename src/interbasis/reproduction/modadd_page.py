"""What the page of modular addition has beside the common parts."""

from typing import Any

from interbasis.features.monosemanticity import compare
from interbasis.reproduction.markdown import table
from interbasis.reproduction.paper import MONOSEMANTIC, SECTIONS
from interbasis.reproduction.sections import ordered

INTRODUCTION = (
    "Models: one-layer transformers for x + y mod p. Graphs: float64, gradient edges (α = 1), noise "
    "floor by the "
    "paper's rule (1e-15, no relative part), fitted on the training pairs; ablations on the test pairs. "
    "Seeds are those "
    "of the models named below: where they were trained here, seed N is not the paper's seed N, and the "
    "paper's counts "
    "are to be compared as a distribution."
)


def sections(found: dict[str, Any]) -> list[str]:
    return [part for part in (_nodes(found), _relevance(found), _monosemantic(found)) if part]


def _nodes(found: dict[str, Any]) -> str:
    pieces = [piece for piece in ordered(found) if piece["nodes"]]
    if not pieces:
        return ""
    names = [row["name"] for row in pieces[0]["nodes"]]
    rows = [(p["basis"], p["seed"], *(row["count"] for row in p["nodes"])) for p in pieces]
    return (
        "## Nodes required\n\nThe fewest leading features of a layer, the constant counted, that keep "
        "test accuracy "
        "within 0.1 points; every number was tried. On the authors' seeds 0 and 1 such a scan gives 14, "
        "17, 9 and "
        "9, 12, 10 in both bases.\n\n" + table(("basis", "seed", *names), rows)
    )


def _relevance(found: dict[str, Any]) -> str:
    rows = []
    for piece in ordered(found):
        by_eye, by_need = ([len(one["features"]) for one in piece[key]] for key in ("idle", "idle_by_need"))
        rows.append((piece["basis"], piece["seed"], *by_eye, *by_need))
    head = [f"before the {name}" for name in SECTIONS[1:]]
    return (
        "## Functional relevance\n\nFeatures among the first 25 with incoming but no outgoing edges. An "
        "edge counts "
        "from 3 % of its section's largest Ê on (a thousandth of its Ê²: what a picture shows); in the "
        "last two columns "
        "from the smallest edge that the ablation needs. The paper counts by eye.\n\n"
        + table(("basis", "seed", *head, *(f"{name}, by need" for name in head)), rows)
    )


def _monosemantic(found: dict[str, Any]) -> str:
    rows = []
    for piece in ordered(found):
        counts = piece["monosemantic"]
        theirs = MONOSEMANTIC.get(piece["basis"], ())
        rows.append((
            piece["basis"], piece["seed"], *(f"{row['paper']} ({row['without_constant']})" for row in counts),
            f"{sum(r['paper'] for r in counts)} ({sum(r['without_constant'] for r in counts)})",
            theirs[piece["seed"]] if piece["seed"] < len(theirs) else None,
        ))  # fmt: skip
    names = [f"before the {name}" for name in SECTIONS]
    return (
        "## Monosemanticity\n\nFeatures over 90 % one Fourier term: among the first 10 of a layer with "
        "the constant, as "
        "the paper counts; in brackets among the first 10 after the constant.\n\n"
        + table(("basis", "seed", *names, "all", "paper, its own seed"), rows)
        + "\n\n"
        + _distances(found)
    )


def _distances(found: dict[str, Any]) -> str:
    """How the leading shares of the first features differ between bases."""
    shares: dict[str, list[float]] = {}
    for piece in ordered(found):
        for row in piece["monosemantic"]:
            shares.setdefault(piece["basis"], []).extend(row["shares"][: row["top"]])
    if len(shares) < 2:
        return ""
    compared = compare(dict(shares))
    rows = [
        (f"{a} and {b}", f"{distance:.3f}", f"{compared.p_value[a, b]:.2g}")
        for (a, b), distance in compared.distance.items()
    ]
    return (
        "Leading shares of those features, all seeds and layers together, compared by the Kolmogorov–Smirnov "
        "distance:\n\n" + table(("bases", "distance", "p"), rows)
    )
