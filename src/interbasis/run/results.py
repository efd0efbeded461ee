"""What is found out about a run later, kept beside its graph: `NAME.json`, with tensors `NAME.safetensors`.

Every result names the graph it belongs to by the hash of its tensors. A run that was built again has another
graph, and results of the old one are not taken for its own.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from interbasis.graph.store import graph_digest
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.files import sha256_of, write_atomically, write_text_atomically

FORMAT = "interbasis-result"
SCHEMA = 1


def save_result(
    run: str | Path, name: str, result: dict[str, Any], tensors: dict[str, Tensor] | None = None
) -> Path:
    """Write a result beside a run's graph, in place of an older one of that name; the JSON comes last."""
    run = Path(run)
    header: dict[str, Any] = {"format": FORMAT, "schema": SCHEMA, "graph": graph_digest(run)}
    if tensors:
        plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        file = run / f"{name}.safetensors"
        write_atomically(file, lambda path: save_file(plain, path))
        header["tensors"] = sha256_of(file)
    path = run / f"{name}.json"
    write_text_atomically(path, json.dumps(header | {"result": result}, indent=1, allow_nan=False) + "\n")
    return path


def load_result(run: str | Path, name: str) -> dict[str, Any] | None:
    """A result of this run; None where there is none, or one of an older graph."""
    header = _header(Path(run), name)
    return None if header is None else header["result"]


def rows_by_name(
    result: Mapping[str, Any] | None, where: str, names: Sequence[str]
) -> list[dict[str, Any] | None]:
    """The rows ``result[where]`` that belong to these layers, or to the sections that begin there.

    A result may hold some of them only, `ablate --sections` for one, so a row's place says nothing; None
    stands for those that it does not hold.
    """
    rows = {row["name" if where == "layers" else "from"]: row for row in (result or {}).get(where) or []}
    return [rows.get(name) for name in names]


def load_tensors(run: str | Path, name: str) -> dict[str, Tensor]:
    """The tensors that go with a result; none where it has none."""
    run = Path(run)
    header = _header(run, name)
    if header is None or "tensors" not in header:
        return {}
    path = run / f"{name}.safetensors"
    try:
        if sha256_of(path) == header["tensors"]:
            return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InterbasisError(f"could not read {path} ({error}); make the result again") from error
    raise InterbasisError(f"{path} does not belong to {name}.json beside it; make the result again")


def _header(run: Path, name: str) -> dict[str, Any] | None:
    digest = graph_digest(run)
    path = run / f"{name}.json"
    if not path.is_file():
        return None
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        form, schema, _, _ = (header[key] for key in ("format", "schema", "graph", "result"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InterbasisError(f"{path} is not a readable result ({error}); make it again") from error
    if form != FORMAT or schema not in range(1, SCHEMA + 1):
        raise InterbasisError(
            f"{path} has format {form!r}, schema {schema}; this version reads "
            f"{FORMAT!r}, schema 1 to {SCHEMA}: upgrade interbasis, or make the result again"
        )
    return header if header["graph"] == digest else None
