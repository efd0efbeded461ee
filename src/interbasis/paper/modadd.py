"""Section 3.1, modular addition: features by their Fourier terms, and whether modules are frequencies."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from sklearn.metrics import adjusted_mutual_info_score

from interbasis.features.fourier import FourierLabel, fourier
from interbasis.features.monosemanticity import monosemantic
from interbasis.run.opened import OpenRun

OWN = 0.5
"""A feature has a frequency of its own where its terms of that frequency carry at least this share."""
PURE = 0.9
"""A module is a frequency's own if this part of it has that frequency, and this part of those are in it."""
MEMBERS = 3
"""Features a frequency needs to be looked at: fewer are together by chance."""
LISTED = 25
"""Features of a layer whose labels are stored."""


def measure(run: OpenRun, result: dict[str, Any]) -> dict[str, Any]:
    """Labels and monosemanticity of the layers before the output, and the modules' frequencies."""
    network = run.network.double()
    labels = [fourier(network, layer, form="paper") for layer in run.graph.layers[:-1]]
    counts = [
        monosemantic(found, constant=layer.constant)
        for found, layer in zip(labels, run.graph.layers, strict=False)
    ]
    names = [layer.name for layer in run.graph.layers[:-1]]
    modules = [
        row if "refused" in row else row | {"frequencies": frequencies_of(labels, row["layers"])}
        for row in result["modules"]
    ]
    return {
        "monosemantic": [
            {
                "layer": name,
                "paper": one.paper,
                "without_constant": one.without_constant,
                "top": one.top,
                "shares": [round(share, 4) for share in one.shares],
            }
            for name, one in zip(names, counts, strict=True)
        ],
        "labels": [
            {"layer": name, "texts": [one.text for one in found[:LISTED]]}
            for name, found in zip(names, labels, strict=True)
        ],
        "modules": modules,
    }


def frequency(label: FourierLabel) -> int | None:
    """The frequency whose terms carry at least half of a feature; none for the constant and for mixtures."""
    shares: dict[int, float] = defaultdict(float)
    for term in label.terms:
        x, y = term.frequencies
        if (x or y) and (x == y or not (x and y)):
            shares[x or y] += term.share
    best = max(shares, key=lambda k: shares[k], default=None)
    return best if best is not None and shares[best] >= OWN else None


def frequencies_of(
    labels: Sequence[Sequence[FourierLabel]], layers: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """How far a partition of the features is one by frequency.

    ``own`` lists frequencies that have a module to themselves, ``agreement`` is the adjusted mutual
    information of frequency and module over the features that have both.
    """
    pairs = [
        (found, module)
        for of_layer, layer in zip(labels, layers, strict=False)
        for one, module in zip(of_layer, layer["assignment"], strict=True)
        if module >= 0 and (found := frequency(one)) is not None
    ]
    together = Counter(pairs)
    per_frequency, per_module = Counter(k for k, _ in pairs), Counter(m for _, m in pairs)
    own = sorted(
        k for (k, m), count in together.items()
        if per_frequency[k] >= MEMBERS and count >= PURE * per_frequency[k] and count >= PURE * per_module[m]
    )  # fmt: skip
    considered = sorted(k for k, count in per_frequency.items() if count >= MEMBERS)
    agreement = adjusted_mutual_info_score(*zip(*pairs, strict=True)) if pairs else 0.0
    return {"own": own, "considered": considered, "features": len(pairs), "agreement": float(agreement)}
