"""Parquet tables, for pandas, polars, DuckDB and the like."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from interbasis.base.errors import InterbasisError
from interbasis.base.files import check_writable, write_atomically
from interbasis.show.export.plain import EdgeRow, NodeRow, PlainGraph

TYPES = {
    "nodes": {
        "id": "string", "layer": "string", "layer_index": "int32", "feature": "int32", "constant": "bool_",
        "label": "string", "eigenvalue": "float64", "eigenvalue_error": "float64", "module": "int32",
    },
    "edges": {
        "source": "string", "target": "string", "section": "int32", "strength": "float64", "error": "float64",
        "needed": "bool_",
    },
}  # fmt: skip
"""Columns and their types in pyarrow's words."""


def write_parquet(graph: PlainGraph, folder: str | Path) -> list[Path]:
    """nodes.parquet and edges.parquet; model, settings and what was left out are in the files' metadata,
    under the key "interbasis"."""
    arrow, parquet = _pyarrow()
    folder = Path(folder)
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    tables: dict[str, Sequence[NodeRow | EdgeRow]] = {"nodes": graph.nodes, "edges": graph.edges}
    for name, rows in tables.items():
        fields = [(column, getattr(arrow, kind)()) for column, kind in TYPES[name].items()]
        notes = {"interbasis": graph.notes().to_json()}
        table = arrow.Table.from_pylist([asdict(row) for row in rows], arrow.schema(fields, notes))

        def write(temporary: Path, table: Any = table) -> None:
            parquet.write_table(table, temporary)

        write_atomically(folder / f"{name}.parquet", write)
        files.append(folder / f"{name}.parquet")
    return files


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise InterbasisError(
            "parquet files are written with pyarrow, which is not installed; "
            "install it with: pip install 'interbasis[parquet]'"
        ) from error
    return pyarrow, pyarrow.parquet
