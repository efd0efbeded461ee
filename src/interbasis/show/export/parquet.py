"""Parquet tables, for pandas, polars, DuckDB and the like."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

from interbasis.base.files import check_writable, write_atomically
from interbasis.base.lazy import optional_import
from interbasis.show.export.plain import EdgeRow, NodeRow, PlainGraph

ARROW_TYPES = {str: "string", int: "int32", float: "float64", bool: "bool_"}
"""pyarrow's names of the types of columns."""
NEED = "parquet files are written with pyarrow, which is not installed"


def write_parquet(graph: PlainGraph, folder: str | Path) -> list[Path]:
    """nodes.parquet and edges.parquet; model, settings and what was left out are in the files' metadata,
    under the key "interbasis"."""
    arrow, parquet = (optional_import(name, NEED, "parquet") for name in ("pyarrow", "pyarrow.parquet"))
    folder = Path(folder)
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    tables: dict[str, tuple[type, Sequence[NodeRow | EdgeRow]]] = {
        "nodes": (NodeRow, graph.nodes),
        "edges": (EdgeRow, graph.edges),
    }
    for name, (row_type, rows) in tables.items():
        hints = {column: (get_args(hint) or (hint,))[0] for column, hint in get_type_hints(row_type).items()}
        fields = [(column, getattr(arrow, ARROW_TYPES[kind])()) for column, kind in hints.items()]
        notes = {"interbasis": graph.notes().to_json()}
        table = arrow.Table.from_pylist([asdict(row) for row in rows], arrow.schema(fields, notes))

        def write(temporary: Path, table: Any = table) -> None:
            parquet.write_table(table, temporary)

        write_atomically(folder / f"{name}.parquet", write)
        files.append(folder / f"{name}.parquet")
    return files
