"""`interbasis export`: a run in other forms."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from interbasis.cli import common


def export(
    run: common.Run,
    other: Annotated[Path | None, Parameter(help="Folder of a second run, side by side in the page.")] = None,
    /,
    *,
    html: Annotated[Path | None, Parameter(help="One HTML file that shows the graph from disk.")] = None,
    graphml: Annotated[Path | None, Parameter(help="GraphML file, for Gephi, Cytoscape, networkx.")] = None,
    parquet: Annotated[Path | None, Parameter(help="Folder for nodes.parquet and edges.parquet.")] = None,
    neuronpedia: Annotated[
        Path | None, Parameter(help="JSON after Neuronpedia's schema; the file says what is left out.")
    ] = None,
    edges: Annotated[
        int, Parameter(help="Most edges in a file, the strongest of each section; 0 for all. Not for --html.")
    ] = 100_000,
    as_json: common.AsJson = False,
) -> None:
    """Write a run in other forms.

    Example: interbasis export runs/lib --graphml lib.graphml --parquet lib-tables --neuronpedia lib.json
    """
    from interbasis.runtime.errors import InterbasisError

    tables = graphml, parquet, neuronpedia
    if html is None and not any(tables):
        raise InterbasisError(
            "nothing to export was named; add --html FILE, --graphml FILE, --parquet FOLDER "
            "or --neuronpedia FILE"
        )
    if other is not None and html is None:
        raise InterbasisError("a second run is shown beside the first in the page only; add --html FILE")
    if edges < 0:
        raise InterbasisError(f"expected a number of edges, or 0 for all, received --edges {edges}")
    files: list[Path] = []
    left_out = None
    if html is not None:
        from interbasis.viewer import write_page

        files.append(write_page([run] if other is None else [run, other], html))
    if any(tables):
        written, left_out = _tables(run, graphml, parquet, neuronpedia, edges)
        files += written
    result: dict[str, Any] = {"files": [{"file": str(file), "bytes": file.stat().st_size} for file in files]}
    if html is not None:
        result |= {"html": str(files[0]), "bytes": files[0].stat().st_size}
    common.show(result | ({"left_out": left_out} if left_out else {}), as_json, _lines)


def _tables(
    run: Path, graphml: Path | None, parquet: Path | None, neuronpedia: Path | None, edges: int
) -> tuple[list[Path], str]:
    from interbasis.export import plain_graph, write_graphml, write_neuronpedia, write_parquet

    graph = plain_graph(run, edges or None)
    files: list[Path] = []
    if graphml is not None:
        files.append(write_graphml(graph, graphml))
    if parquet is not None:
        files += write_parquet(graph, parquet)
    if neuronpedia is not None:
        files.append(write_neuronpedia(graph, neuronpedia))
    return files, graph.left_out


def _lines(result: dict[str, Any]) -> list[str]:
    lines = [f"{row['file']}  ({row['bytes']:,} bytes)" for row in result["files"]]
    return [*lines, result["left_out"]] if "left_out" in result else lines
