"""A graph in a few numbers, for a person or a machine."""

from typing import Any

import torch
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.numerics.linalg import Cut


def summarise(graph: InteractionGraph) -> dict[str, Any]:
    """What a run holds, as plain data."""
    names = [layer.name for layer in graph.layers]
    return {
        "model": graph.provenance.model,
        "family": graph.provenance.family,
        "basis": graph.config.basis,
        "edge_method": graph.config.edge_method,
        "samples": graph.provenance.samples,
        "seconds": {phase: round(t, 3) for phase, t in graph.provenance.timings.items()},
        "versions": graph.provenance.versions,
        "layers": [
            _layer(layer, width) for layer, width in zip(graph.layers, graph.provenance.widths, strict=True)
        ],
        "sections": [
            {"from": names[k], "to": names[k + 1]}
            | _section(edges, graph.edge_errors[k] if graph.edge_errors else None, *graph.layers[k : k + 2])
            for k, edges in enumerate(graph.edges)
        ],
    }


def _layer(layer: LayerBasis, width: int) -> dict[str, Any]:
    first = 1 if layer.constant else 0
    ranking = layer.eigenvalues[first:] if layer.eigenvalues is not None else torch.zeros(0)
    return {
        "name": layer.name,
        "width": width,
        "features": layer.features,
        "dropped_as_noise": _dropped(layer.variance_cut),
        "dropped_as_unused": _dropped(layer.jacobian_cut),
        "last_kept_over_floor": _margin(layer.jacobian_cut or layer.variance_cut),
        "effective_features": _participation(ranking),
        "largest": ranking.max().item() if len(ranking) else None,
        "eigenvalue_error": _eigenvalue_error(layer),
    }


def _eigenvalue_error(layer: LayerBasis) -> float | None:
    """Relative standard error of Λ, root mean square over the features weighted by Λ; None where not sampled.

    A single feature's error has one degree of freedom; all of them together say more.
    """
    if layer.eigenvalue_errors is None or layer.eigenvalues is None:
        return None
    first = 1 if layer.constant else 0
    Λ, errors = layer.eigenvalues[first:], layer.eigenvalue_errors[first:]
    return ((errors.square() / Λ).sum() / Λ.sum()).sqrt().item() if len(Λ) else 0.0


def _section(edges: Tensor, error: Tensor | None, source: LayerBasis, target: LayerBasis) -> dict[str, Any]:
    inner = edges[1 if target.constant else 0 :, 1 if source.constant else 0 :]
    squares = inner.square().flatten().sort(descending=True).values
    shares = squares.cumsum(0) / squares.sum()

    def carrying(share: float) -> int:
        """How many of the largest edges; none where all are 0."""
        return int((shares < share).sum()) + 1 if squares.numel() and squares[0] > 0 else 0

    result = {
        "edges": inner.numel(),
        "largest": inner.max().item() if inner.numel() else None,
        "edges_for_90_percent": carrying(0.9),
        "edges_for_99_percent": carrying(0.99),
    }
    if error is not None:
        relative = (error[-inner.shape[0] :, -inner.shape[1] :] / inner)[inner > 0]
        result["median_relative_error"] = relative.median().item() if len(relative) else 0.0
    return result


def _dropped(cut: Cut | None) -> int:
    return cut.dropped if cut else 0


def _margin(cut: Cut | None) -> float | None:
    """How many times the floor the last kept value is; near 1 means the cut runs through a continuum."""
    return cut.smallest_kept / cut.floor if cut and cut.smallest_kept and cut.floor else None


def _participation(values: Tensor) -> float:
    """(Σλ)² / Σλ²: how many features there would be if all were as important as each other."""
    values = values.clamp_min(0)
    return (values.sum().square() / values.square().sum().clamp_min(1e-300)).item()


def tables(summary: dict[str, Any]) -> list[RenderableType]:
    """The summary for a terminal."""
    seconds = sum(summary["seconds"].values())
    head = Text.assemble(
        ("\n" + summary["basis"].upper(), "bold"), " of ", (summary["model"] or summary["family"], "bold"),
        f" · {summary['samples']['data']:,} samples · {seconds:.1f} s · saved in {summary['run']}\n",
    )  # fmt: skip
    parts: list[RenderableType] = [head, _layer_table(summary["layers"])]
    return [*parts, _edge_table(summary["sections"])] if summary["sections"] else parts


def _layer_table(rows: list[dict[str, Any]]) -> Table:
    table = make_table(
        "Node layers", "layer", "width", "features", "noise", "unused", "margin", "effective", "largest"
    )
    for row in rows:
        table.add_row(
            row["name"], str(row["width"]), str(row["features"]), str(row["dropped_as_noise"]),
            str(row["dropped_as_unused"]), _number(row["last_kept_over_floor"]),
            f"{row['effective_features']:.1f}", _number(row["largest"]),
        )  # fmt: skip
    table.caption = (
        "Features count the constant. Noise: directions whose variance is rounding; unused: "
        "directions without effect on the next layer. Margin: how many times the noise floor "
        "the last kept one is. Effective: participation ratio of what ranks the features "
        "(Λ; variance in PCA and at the end).\n"
    )
    known = [(row["name"], row["eigenvalue_error"]) for row in rows if row["eigenvalue_error"] is not None]
    if known:
        errors = ", ".join(f"{name} {error:.1%}" for name, error in known)
        table.caption += f"Λ has relative standard errors, since queries were sampled: {errors}.\n"
    return table


def _edge_table(rows: list[dict[str, Any]]) -> Table:
    estimated = "median_relative_error" in rows[0]
    titles = ["section", "edges", "largest", "90 % of Ê²", "99 % of Ê²"]
    table = make_table("Interaction edges Ê", *titles, *(["error"] if estimated else []))
    for row in rows:
        cells = [
            f"{row['from']} → {row['to']}", f"{row['edges']:,}", _number(row["largest"]),
            f"{row['edges_for_90_percent']:,}", f"{row['edges_for_99_percent']:,}",
        ]  # fmt: skip
        table.add_row(*cells, *([f"{row['median_relative_error']:.1%}"] if estimated else []))
    table.caption = (
        "The constant's edges are left out. 90 % of Ê²: how many of the largest edges carry so much."
    )
    if estimated:
        table.caption += " Error: median relative standard error of Ê."
    return table


def make_table(title: str, first: str, *others: str) -> Table:
    """One column of names, the others of numbers."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    table.caption_justify = "left"
    table.add_column(first, no_wrap=True)
    for other in others:
        table.add_column(other, justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
