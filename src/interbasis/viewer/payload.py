"""What the page is told about a run, as plain data for JSON.

A page holds the strongest edges only, up to a limit that is shared out among the sections; what was left out,
and how much of Ê² it carries, is said with every section. Numbers by the thousand travel as base64 of
little-endian arrays.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import graph_digest, load
from interbasis.run.results import load_result
from interbasis.run.summary import summarise

EDGE_LIMIT = 100_000
"""Edges that one page holds of a run."""
RESULTS = ("ablation", "curves", "modules", "features", "examples", "notes")
"""What may be known about a run beside its graph."""


def run_payload(run: str | Path, limit: int = EDGE_LIMIT) -> dict[str, Any]:
    """Everything the page shows of a run on disk."""
    run = Path(run)
    results = {name: load_result(run, name) for name in RESULTS}
    payload = graph_payload(load(run), results, limit)
    return payload | {"name": run.resolve().name, "digest": graph_digest(run)}


def graph_payload(
    graph: InteractionGraph, results: Mapping[str, Any] | None = None, limit: int = EDGE_LIMIT
) -> dict[str, Any]:
    """Everything the page shows of a graph in memory."""
    summary = summarise(graph)
    allowances = share_out(limit, [_inner(graph, k).numel() for k in range(len(graph.edges))])
    return {
        "name": "",
        "digest": "",
        "family": graph.provenance.family,
        "model": graph.provenance.model,
        "basis": graph.config.basis,
        "layers": [
            {
                "name": layer.name,
                "constant": layer.constant,
                "features": layer.features,
                "eigenvalues": _floats(layer.eigenvalues),
                "eigenvalue_errors": _floats(layer.eigenvalue_errors),
                "ranked_by": ranked_by(graph, k),
                "isolated": layer.isolated,
                "outputs": k + 1 == len(graph.layers) and (layer.identity or not layer.constant),
            }
            | _only(summary["layers"][k], "width", "dropped_as_noise", "dropped_as_unused")
            for k, layer in enumerate(graph.layers)
        ],
        "sections": [_section(graph, k, allowances[k]) for k in range(len(graph.edges))],
        "about": {
            "settings": graph.config.model_dump(mode="json"),
            "samples": summary["samples"],
            "seconds": summary["seconds"],
            "versions": summary["versions"],
            "model_fingerprint": graph.provenance.model_fingerprint,
            "data_fingerprints": graph.provenance.data_fingerprints,
        },
        "results": {name: (results or {}).get(name) for name in RESULTS},
    }


def ranked_by(graph: InteractionGraph, k: int) -> str:
    """What ranks a layer's features: Λ, or a variance at the end and where no Jacobian was taken."""
    last = k + 1 == len(graph.layers)
    return "variance" if last or graph.config.basis in ("pca", "neuron") else "lambda"


def share_out(limit: int, sizes: list[int]) -> list[int]:
    """How many edges each section may keep: equal parts, and what small sections leave goes to the others."""
    parts = [0] * len(sizes)
    waiting, left = sorted(range(len(sizes)), key=lambda k: sizes[k]), limit
    while waiting:
        k = waiting.pop(0)
        parts[k] = min(sizes[k], left // (len(waiting) + 1))
        left -= parts[k]
    return parts


def _inner(graph: InteractionGraph, k: int) -> Tensor:
    """A section's edges without the constant's, [features_out, features_in]."""
    source, target = graph.layers[k], graph.layers[k + 1]
    return graph.edges[k][1 if target.constant else 0 :, 1 if source.constant else 0 :]


def _section(graph: InteractionGraph, k: int, allowance: int) -> dict[str, Any]:
    source, target = graph.layers[k], graph.layers[k + 1]
    inner = _inner(graph, k).double()
    squares = inner.square()
    nonzero = int((inner > 0).sum())
    kept = min(allowance, nonzero)
    values, places = inner.flatten().topk(kept)
    total = squares.sum().item()
    shown = values.square().sum().item()
    columns = max(inner.shape[1], 1)
    return {
        "from": source.name,
        "to": target.name,
        "possible": inner.numel(),
        "nonzero": nonzero,
        "held": kept,
        "held_share": shown / total if kept < nonzero else 1.0,
        "sum_of_squares": total,
        "sources": _integers(places % columns + (1 if source.constant else 0)),
        "targets": _integers(places // columns + (1 if target.constant else 0)),
        "values": _floats(values),
        "errors": _errors(graph, k, places, inner.shape),
        "constant": _floats(graph.edges[k][:, 0]) if source.constant else None,
        "into_all": _floats(_with_constant(squares.sum(0).sqrt(), source.constant)),
    }


def _errors(graph: InteractionGraph, k: int, places: Tensor, shape: torch.Size) -> str | None:
    """Standard errors of the edges held, where they were estimated."""
    if not graph.edge_errors:
        return None
    inner = graph.edge_errors[k][-shape[0] :, -shape[1] :].double()
    return _floats(inner.flatten()[places])


def _with_constant(values: Tensor, constant: bool) -> Tensor:
    return torch.cat([values.new_zeros(1), values]) if constant else values


def _floats(values: Tensor | None) -> str | None:
    return None if values is None else _base64(values.detach().cpu().double().numpy().astype("<f4"))


def _integers(values: Tensor) -> str:
    return _base64(values.cpu().numpy().astype("<u4"))


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _only(whole: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: whole[key] for key in keys}
