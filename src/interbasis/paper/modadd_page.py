"""What the page of modular addition has beside the common parts."""

from collections.abc import Sequence
from typing import Any

from interbasis.features.monosemanticity import compare
from interbasis.paper import paper
from interbasis.paper.markdown import table
from interbasis.paper.names import BASES, layer_names
from interbasis.paper.sections import Piece, beside_the_paper, ordered

INTRODUCTION = (
    "Models: one-layer transformers for x + y mod p. Graphs: float64, gradient edges (α = 1), noise "
    "floor by the paper's rule (1e-15, no relative part), fitted on the training pairs; ablations on the "
    "test pairs. Seeds are those of the models named below: where they were trained here, seed N is not "
    "the paper's seed N, and the paper's counts are to be compared as a distribution. Rows in italics "
    "are the paper's, or those of its authors' published run files for seeds 0 and 1; the paper's "
    "pictures are not copied here, their numbers are diamonds and thin lines in the figures."
)
PAPER_MODELS: tuple[tuple[Any, ...], ...] = (
    ("*paper, 0 to 4*", None, "100 %", "100 %"),
    ("*authors' files, 0*", None, None, "99.955 %"),
    ("*authors' files, 1*", None, None, "99.888 %"),
)


def sections(found: dict[str, Any]) -> list[str]:
    return [part for part in (_nodes(found), _relevance(found), _monosemantic(found)) if part]


def model_columns(piece: Piece) -> tuple[str, ...]:
    return ()


MODEL_HEAD: tuple[str, ...] = ()


def _nodes(found: dict[str, Any]) -> str:
    if not all(piece["nodes"] for piece in found["pieces"]):
        return ""
    return (
        "## Nodes required\n\nThe fewest leading features of a layer, the constant counted, that keep "
        "test accuracy within 0.1 points; every number was tried, on the authors' models too (their own "
        "counts are limited by a coarse grid). A larger number of features need not pass, too: see the "
        "curves.\n\n"
        + beside_the_paper(
            found, layer_names(found)[:-1], lambda piece: [row["count"] for row in piece["nodes"]],
            paper.STORED_NODES, "authors' models",
        )
    )  # fmt: skip


def _relevance(found: dict[str, Any]) -> str:
    def ours(piece: Piece) -> list[str]:
        return [_listed(one["features"]) for key in ("idle", "idle_by_need") for one in piece[key]]

    theirs = {
        basis: [(_listed(seed), *(["none"] if basis == "lib" else ["many"]), None, None) for seed in seeds]
        for basis, seeds in paper.IDLE.items()
    }
    head = layer_names(found)[1:-1]
    return (
        "## Functional relevance\n\nFeatures among the first 25 with incoming but no outgoing edges: how "
        "many, and which. An edge counts from 3 % of its section's largest Ê on (a thousandth of its Ê²: "
        "what a picture shows); in the last two columns from the smallest edge that the ablation needs. "
        "The paper counts by eye.\n\n"
        + beside_the_paper(found, [*head, *(f"{name}, by need" for name in head)], ours, theirs, "paper")
    )


def _listed(features: Sequence[int]) -> str:
    return f"{len(features)}: {', '.join(map(str, features))}" if features else "0"


def _monosemantic(found: dict[str, Any]) -> str:
    def ours(piece: Piece) -> list[str]:
        counts = [(row["paper"], row["without_constant"]) for row in piece["monosemantic"]]
        sums = tuple(map(sum, zip(*counts, strict=True)))
        return [f"{with_it} ({without})" for with_it, without in [*counts, sums]]

    theirs = {
        basis: [
            (*(stored[seed] if seed < len(stored) else [None] * 3), count) for seed, count in enumerate(row)
        ]
        for basis, row in paper.MONOSEMANTIC.items()
        for stored in (paper.STORED_MONOSEMANTIC[basis],)
    }
    return (
        "## Monosemanticity\n\nFeatures over 90 % one Fourier term: among the first 10 of a layer with "
        "the constant, as the paper counts; in brackets among the first 10 after the constant. The "
        "paper's table has the last column only; the layers of its seeds 0 and 1 are from the authors' "
        "files.\n\n"
        + beside_the_paper(found, [*layer_names(found)[:-1], "all"], ours, theirs, "paper")
        + "\n\n"
        + _distances(found)
    )


def first_shares(piece: Piece, layer: int) -> list[float]:
    """Leading shares of the paper's first ten features of a layer, the constant among the ten left out."""
    row = piece["monosemantic"][layer]
    return row["shares"][: row["top"] - 1]


def _distances(found: dict[str, Any]) -> str:
    """How the leading shares of the first features differ between bases."""
    names = layer_names(found)[:-1]
    shares: list[dict[str, list[float]]] = [{} for _ in names]
    for piece in ordered(found):
        for k in range(len(names)):
            shares[k].setdefault(BASES[piece["basis"]], []).extend(first_shares(piece, k))
    if len(shares[0]) < 2:
        return ""
    compared = [compare(dict(of_layer)) for of_layer in shares]
    rows = [
        (f"{a} and {b}", *(f"{one.distance[a, b]:.2f} (p = {one.p_value[a, b]:.2g})" for one in compared))
        for a, b in compared[0].distance
    ]
    return (
        "Leading shares of the first ten features without the constant, all seeds together, compared by the "
        "Kolmogorov–Smirnov distance. Features of a model are not independent, so the p values are too "
        "small:\n\n" + table(("bases", *names), rows)
    )
