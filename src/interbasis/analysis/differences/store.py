"""A difference on disk: `diff.json`, with its directions in `diff.safetensors`; RUN/diffs holds a run's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from interbasis.analysis.differences.records import Difference, MeasuredDifference
from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.files import file_sha256, inside, write_atomically, write_text_atomically
from interbasis.base.json_text import parse_json
from interbasis.base.records import Record, read_record

FORMAT = "interbasis-difference"
SCHEMA = 1
NAME = "diff"
FOLDER = "diffs"
"""In the folder of a run: the differences between its model and others, a folder each."""


class DifferenceHeader(Record):
    """Header of the file, before the difference itself."""

    format: str
    schema_version: int
    tensors: str
    """SHA-256 of the file with the directions."""
    result: Any
    """Free-form until it is known to be of this version."""


def save_difference(folder: Path, difference: MeasuredDifference) -> Path:
    """Write a difference into a folder; the JSON, which is returned, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.cpu().contiguous().clone() for name, tensor in difference.tensors.items()}
    tensors, path = inside(folder, f"{NAME}.safetensors"), inside(folder, f"{NAME}.json")
    write_atomically(tensors, lambda file: save_file(plain, file))
    header = DifferenceHeader(
        format=FORMAT, schema_version=SCHEMA, tensors=file_sha256(tensors), result=difference.record
    )
    write_text_atomically(path, header.to_json(indent=1) + "\n")
    return path


def load_difference(folder: str | Path) -> MeasuredDifference:
    """Read a difference that was stored in a folder.

    Raises:
        InterbasisError: There is none, or it is damaged or of another version.
    """
    path, tensors = (inside(Path(folder), f"{NAME}.{suffix}") for suffix in ("json", "safetensors"))
    remedy = "run 'interbasis diff' again"
    with Explained(f"{path} is not readable", OSError, ValueError, SafetensorError, remedy=remedy):
        values = parse_json(path.read_text(encoding="utf-8"))
        header = read_record(DifferenceHeader, values, path, remedy)
        if (header.format, header.schema_version) != (FORMAT, SCHEMA):
            raise InterbasisError(
                f"{path} has format {header.format!r}, schema {header.schema_version}; this version reads "
                f"{FORMAT!r}, schema {SCHEMA}: {remedy}"
            )
        record = read_record(Difference, header.result, path, remedy)
        if file_sha256(tensors) != header.tensors:
            raise InterbasisError(f"{tensors} does not belong to {path.name} beside it; {remedy}")
        return MeasuredDifference(record, load_file(tensors))


def is_difference(folder: Path) -> bool:
    """Whether a folder holds a difference."""
    return (folder / f"{NAME}.json").is_file()


def stored_differences(run: Path, report: Callable[[InterbasisError], None]) -> dict[str, Difference]:
    """Differences in the folder of a run, by name; what cannot be read is reported."""
    found = {}
    for folder in sorted((run / FOLDER).glob("*")):
        if is_difference(folder):
            try:
                found[folder.name] = load_difference(inside(run, f"{FOLDER}/{folder.name}")).record
            except InterbasisError as error:
                report(error)
    return found
