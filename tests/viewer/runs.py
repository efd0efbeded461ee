"""Runs to look at: the shipped modular-addition model, really ablated on few of its test pairs."""

import contextlib
import io
import math
from pathlib import Path
from typing import Any

from interbasis import build
from interbasis.cli import main
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.run.results import save_result
from interbasis.run.specs import open_model


def built_run(folder: Path, basis: str) -> Path:
    opened = open_model("modadd")
    return build(opened.network, opened.data, basis, model="modadd").save(folder)


def command(*arguments: object) -> None:
    """What a user types behind `interbasis`."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"interbasis {arguments} ended with {stop.code}") from stop


def add_results(run: Path) -> None:
    """All results a page can show, small: ablation and curves by the commands, the rest in shape."""
    command("ablate", run, "--data", "modadd,samples=600", "--no-stable")
    command("curves", run, "--data", "modadd,samples=600")
    graph = load(run)
    save_result(run, "modules", modules(graph))
    save_result(run, "features", features(graph))
    save_result(run, "examples", examples(graph))


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
