"""What a report knows about a run: its graph and every result beside it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.run.results import load_result, load_tensors, rows_by_name
from interbasis.run.summary import summarise
from interbasis.runtime.errors import InterbasisError


@dataclass(frozen=True, eq=False)
class Facts:
    """One run. A result that was not made is None."""

    name: str
    """Short and different for every run of a report."""
    folder: str
    graph: InteractionGraph
    summary: dict[str, Any]
    ablation: dict[str, Any] | None = None
    masks: tuple[Tensor, ...] | None = None
    """Needed edges per section."""
    curves: dict[str, Any] | None = None
    controls: dict[str, Any] | None = None
    modules: dict[str, Any] | None = None
    features: dict[str, Any] | None = None

    @property
    def model(self) -> str:
        return self.graph.provenance.model or f"a network of the family {self.graph.provenance.family}"

    @property
    def sections(self) -> list[str]:
        names = [layer.name for layer in self.graph.layers]
        return [f"{a} → {b}" for a, b in pairwise(names)]

    @property
    def ablated(self) -> list[dict[str, Any] | None]:
        """What the ablation found, per section of the graph; None where a section was left out."""
        return rows_by_name(self.ablation, "sections", [layer.name for layer in self.graph.layers[:-1]])

    @property
    def traced(self) -> list[dict[str, Any] | None]:
        """Curves, per section of the graph."""
        return rows_by_name(self.curves, "sections", [layer.name for layer in self.graph.layers[:-1]])

    @property
    def edges_required(self) -> list[int | None]:
        return [None if row is None else row["count"] for row in self.ablated]

    @property
    def nodes_required(self) -> list[int | None]:
        rows = rows_by_name(self.ablation, "layers", [layer.name for layer in self.graph.layers])
        return [None if row is None else row["count"] for row in rows]

    @property
    def outputs(self) -> list[str]:
        """The last layer's name where it was not rotated, so that its features are the outputs themselves."""
        last = self.graph.layers[-1]
        return [last.name] if last.identity or not last.constant else []

    @property
    def labels(self) -> dict[str, dict[int, str]]:
        """{layer: {feature: label}}."""
        return {
            layer["name"]: {feature["index"]: feature.get("label", "") for feature in layer["features"]}
            for layer in (self.features or {}).get("layers", [])
        }


def facts(folder: str | Path, name: str | None = None) -> Facts:
    """Read a run and all that is known about it."""
    graph = load(folder)
    tensors = load_tensors(folder, "ablation")
    masks = tuple(tensors[f"edge_mask.{k}"] for k in range(len(graph.edges)) if f"edge_mask.{k}" in tensors)
    names = "ablation", "curves", "controls", "modules", "features"
    found: dict[str, Any] = {name: load_result(folder, name) for name in names}
    return Facts(
        name or Path(folder).resolve().name, str(folder), graph, summarise(graph),
        masks=masks if graph.edges and len(masks) == len(graph.edges) else None,
        **found,
    )  # fmt: skip


def all_facts(folders: Sequence[str | Path]) -> list[Facts]:
    """Several runs, each with a name of its own: the folder's, or its path where two are called alike."""
    if not folders:
        raise InterbasisError("a report needs at least one run; name its folder")
    paths = [Path(folder).resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise InterbasisError("a run was named twice; name every run of a report once")
    counts = Counter(path.name for path in paths)
    return [
        facts(folder, path.name if counts[path.name] == 1 else f"{path.parent.name}/{path.name}")
        for folder, path in zip(folders, paths, strict=True)
    ]
