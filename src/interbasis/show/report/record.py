"""Runs of a report: the graph of each and every result beside it, under a short name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from interbasis.analysis.ablation.records import Control
from interbasis.analysis.features.records import LayerFeatures
from interbasis.analysis.run_record import RunRecord, read_results, read_run
from interbasis.analysis.summary import RunSummary, summarise
from interbasis.analysis.workspace import Workspace
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.show.rows import LayerRows, SectionRows, layer_rows, section_rows

MAX_TRACES = 100
"""Traces whose checks a report counts, the newest."""
Reportable = str | Path | Workspace
"""A run's folder, or an open run."""


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One run of a report."""

    name: str
    """Short, and different for every run of a report."""
    folder: str
    """As it was given; empty for a run in memory."""
    record: RunRecord

    @property
    def graph(self) -> InteractionGraph:
        return self.record.graph

    @cached_property
    def summary(self) -> RunSummary:
        return summarise(self.graph)

    @cached_property
    def layers(self) -> dict[str, LayerRows]:
        """Node layers with what is known about them, by name."""
        return {rows.name: rows for rows in layer_rows(self.record)}

    @cached_property
    def sections(self) -> dict[str, SectionRows]:
        """Sections with what was measured about them, by "source → target"; without the edges themselves."""
        return {rows.name: rows for rows in section_rows(self.record, limit=0)}

    @property
    def model(self) -> str:
        return self.summary.model or f"a network of the family {self.summary.family}"

    @property
    def is_robust(self) -> bool:
        """Whether robust counts were sought for all sections that were ablated."""
        rows = self.record.ablation.sections.values() if self.record.ablation else ()
        return bool(rows) and all(row.robust for row in rows)

    @property
    def edges_required(self) -> dict[str, int | None]:
        """Edges required by section, robust where all of them are; None where a section was not ablated."""
        rows = {name: section.edges_required for name, section in self.sections.items()}
        counts = "headline" if self.is_robust else "count"
        return {name: getattr(row, counts) if row else None for name, row in rows.items()}

    @property
    def nodes_required(self) -> dict[str, int | None]:
        """Nodes required by layer; None where a layer was not ablated."""
        rows = {name: layer.nodes_required for name, layer in self.layers.items()}
        return {name: row.count if row else None for name, row in rows.items()}

    @property
    def edge_counts(self) -> dict[str, int]:
        """Edges between the features kept, the constant's left out, by section: what counts are counts of."""
        return {section.name: section.edges for section in self.summary.sections.values()}

    @property
    def node_counts(self) -> dict[str, int]:
        """Features kept, by layer."""
        return {layer.name: layer.features for layer in self.summary.layers.values()}

    @property
    def analysed_layers(self) -> list[LayerFeatures]:
        """Layers whose features were looked at, the network's outputs left out."""
        result = self.record.features or self.record.labels
        return [row for name, row in result.layers.items() if not self.layers[name].outputs] if result else []

    @property
    def trained_control(self) -> Control | None:
        """The row of the run itself among its controls."""
        rows = self.record.controls.rows.values() if self.record.controls else ()
        trained = (row for row in rows if row.network == "trained" and row.ranking == "Ê")
        return next((row for row in trained if row.basis == self.summary.basis), None)

    @property
    def labels(self) -> dict[str, dict[int, str]]:
        """{layer: {feature: label}}."""
        return {
            name: {index: feature.label for index, feature in rows.features.items()}
            for name, rows in self.layers.items()
        }


def read_runs(runs: Reportable | Sequence[Reportable]) -> list[ReportedRun]:
    """Runs, each with a name of its own: the folder's, or its path where two are called alike."""
    listed = [runs] if isinstance(runs, str | Path | Workspace) else list(runs)
    if not listed:
        raise InterbasisError("a report requires at least one run; name its folder")
    folders = [run.folder if isinstance(run, Workspace) else Path(run) for run in listed]
    paths = [folder.resolve() for folder in folders if folder is not None]
    for twice in (path for path in paths if paths.count(path) > 1):
        raise InterbasisError(f"the run {twice} was given twice; give each run once")
    counts = Counter(path.name for path in paths)
    reported = []
    for number, (run, folder) in enumerate(zip(listed, folders, strict=True), 1):
        name = f"run {number}" if len(listed) > 1 else ""
        if folder is not None:
            path = folder.resolve()
            name = path.name if counts[path.name] == 1 else f"{path.parent.name}/{path.name}"
        read = read_results if isinstance(run, Workspace) else read_run
        record = read(run, max_traces=MAX_TRACES)  # type: ignore[arg-type]
        name = name or record.graph.provenance.shown_model
        reported.append(ReportedRun(name, "" if folder is None else str(folder), record))
    return reported
