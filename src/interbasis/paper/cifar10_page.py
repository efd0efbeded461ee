"""What the page of CIFAR-10 has beside the common parts."""

from typing import Any

from interbasis.paper import paper
from interbasis.paper.markdown import percent, table
from interbasis.paper.names import BASES, layer_names
from interbasis.paper.sections import Piece, ordered
from interbasis.paper.verdicts import mean, spread

INTRODUCTION = (
    "Models: MLPs 3072-60-60-10 with ReLU. Graphs: float64, gradient edges, fitted on the 50,000 training "
    "images; ablations and probes on the 10,000 test images. Animals are six of the ten classes, vehicles "
    "four (the paper says five and five). The paper's own models are not at hand: rows in italics are its "
    "numbers; its pictures are not copied here, their numbers are diamonds and dashed lines in the figures."
)
MODEL_HEAD = ("animal or vehicle", "its AUROC")
PAPER_MODELS: tuple[tuple[Any, ...], ...] = (
    ("*paper, 0 to 4*", None, None, f"{100 * paper.ACCURACY[0]:.1f}–{percent(paper.ACCURACY[1], 1)}",
     percent(paper.DIRECTION["model_accuracy"], 1), f"{paper.DIRECTION['model']:.3f}"),
)  # fmt: skip


def model_columns(piece: Piece) -> tuple[str, ...]:
    whole = piece["whole"]
    return percent(whole["attribute_accuracy"], 1), f"{whole['auroc']:.3f}"


def sections(found: dict[str, Any]) -> list[str]:
    return [_ranges(found) + "\n\n" + _directions(found)]


def _ranges(found: dict[str, Any]) -> str:
    """AUROC, variance and intervention per basis and layer, over the seeds."""
    rows: list[tuple[Any, ...]] = []
    for basis in found["bases"]:
        pieces = [piece for piece in found["pieces"] if piece["basis"] == basis]
        for k, layer in enumerate(layer_names(found) if pieces else []):
            column = [piece["directions"][k] for piece in pieces]
            before, after = (
                mean([row[f"accuracy_{when}"] for row in column]) for when in ("before", "after")
            )
            rows.append((
                BASES[basis], layer, spread([row["auroc"] for row in column]),
                spread([row["second_auroc"] for row in column]),
                spread([row["explained"] for row in column], "{:.0%}"),
                f"{percent(before, 1)} → {percent(after, 1)}", f"{100 * (after - before):+.1f}",
            ))  # fmt: skip
            if basis == "lib" and k == len(layer_names(found)) - 2:
                rows.append(_paper(layer))
    return (
        "## Animal against vehicle\n\nThe feature of a layer with the largest AUROC on 10,000 training "
        "images (of the first 512 features), and the second best; measured on the test images, "
        "smallest–largest over the seeds. Explained: the attribute's share of the feature's variance. "
        "Accuracy: of the ten classes, before and after the feature is set to its training mean given "
        "the true attribute, means over the seeds.\n\n"
        + table(("basis", "layer", "AUROC", "second", "explained", "accuracy", "points"), rows)
    )


def _paper(layer: str) -> tuple[Any, ...]:
    theirs = paper.DIRECTION
    return (
        "*LIB, paper*", f"{layer}, seed 0", f"{theirs['auroc']:.3f}", None, f"{theirs['explained']:.0%}",
        f"{percent(theirs['before'], 1)} → {percent(theirs['after'], 1)}",
        f"{100 * (theirs['after'] - theirs['before']):+.1f}",
    )  # fmt: skip


def _directions(found: dict[str, Any]) -> str:
    rows = [
        (
            BASES[piece["basis"]], piece["seed"], name, f"{row['auroc']:.3f} (f{row['feature']})",
            f"{row['second_auroc']:.3f} (f{row['second_feature']})", f"{row['explained']:.0%}",
            f"{percent(row['accuracy_before'])} → {percent(row['accuracy_after'])}",
        )
        for piece in ordered(found)
        for name, row in zip(layer_names(found), piece["directions"], strict=True)
    ]  # fmt: skip
    return "Seed by seed:\n\n" + table(
        ("basis", "seed", "layer", "AUROC", "second", "explained", "accuracy"), rows
    )
