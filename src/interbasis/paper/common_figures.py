"""Figures that both tasks have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from interbasis import figures
from interbasis.graph.store import load
from interbasis.paper.names import BASES, section_names
from interbasis.run.ablate import is_measured
from interbasis.run.results import load_result, load_tensors, rows_by_name

Piece = dict[str, Any]
Labels = Mapping[str, Mapping[int, str]]
GRAPHS = "Interaction graphs"
TOP = 24
"""Features per layer in a graph's picture: with the constant the 25 that the paper looks at."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure that is to be written."""

    section: str
    """Heading of the page that it belongs to."""
    name: str
    """Of its files."""
    caption: str
    figure: Figure


def bases_of(found: dict[str, Any]) -> list[str]:
    """Bases with at least one piece, in the order of the plan."""
    there = {piece["basis"] for piece in found["pieces"]}
    return [basis for basis in found["bases"] if basis in there]


def seeds_of(found: dict[str, Any]) -> list[int]:
    return sorted({piece["seed"] for piece in found["pieces"]})


def by_seed(found: dict[str, Any], basis: str) -> list[Piece | None]:
    """The pieces of a basis, one for every seed that there is in any; None where it has none."""
    own = {piece["seed"]: piece for piece in found["pieces"] if piece["basis"] == basis}
    return [own.get(seed) for seed in seeds_of(found)]


def counts_of(
    found: dict[str, Any], counts: Callable[[Piece], Sequence[int | None]], places: int
) -> dict[str, list[list[int | None]]]:
    """{basis by name: counts [seeds][places]} for a figure, None where a piece is missing."""
    return {
        BASES[basis]: [[None] * places if p is None else list(counts(p)) for p in by_seed(found, basis)]
        for basis in bases_of(found)
    }


def named(by_basis: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the bases' names as figures have them."""
    return {BASES[basis]: value for basis, value in by_basis.items()}


def seeds_in_words(found: dict[str, Any]) -> str:
    seeds = seeds_of(found)
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def range_in_words(found: dict[str, Any]) -> str:
    """What bars show."""
    several = len(seeds_of(found)) > 1
    return f"mean, smallest and largest over {seeds_in_words(found)}" if several else seeds_in_words(found)


def edges_tried(found: dict[str, Any], folder: Path) -> Iterator[Picture]:
    """Accuracy against the number of edges, as far as the search went."""
    figure = _tried(found, folder, "sections", section_names(found), "edges")
    if figure is not None:
        yield Picture(
            "Edges required", "edges-tried",
            "Test accuracy against the number of edges kept, for every count that the search tried.", figure,
        )  # fmt: skip


def nodes_tried(found: dict[str, Any], folder: Path, places: Sequence[str]) -> Iterator[Picture]:
    """Accuracy against the number of features."""
    figure = _tried(found, folder, "layers", places, "features")
    if figure is not None:
        yield Picture(
            "Nodes required", "nodes-curves",
            "Test accuracy when a layer keeps its first features only (the paper's ablation curves).", figure,
        )  # fmt: skip


def _tried(
    found: dict[str, Any], folder: Path, where: str, places: Sequence[str], what: str
) -> Figure | None:
    rows: dict[str, dict[str, list[figures.Tried | None]]] = {}
    for piece in _ordered(found):
        ablation = load_result(folder / piece["run"], "ablation")
        names = [layer["name"] for layer in piece["layers"][: len(places)]]
        by_place = rows_by_name(ablation, where, names)
        if ablation is None or not any(by_place):
            continue
        limit = ablation["baseline"] - ablation["tolerance"]
        rows.setdefault(f"seed {piece['seed']}", {})[BASES[piece["basis"]]] = [
            figures.Tried(
                [point["kept"] for point in row["curve"]],
                [point["value"] for point in row["curve"]],
                [not is_measured(point) for point in row["curve"]],
                row["count"],
                limit,
            )
            if row
            else None
            for row in by_place
        ]
    return figures.tried_counts(rows, places, "accuracy", what) if rows else None


def _ordered(found: dict[str, Any]) -> list[Piece]:
    """Seed by seed, bases in the order of the plan."""
    return sorted(found["pieces"], key=lambda p: (p["seed"], found["bases"].index(p["basis"])))


def modularity(found: dict[str, Any]) -> Iterator[Picture]:
    """Modularity at both resolutions beside the rewired graphs'."""
    panels: dict[str, dict[str, list[figures.Modularity | None]]] = {}
    for number, row in enumerate(found["pieces"][0]["modules"]):
        panels[f"γ = {row['resolution']:g}"] = {
            BASES[basis]: [_modularity(p, number) for p in by_seed(found, basis)] for basis in bases_of(found)
        }
    places = [f"seed {seed}" for seed in seeds_of(found)]
    yield Picture(
        "Modules", "modularity", "Modularity of the needed edges at both resolutions, and of rewired graphs.",
        figures.modularity_bars(panels, places),
    )  # fmt: skip


def _modularity(piece: Piece | None, number: int) -> figures.Modularity | None:
    if piece is None or "refused" in piece["modules"][number]:
        return None
    row = piece["modules"][number]
    return figures.Modularity(
        row["modularity"], row["null"]["mean"], row["null"]["deviation"], row["modules"]
    )


def graphs(found: dict[str, Any], folder: Path, labels: Callable[[Piece], Labels]) -> Iterator[Picture]:
    """The graphs that the paper has: LIB and PCA of every seed, and GIB of the first.

    Drawn are the needed edges, coloured by the modules of γ = 1.
    """
    for piece in _ordered(found):
        if piece["basis"] not in ("lib", "pca") and (piece["basis"], piece["seed"]) != (
            "gib",
            seeds_of(found)[0],
        ):
            continue
        caption = f"Interaction graph of seed {piece['seed']}, {BASES[piece['basis']]}; modules at γ = 1."
        name = f"graph-seed{piece['seed']}-{piece['basis']}"
        yield Picture(GRAPHS, name, caption, graph_figure(piece, folder, labels(piece), 1.0))


def graph_figure(
    piece: Piece, folder: Path, labels: Labels, resolution: float, top: int = TOP, title: str = ""
) -> Figure:
    run = folder / piece["run"]
    graph = load(run)
    masks = load_tensors(run, "ablation")
    found: dict[str, Any] = next((row for row in piece["modules"] if row["resolution"] == resolution), {})
    known = [masks.get(f"edge_mask.{k}") for k in range(len(graph.edges))]
    needed: list[Tensor] = [mask for mask in known if mask is not None]
    return figures.interaction_graph(
        graph, top=top, needed=needed if len(needed) == len(known) else None, labels=labels, title=title,
        modules=[layer["assignment"] for layer in found["layers"]] if "layers" in found else None,
    )  # fmt: skip
