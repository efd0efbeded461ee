"""The figures of modular addition: those of the paper's section 3.1 and its appendices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interbasis import figures
from interbasis.paper import paper
from interbasis.paper.common_figures import (
    GRAPHS,
    Labels,
    Picture,
    Piece,
    bases_of,
    by_seed,
    counts_of,
    edges_tried,
    graph_figure,
    graphs,
    modularity,
    named,
    nodes_tried,
    seeds_in_words,
)
from interbasis.paper.modadd_page import first_shares
from interbasis.paper.names import BASES, layer_names, section_names

THEIRS = "the authors' models, seeds 0 and 1 (their run files)"
WITHIN = "Required: the fewest that keep test accuracy within 0.1 points of the untouched model's."


def pictures(found: dict[str, Any], folder: Path) -> Iterator[Picture]:
    """All figures in the order of the page."""
    yield from _edges(found)
    yield from edges_tried(found, folder)
    yield from _nodes(found, folder)
    yield from _relevance(found)
    yield from _monosemanticity(found)
    yield from modularity(found)
    yield from _clearest(found, folder)
    yield from graphs(found, folder, labels)


def labels(piece: Piece) -> Labels:
    """Fourier labels of the first features, the constant's among them."""
    return {row["layer"]: dict(enumerate(row["texts"])) for row in piece["labels"]}


def _edges(found: dict[str, Any]) -> Iterator[Picture]:
    places = section_names(found)
    source = THEIRS + ("; GIB of seed 0" if "gib" in bases_of(found) else "")
    figure = figures.required(
        counts_of(found, lambda piece: [row["count"] for row in piece["edges"]], len(places)), places,
        rule=WITHIN, published=named(paper.STORED_EDGES), source=source,
    )  # fmt: skip
    yield Picture("Edges required", "edges", f"Edges required, {seeds_in_words(found)}.", figure)


def _nodes(found: dict[str, Any], folder: Path) -> Iterator[Picture]:
    places = layer_names(found)[:-1]
    if not any(piece["nodes"] for piece in found["pieces"]):
        return

    def counts(piece: Piece) -> list[int | None]:
        return [row["count"] for row in piece["nodes"]] or [None] * len(places)

    figure = figures.required(
        counts_of(found, counts, len(places)), places, "nodes", WITHIN,
        published=named(paper.STORED_NODES), source="the authors' models, seeds 0 and 1, scanned",
    )  # fmt: skip
    yield Picture("Nodes required", "nodes", f"Nodes required, {seeds_in_words(found)}.", figure)
    yield from nodes_tried(found, folder, places)


def _relevance(found: dict[str, Any]) -> Iterator[Picture]:
    places = layer_names(found)[1:-1]
    counts = counts_of(found, lambda piece: [len(one["features"]) for one in piece["idle"]], len(places))
    theirs = {basis: [[len(seed), None] for seed in rows] for basis, rows in paper.IDLE.items()}
    figure = figures.required(
        counts, places, quantity="idle features", published=named(theirs),
        source="the paper's count by eye, seeds 0 to 4; before the unembedding it has PCA many, LIB none",
        rule="Idle: incoming edges but none out, from 3 % of the section's largest on; first 25 features.",
    )  # fmt: skip
    yield Picture(
        "Functional relevance", "relevance",
        f"Features that are computed and not used, {seeds_in_words(found)}.", figure,
    )  # fmt: skip


def _monosemanticity(found: dict[str, Any]) -> Iterator[Picture]:
    names = layer_names(found)[:-1]
    shares = {
        name: {
            BASES[basis]: [s for p in by_seed(found, basis) if p is not None for s in first_shares(p, k)]
            for basis in bases_of(found)
        }
        for k, name in enumerate(names)
    }
    theirs = {
        name: {
            BASES[basis]: [share / 100 for seed in seeds for share in seed[k]]
            for basis, seeds in paper.STORED_SHARES.items()
        }
        for k, name in enumerate(names)
    }
    yield Picture(
        "Monosemanticity", "monosemanticity-density",
        "Variance of a feature that its leading Fourier term explains (the paper's KDE figure).",
        figures.share_densities(
            shares, published=theirs, source=THEIRS,
            about=f"The first ten features of a layer without the constant, {seeds_in_words(found)}.",
        ),
    )  # fmt: skip
    figure = figures.required(
        counts_of(found, lambda piece: [sum(row["paper"] for row in piece["monosemantic"])], 1),
        ["first 10 features of three layers"], quantity="features over 90 % one term",
        published=named({basis: [[count] for count in row] for basis, row in paper.MONOSEMANTIC.items()}),
        source="the paper's table, seeds 0 to 4",
    )  # fmt: skip
    yield Picture(
        "Monosemanticity", "monosemanticity-counts",
        f"Monosemantic features of 30, the constants counted as in the paper, {seeds_in_words(found)}.",
        figure,
    )  # fmt: skip


def _clearest(found: dict[str, Any], folder: Path) -> Iterator[Picture]:
    """The LIB graph whose modules at γ = 0.5 are most like frequencies; the paper picks its seed 3 by eye."""
    pieces = [p for p in by_seed(found, "lib") if p is not None and "frequencies" in p["modules"][0]]
    if not pieces:
        return
    best = max(pieces, key=lambda piece: piece["modules"][0]["frequencies"]["agreement"])
    agreement = best["modules"][0]["frequencies"]["agreement"]
    yield Picture(
        GRAPHS, "graph-clearest",
        f"The LIB graph whose modules at γ = 0.5 agree most with frequencies: seed {best['seed']}, adjusted "
        f"mutual information {agreement:.2f}. The paper shows its seed 3, chosen by eye.",
        graph_figure(best, folder, labels(best), 0.5, top=15),
    )  # fmt: skip
