"""Figures of a reproduction on a language model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from interbasis.figures import eigenvalue_spectra, interaction_graph, position_profiles, save
from interbasis.figures.style import INK, grid_of, look, note, plain, styled
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.paper.language_plan import LanguagePlan
from interbasis.run.ablate import is_measured
from interbasis.run.results import load_result, load_tensors

TOP = 24
"""Features of each layer in the picture of a block."""
PROFILES = 8
FOLDER, DOTS = "figures", 110


def draw_figures(found: dict[str, Any], plan: LanguagePlan) -> list[tuple[str, Path]]:
    """(caption, file), in the order of the page."""
    pieces = found["pieces"]
    if not pieces:
        return []
    graphs = {piece["basis"]: load(plan.folder(piece["basis"])) for piece in pieces}
    figures: list[tuple[str, str, Figure]] = []
    figures.append((
        "edges_required", "Edges required, section by section, with 95 % bootstrap intervals",
        required(pieces),
    ))  # fmt: skip
    figures.append(("curves", "Cross-entropy against the edges kept, all masks that were tried",
                    curves(pieces, found["depth"]["tolerance"])))  # fmt: skip
    for basis, graph in graphs.items():
        middle = next(piece["middle"] for piece in pieces if piece["basis"] == basis)
        figures.append((
            f"block_{basis}", f"The interaction graph of block {middle}, {basis}",
            _block(graph, plan.folder(basis), middle),
        ))  # fmt: skip
        features = load_result(plan.folder(basis), "features")
        name = f"ln1.{middle}"
        rows = next((row for row in (features or {"layers": []})["layers"] if row["name"] == name), None)
        if rows and any(row.get("positions") for row in rows["features"][:PROFILES]):
            figures.append((
                f"positions_{basis}", f"The first features at the start of block {middle}, {basis}",
                position_profiles(rows["features"][:PROFILES], name),
            ))  # fmt: skip
    figures.append(("spectra", "What ranks the features, layer by layer", eigenvalue_spectra(graphs)))
    return [
        (caption, save(figure, plan.out / FOLDER / name, formats=("png",), dpi=DOTS)[0])
        for name, caption, figure in figures
    ]


def _block(graph: InteractionGraph, folder: Path, middle: int) -> Figure:
    """From the start of the block to the start of what follows it; needed edges where all are known."""
    names = [layer.name for layer in graph.layers]
    inside = [k for k, name in enumerate(names) if name.endswith(f".{middle}")]
    first, last = inside[0], min(inside[-1] + 1, len(names) - 1)
    masks = load_tensors(folder, "ablation")
    needed: list[Tensor] | None = None
    if all(f"edge_mask.{k}" in masks for k in range(first, last)):
        needed = [
            masks.get(f"edge_mask.{k}", torch.zeros(edges.shape, dtype=torch.bool))
            for k, edges in enumerate(graph.edges)
        ]
    return interaction_graph(graph, top=TOP, needed=needed, layers=(first, last))


@styled
def required(pieces: Sequence[dict[str, Any]]) -> Figure:
    """Per cent of the edges that are required, a panel per kind of section, a series per basis."""
    kinds = list(dict.fromkeys(row["kind"] for row in pieces[0]["edges"]))
    figure, panels = grid_of(len(kinds), most=2, height=2.4)
    for panel, kind in zip(panels, kinds, strict=True):
        names = [row["from"] for row in pieces[0]["edges"] if row["kind"] == kind]
        for number, piece in enumerate(pieces):
            rows = {row["from"]: row for row in piece["edges"] if row["kind"] == kind}
            there = [(place, rows[name]) for place, name in enumerate(names) if name in rows]
            shift = 0.16 * (number - (len(pieces) - 1) / 2)
            heights = [100 * row["kept_fraction"] for _, row in there]
            low, high = (
                [100 * row["interval"][side] / row["possible"] for _, row in there] for side in (0, 1)
            )
            ends = [
                [max(0.0, y - a) for y, a in zip(heights, low, strict=True)],
                [max(0.0, b - y) for y, b in zip(heights, high, strict=True)],
            ]
            style = look(number)
            panel.errorbar(
                [place + shift for place, _ in there], heights, ends, fmt=style["marker"], capsize=2,
                color=style["color"], markersize=4, linewidth=1, label=plain(piece["basis"]),
                gid=f"required:{kind}:{piece['basis']}",
            )  # fmt: skip
        turned = 0 if len(names) <= 6 else 60
        panel.set_xticks(range(len(names)), [plain(name) for name in names], rotation=turned)
        panel.set_xlim(-0.6, len(names) - 0.4)
        panel.set_ylim(bottom=0)
        panel.set_ylabel("edges required, %")
        panel.set_title(plain(kind), fontsize=7.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(pieces))
    note(
        figure,
        "Per cent of all d_in·d_out edges that have to stay for the cross-entropy to stay within the "
        "tolerance, each section ablated alone. Bars: 95 % bootstrap intervals over the test windows.",
    )
    return figure


@styled
def curves(pieces: Sequence[dict[str, Any]], tolerance: float) -> Figure:
    """How far the cross-entropy rises as edges go, a panel per attention and MLP section."""
    shown = [row for row in pieces[0]["edges"] if row["kind"] in ("attention", "MLP")]
    figure, panels = grid_of(max(len(shown), 1), most=3, height=1.7)
    for k, (panel, about) in enumerate(zip(panels, shown, strict=False)):
        for number, piece in enumerate(pieces):
            row = next((one for one in piece["edges"] if one["from"] == about["from"]), None)
            points = (
                []
                if row is None
                else [
                    (100 * one["kept"] / row["possible"], one["value"] - piece["baseline"])
                    for one in row["curve"]
                    if is_measured(one)
                ]
            )
            style = look(number) | {"markersize": 2.5, "linewidth": 0.9}
            panel.plot(
                [x for x, _ in points], [y for _, y in points], label=plain(piece["basis"]),
                gid=f"curve:{piece['basis']}", **style,
            )  # fmt: skip
        panel.axhline(tolerance, color=INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
        panel.set_ylim(min(-0.02, -0.1 * tolerance), 3 * tolerance)
        panel.set_xlim(0, 100)
        panel.yaxis.set_major_locator(MaxNLocator(4))
        panel.set_title(plain(f"{about['from']} → {about['to']}"), fontsize=7.5)
        panel.set_xlabel("edges kept, %")
        if k % 3 == 0:
            panel.set_ylabel("cross-entropy rise")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(pieces))
    note(figure, "Every mask that was looked at in full; dotted: the tolerance.")
    return figure
