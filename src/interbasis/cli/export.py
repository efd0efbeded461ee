"""`interbasis export`: a run in other forms."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import Field

from interbasis.base.records import Record
from interbasis.cli import common


class ExportRequest(Record):
    """Which files to write."""

    html: Path | None = None
    """One HTML file that shows the graph from disk."""
    graphml: Path | None = None
    """GraphML file, for Gephi, Cytoscape, networkx."""
    parquet: Path | None = None
    """Folder for nodes.parquet and edges.parquet."""
    neuronpedia: Path | None = None
    """JSON in Neuronpedia's schema; the file says what is left out."""
    edges: int = Field(default=100_000, ge=0)
    """Maximum number of edges in a file, the strongest of each section; 0 for all. Not for --html."""


class WrittenFile(Record):
    file: Path
    bytes: int


class ExportResult(Record):
    """Files that were written."""

    files: tuple[WrittenFile, ...]
    left_out: str = ""
    """Edges that were left out, in one sentence."""


def export(
    run: common.Run,
    other: Annotated[Path | None, Parameter(help="Folder of a second run, side by side in the page.")] = None,
    /,
    *,
    request: Annotated[ExportRequest | None, common.Flat] = None,
    labels: common.Labels = True,
    as_json: common.AsJson = False,
) -> None:
    """Export a run as HTML, GraphML, parquet or JSON.

    Example: interbasis export runs/lib --graphml lib.graphml --parquet lib-tables --neuronpedia lib.json
    """
    from interbasis.base.errors import InterbasisError

    request = request or ExportRequest()
    tables = request.graphml, request.parquet, request.neuronpedia
    if request.html is None and not any(tables):
        raise InterbasisError(
            "no output was chosen; add --html FILE, --graphml FILE, --parquet FOLDER or --neuronpedia FILE"
        )
    if other is not None and request.html is None:
        raise InterbasisError("a second run is only shown in the page; add --html FILE")
    files: list[Path] = []
    left_out = ""
    if request.html is not None:
        from interbasis.show.viewer import write_page

        runs = [run] if other is None else [run, other]
        if labels:
            common.describe_opening_views(runs)
        files.append(write_page(runs, request.html))
    if any(tables):
        from interbasis.show.export import plain_graph, write_graphml, write_neuronpedia, write_parquet

        graph = plain_graph(run, request.edges or None)
        left_out = graph.left_out
        if request.graphml is not None:
            files.append(write_graphml(graph, request.graphml))
        if request.parquet is not None:
            files += write_parquet(graph, request.parquet)
        if request.neuronpedia is not None:
            files.append(write_neuronpedia(graph, request.neuronpedia))
    result = ExportResult(
        files=tuple(WrittenFile(file=file, bytes=file.stat().st_size) for file in files), left_out=left_out
    )
    lines = [f"{row.file}  ({row.bytes:,} bytes)" for row in result.files]
    common.show(result, as_json, lambda _: [*lines, left_out] if left_out else lines)
