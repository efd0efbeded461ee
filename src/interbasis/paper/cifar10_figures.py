"""The figures of CIFAR-10: those of the paper's section 3.2."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interbasis import figures
from interbasis.paper import paper
from interbasis.paper.common_figures import (
    Labels,
    Picture,
    Piece,
    bases_of,
    by_seed,
    edges_tried,
    graphs,
    modularity,
    range_in_words,
    seeds_in_words,
)
from interbasis.paper.names import BASES, layer_names, section_names

ANIMALS = "Animal against vehicle"
RANK = ("best", "2nd", "3rd", "4th")
LAST_HIDDEN = 2
"""The layer that the paper gives figures of."""


def pictures(found: dict[str, Any], folder: Path) -> Iterator[Picture]:
    """All figures in the order of the page."""
    yield from _edges(found)
    yield from edges_tried(found, folder)
    yield from _auroc(found)
    yield from _effects(found)
    yield from modularity(found)
    yield from graphs(found, folder, labels)


def labels(piece: Piece) -> Labels:
    """The best direction of every layer."""
    return {row["layer"]: {row["feature"]: f"animal {row['auroc']:.2f}"} for row in piece["directions"]}


def _edges(found: dict[str, Any]) -> Iterator[Picture]:
    counts = _values(found, lambda piece: [row["count"] for row in piece["edges"]])
    title = "edges required"
    figure = figures.spread_bars(
        {title: counts}, section_names(found), "edges, log scale", scale="log", bottom=1,
        lines={title: paper.FEW_EDGES},
        explanation="Fewest edges that keep test accuracy within 0.1 points; "
        f"{range_in_words(found)}. Dashed: the paper's “about {paper.FEW_EDGES}” for LIB.",
    )  # fmt: skip
    yield Picture("Edges required", "edges", f"Edges required, {seeds_in_words(found)}.", figure)


def _auroc(found: dict[str, Any]) -> Iterator[Picture]:
    """The best directions of every layer as classifiers of animal against vehicle."""
    names = layer_names(found)
    ranks = min(len(best_areas(row)) for piece in found["pieces"] for row in piece["directions"])
    panels = {}
    for k, name in enumerate(names):
        pieces = {basis: [p for p in by_seed(found, basis) if p is not None] for basis in bases_of(found)}
        panels[name] = {
            BASES[basis]: [[best_areas(p["directions"][k])[rank] for p in own] for rank in range(ranks)]
            for basis, own in pieces.items()
        }
    models = {piece["seed"]: piece["whole"]["auroc"] for piece in found["pieces"]}
    whole = sum(models.values()) / len(models)
    theirs = [paper.DIRECTION["auroc"], *[None] * (ranks - 1)]
    figure = figures.spread_bars(
        panels, RANK[:ranks], "AUROC", bottom=0.5, top=1, lines=dict.fromkeys(names, whole),
        published={names[LAST_HIDDEN]: {"LIB": theirs}},
        explanation="AUROC of single features for animal against vehicle on the test images, the features "
        f"ranked on training images; {range_in_words(found)}. Dashed: the whole models, {whole:.3f} (paper "
        f"{paper.DIRECTION['model']}). Diamond: the paper's {theirs[0]}."
        + ("" if ranks == len(RANK) else f" Of {len(RANK)} features that the paper shows {ranks} were kept."),
    )  # fmt: skip
    yield Picture(
        ANIMALS,
        "auroc",
        "The best directions of every layer as classifiers of animal against vehicle.",
        figure,
    )


def best_areas(row: dict[str, Any]) -> list[float]:
    """AUROC of the features that are best on training images, in that order; at least two."""
    return row.get("best_auroc") or [row["auroc"], row["second_auroc"]]


def _effects(found: dict[str, Any]) -> Iterator[Picture]:
    names, theirs = layer_names(found), paper.DIRECTION
    last_hidden = [k == LAST_HIDDEN for k in range(len(names))]
    explained = [theirs["explained"] if here else None for here in last_hidden]
    raised = [theirs["after"] - theirs["before"] if here else None for here in last_hidden]
    over = f"{range_in_words(found).capitalize()}. Diamond: the paper's"
    yield Picture(
        ANIMALS, "explained", "Share of the best direction's variance that animal or vehicle explains.",
        figures.spread_bars(
            {"variance explained": _values(found, lambda p: [r["explained"] for r in p["directions"]])},
            names, "variance explained", scale="percent",
            published={"variance explained": {"LIB": explained}},
            explanation=f"{over} {theirs['explained']:.0%}.",
        ),
    )  # fmt: skip
    gains = _values(found, lambda p: [r["accuracy_after"] - r["accuracy_before"] for r in p["directions"]])
    yield Picture(
        ANIMALS, "intervention", "Test accuracy gained when the best direction is set by the true attribute.",
        figures.spread_bars(
            {"intervention": gains}, names, "accuracy, points", scale="points",
            published={"intervention": {"LIB": raised}},
            explanation=f"{over} {theirs['before']:.1%} → {theirs['after']:.1%}.",
        ),
    )  # fmt: skip


def _values(found: dict[str, Any], of: Callable[[Piece], list[Any]]) -> dict[str, list[list[float]]]:
    """{basis by name: values [places][seeds]}."""
    return {
        BASES[basis]: [
            list(column) for column in zip(*(of(p) for p in by_seed(found, basis) if p), strict=True)
        ]
        for basis in bases_of(found)
    }
