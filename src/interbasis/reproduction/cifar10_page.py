"""What the page of CIFAR-10 has beside the common parts."""

from typing import Any

from interbasis.reproduction.markdown import percent, table
from interbasis.reproduction.sections import ordered
from interbasis.reproduction.verdicts import mean, spread

INTRODUCTION = (
    "Models: MLPs 3072-60-60-10 with ReLU. Graphs: float64, gradient edges, fitted on the 50,000 "
    "training images; "
    "ablations and probes on the 10,000 test images. Animals are six of the ten classes, vehicles four "
    "(the paper says "
    "five and five)."
)


def sections(found: dict[str, Any]) -> list[str]:
    return [_ranges(found), _directions(found)]


def _ranges(found: dict[str, Any]) -> str:
    """AUROC, variance and intervention per basis and layer, over the seeds."""
    rows = []
    for basis in found["bases"]:
        pieces = [piece for piece in found["pieces"] if piece["basis"] == basis]
        for k, layer in enumerate(pieces[0]["directions"] if pieces else []):
            column = [piece["directions"][k] for piece in pieces]
            before, after = (
                mean([row[f"accuracy_{when}"] for row in column]) for when in ("before", "after")
            )
            rows.append((
                basis, layer["layer"], spread([row["auroc"] for row in column]),
                spread([row["second_auroc"] for row in column]),
                spread([piece["whole"]["auroc"] for piece in pieces]),
                spread([row["explained"] for row in column], "{:.0%}"),
                f"{percent(before)} → {percent(after)}",
            ))  # fmt: skip
    return (
        "## Animal against vehicle\n\nThe feature of a layer with the largest AUROC on 10,000 training "
        "images (of the "
        "first 512 features), and the second best; measured on the test images, smallest–largest over "
        "the seeds. "
        "Explained: the attribute's share of the feature's variance. Accuracy: of the ten classes, "
        "before and after the "
        "feature is set to its training mean given the true attribute, means over the seeds.\n\n"
        + table(("basis", "layer", "AUROC", "second", "whole model", "explained", "accuracy"), rows)
    )


def _directions(found: dict[str, Any]) -> str:
    rows = [
        (
            piece["basis"], piece["seed"], row["layer"], f"{row['auroc']:.3f} (f{row['feature']})",
            f"{row['second_auroc']:.3f} (f{row['second_feature']})", f"{row['explained']:.0%}",
            f"{percent(row['accuracy_before'])} → {percent(row['accuracy_after'])}",
        )
        for piece in ordered(found)
        for row in piece["directions"]
    ]  # fmt: skip
    return "Seed by seed:\n\n" + table(
        ("basis", "seed", "layer", "AUROC", "second", "explained", "accuracy"), rows
    )
