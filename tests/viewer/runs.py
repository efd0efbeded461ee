"""Runs to look at: the shipped modular-addition model, with results worked out from its real graph."""

import math
from pathlib import Path
from typing import Any

import torch

from interbasis import build
from interbasis.graph import InteractionGraph, load
from interbasis.results import save_result
from interbasis.specs import open_model


def built_run(folder: Path, basis: str) -> Path:
    opened = open_model("modadd")
    return build(opened.network, opened.data, basis, model="modadd").save(folder)


def add_results(run: Path) -> None:
    """All results a page can show, small: counts from the real edges, the rest in the agreed shapes."""
    graph = load(run)
    save_result(run, "ablation", ablation(graph))
    save_result(run, "curves", curves(graph))
    save_result(run, "modules", modules(graph))
    save_result(run, "features", features(graph))
    save_result(run, "examples", examples(graph))


def inner_edges(graph: InteractionGraph, k: int) -> torch.Tensor:
    return graph.edges[k][1 if graph.layers[k + 1].constant else 0 :, 1:]


def inner_shares(graph: InteractionGraph, k: int) -> torch.Tensor:
    """Share of Ê² that the strongest edges carry together, by their number."""
    squares = inner_edges(graph, k).square().flatten().sort(descending=True).values
    return squares.cumsum(0) / squares.sum()


def ablation(graph: InteractionGraph) -> dict[str, Any]:
    """As if accuracy were the share of Ê² that is kept."""
    sections = []
    for k in range(len(graph.edges)):
        shares = inner_shares(graph, k)
        count = int((shares < 0.98).sum()) + 1
        points = sorted({1, 4, 16, 64, 256, count, len(shares)} & set(range(1, len(shares) + 1)))
        curve = [
            {"kept": n, "value": shares[n - 1].item(), "passed": shares[n - 1].item() >= 0.98} for n in points
        ]
        strengths = (
            graph.edges[k][1 if graph.layers[k + 1].constant else 0 :, 1:].flatten().sort(descending=True)
        )
        sections.append(
            {
                "from": graph.layers[k].name, "to": graph.layers[k + 1].name, "count": count,
                "epsilon": strengths.values[count - 1].item(), "kept_fraction": count / len(shares),
                "possible": len(shares), "value": shares[count - 1].item(),
                "stable_count": count, "curve": curve,
            }
        )  # fmt: skip
    return {
        "metric": "accuracy", "tolerance": 0.02, "baseline": 1.0,
        "data": {"spec": "modadd", "samples": 8939, "fingerprint": "0"},
        "edges_required": [section["count"] for section in sections], "sections": sections,
        "nodes_required": [9, 12, 10, 114], "layers": [],
    }  # fmt: skip


def curves(graph: InteractionGraph) -> dict[str, Any]:
    fractions = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
    sections = []
    for k in range(len(graph.edges)):
        shares = inner_shares(graph, k)
        counts = [max(round(fraction * len(shares)), 1) for fraction in fractions]
        values = [shares[count - 1].item() for count in counts]
        names = {"from": graph.layers[k].name, "to": graph.layers[k + 1].name}
        sections.append(names | {"counts": counts, "values": values, "faithfulness": values, "area": 0.9})
    return {"metric": "accuracy", "baseline": 1.0, "fractions": fractions, "sections": sections}


def modules(graph: InteractionGraph) -> dict[str, Any]:
    layers = [
        {"name": layer.name, "assignment": [-1 if i > 30 else (i * 7 + k) % 5 for i in range(layer.features)]}
        for k, layer in enumerate(graph.layers)
    ]
    for layer in layers[:-1]:
        layer["assignment"][0] = -1
    return {"resolution": 1.0, "seed": 0, "modularity": 0.4, "modules": 5, "layers": layers}


def features(graph: InteractionGraph) -> dict[str, Any]:
    layers = []
    for layer in graph.layers[:-1]:
        known = [
            {
                "index": i, "label": f"cos {i * 5 % 56 + 1}(x + y)" if i % 3 else f"sin {i * 5 % 56 + 1}x",
                "fourier": {"terms": [{"text": f"cos {i}x", "share": 0.7, "phase": 0.1},
                                      {"text": f"sin {i}y", "share": 0.2, "phase": 0.3}]},
                "positions": {"means": [0.5, -0.2, 1.5], "share": 0.8} if layer.name == "attn_in.0" else None,
                "classes": {"names": ["cat", "dog"], "means": [0.4, -0.3], "auroc": [0.93, 0.07],
                            "explained": 0.4} if i == 2 else None,
                "effects": {"up": [{"name": " 17", "value": 2.5}], "down": [{"name": " 99", "value": -1.5}]},
                "histogram": {"edges": [-2, -1, 0, 1, 2, 3], "counts": [3, 40, 90, 30, 2]},
            }
            for i in range(1, layer.features)
        ]  # fmt: skip
        layers.append({"name": layer.name, "features": known})
    return {"layers": layers}


def examples(graph: InteractionGraph) -> dict[str, Any]:
    def example(i: int, n: int, sign: float) -> dict[str, Any]:
        tokens = [str((i * 31 + n) % 113), str((i * 17 + 3 * n) % 113), "="]
        activations = [math.cos(i + n), math.sin(i * n), sign * (3 - n / 4)]
        return {"value": activations[2], "sample": n, "position": 2, "tokens": tokens,
                "activations": activations, "active": 2}  # fmt: skip

    layers = []
    for layer in graph.layers[:-1]:
        signs = {"most positive": 1.0, "most negative": -1.0}
        found = [
            {
                "index": i,
                "bands": [
                    {"name": name, "examples": [example(i, n, sign) for n in range(4)]}
                    for name, sign in signs.items()
                ],
            }
            for i in range(1, min(layer.features, 30))
        ]
        layers.append({"name": layer.name, "features": found})
    return {"kind": "tokens", "layers": layers}
