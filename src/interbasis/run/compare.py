"""Two runs of one model beside each other: features, edges, what ablation and modules found."""

from pathlib import Path
from typing import Any

import torch
from rich.console import RenderableType
from rich.text import Text

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.store import load
from interbasis.run.results import load_result, rows_by_name
from interbasis.run.summary import make_table, summarise
from interbasis.runtime.errors import InterbasisError


def compare(one: str | Path, other: str | Path) -> dict[str, Any]:
    """What two runs of the same model found, side by side; runs of different models are refused."""
    graphs = [load(one), load(other)]
    _refuse_different_models(one, other, *graphs)
    summaries = [summarise(graph) for graph in graphs]
    names = [layer.name for layer in graphs[0].layers]
    ablations = [load_result(run, "ablation") for run in (one, other)]
    nodes, edges = (
        [rows_by_name(ablation, where, names) for ablation in ablations] for where in ("layers", "sections")
    )
    modules = [load_result(run, "modules") for run in (one, other)]
    return {
        "runs": [
            {
                "run": str(run),
                "basis": summary["basis"],
                "edge_method": summary["edge_method"],
                "samples": summary["samples"]["data"],
            }
            for run, summary in zip((one, other), summaries, strict=True)
        ],
        "model": graphs[0].provenance.model,
        "different_settings": _differences(*graphs),
        "same_data": graphs[0].provenance.data_fingerprints == graphs[1].provenance.data_fingerprints,
        "layers": [
            {"name": a["name"], "width": a["width"], **_both(a, b, "features", "effective_features")}
            | {"shared_subspace": _overlap(graphs[0].layers[k], graphs[1].layers[k])}
            | _counts("nodes_required", nodes, k)
            for k, (a, b) in enumerate(zip(summaries[0]["layers"], summaries[1]["layers"], strict=True))
        ],
        "sections": [
            {"from": a["from"], "to": a["to"]}
            | _both(a, b, "edges", "largest", "edges_for_90_percent", "edges_for_99_percent")
            | _counts("edges_required", edges, k)
            for k, (a, b) in enumerate(zip(summaries[0]["sections"], summaries[1]["sections"], strict=False))
        ],
        "modules": [m and {"modules": m["modules"], "modularity": m["modularity"]} for m in modules],
    }


def _refuse_different_models(
    one: str | Path, other: str | Path, a: InteractionGraph, b: InteractionGraph
) -> None:
    if a.provenance.model_fingerprint != b.provenance.model_fingerprint:
        raise InterbasisError(
            f"{one} and {other} are runs of different models ({a.provenance.model or a.provenance.family} "
            f"and {b.provenance.model or b.provenance.family}, whose weights differ); compare two runs of "
            "one model"
        )
    names = [[layer.name for layer in graph.layers] for graph in (a, b)]
    if names[0] != names[1]:
        raise InterbasisError(
            f"{one} and {other} have different node layers ({', '.join(names[0])} and "
            f"{', '.join(names[1])}); build them with the same ones"
        )


def _differences(a: InteractionGraph, b: InteractionGraph) -> dict[str, list[Any]]:
    first, second = a.config.model_dump(), b.config.model_dump()
    return {name: [first[name], second[name]] for name in first if first[name] != second[name]}


def _both(a: dict[str, Any], b: dict[str, Any], *names: str) -> dict[str, list[Any]]:
    return {name: [a[name], b[name]] for name in names}


def _counts(name: str, found: list[list[dict[str, Any] | None]], k: int) -> dict[str, list[Any]]:
    """What both runs require at a place; None for one not ablated there, nothing where neither was."""
    rows = [places[k] for places in found]
    return {name: [row and row["count"] for row in rows]} if any(rows) else {}


def _overlap(one: LayerBasis, other: LayerBasis) -> float:
    """How much of the space that one run's features read is read by the other's too, 0 to 1.

    ‖Q₁Q₂ᵀ‖² / min(r₁, r₂) for orthonormal bases Q of the rows of C, the constant left out of both.
    """
    if one.identity or other.identity:  # reads everything, at a vocabulary's width too
        return float(min(one.features, other.features) > 0)
    spaces = []
    for transform in (one.transform, other.transform):
        rows = transform[1:, 1:] if transform[0, 1:].abs().sum() == 0 else transform
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
        spaces.append(torch.linalg.qr(rows.T.double()).Q)
    least = min(space.shape[1] for space in spaces)
    return ((spaces[0].T @ spaces[1]).square().sum() / max(least, 1)).item()


def tables(result: dict[str, Any]) -> list[RenderableType]:
    """The comparison for a terminal."""
    a, b = result["runs"]
    same = "the same data" if result["same_data"] else "different data"
    changed = ", ".join(f"{name} {x} / {y}" for name, (x, y) in result["different_settings"].items())
    head = Text(
        f"\n{a['run']} ({a['basis']}) / {b['run']} ({b['basis']}) · {result['model']} · {same}"
        f" · {changed or 'the same settings'}\n"
    )
    layers = make_table("Node layers", "layer", "width", "features", "effective", "shared", "nodes required")
    for row in result["layers"]:
        layers.add_row(
            row["name"], str(row["width"]), _pair(row["features"]), _pair(row["effective_features"], ".1f"),
            f"{row['shared_subspace']:.1%}", _pair(row.get("nodes_required")),
        )  # fmt: skip
    layers.caption = (
        "Shared: how much of the directions that the smaller set reads is read by the other too.\n"
    )
    edges = make_table("Interaction edges Ê", "section", "edges", "90 % of Ê²", "99 % of Ê²", "required")
    for row in result["sections"]:
        edges.add_row(
            f"{row['from']} → {row['to']}", _pair(row["edges"]), _pair(row["edges_for_90_percent"]),
            _pair(row["edges_for_99_percent"]), _pair(row.get("edges_required")),
        )  # fmt: skip
    modules = [
        f"{m['modules']} modules, modularity {m['modularity']:.3f}" if m else "none found yet"
        for m in result["modules"]
    ]
    parts: list[RenderableType] = [head, layers, edges]
    return [*parts, Text("Modules: " + " / ".join(modules))] if any(result["modules"]) else parts


def _pair(values: list[Any] | None, form: str = ",") -> str:
    if values is None:
        return "–"
    return " / ".join("–" if value is None else format(value, form) for value in values)
