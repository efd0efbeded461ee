"""A result of the yardstick in a folder: `yardstick.json`, with the sums of every sample in a tensor file."""

from pathlib import Path

from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from interbasis.analysis.yardstick.records import YardstickResult
from interbasis.base.errors import InterbasisError, first_problem
from interbasis.base.files import file_sha256, inside, make_folder, write_atomically, write_text_atomically
from interbasis.base.json_text import parse_json
from interbasis.base.records import Record

NAME = "yardstick"
FORMAT = "interbasis-yardstick"
SCHEMA = 2


class StoredYardstick(Record):
    """A result with the digest of its tensors."""

    format: str
    schema_version: int
    tensors: str
    """SHA-256 of the tensor file."""
    result: YardstickResult


def save(folder: Path, result: YardstickResult, tensors: dict[str, Tensor]) -> None:
    """Write a result, in place of an older one; the JSON comes last."""
    make_folder(folder)
    file = inside(folder, f"{NAME}.safetensors")
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(file, lambda path: save_file(plain, path))
    stored = StoredYardstick(format=FORMAT, schema_version=SCHEMA, tensors=file_sha256(file), result=result)
    write_text_atomically(inside(folder, f"{NAME}.json"), stored.to_json(indent=1) + "\n")


def load(folder: Path) -> tuple[YardstickResult, dict[str, Tensor]] | None:
    """Read a result and its tensors; None where there is none.

    Raises:
        InterbasisError: The files are damaged, or of another version.
    """
    path = inside(folder, f"{NAME}.json")
    if not path.is_file():
        return None
    remedy = f"delete {path} and run the command again"
    try:
        written = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InterbasisError(f"{path} is not readable ({error}); {remedy}") from error
    version = (written.get("format"), written.get("schema_version")) if isinstance(written, dict) else None
    if version and None not in version and version != (FORMAT, SCHEMA):
        raise InterbasisError(
            f"{path} has format {version[0]!r}, schema {version[1]}; this version reads {FORMAT!r}, schema "
            f"{SCHEMA}: upgrade interbasis, or {remedy}"
        )
    try:
        stored = StoredYardstick.model_validate(written)
    except ValidationError as error:
        raise InterbasisError(f"{path} is damaged: {first_problem(error)}; {remedy}") from error
    file = inside(folder, f"{NAME}.safetensors")
    if not file.is_file() or file_sha256(file) != stored.tensors:
        raise InterbasisError(f"{file} does not belong to {path.name} beside it; {remedy}")
    return stored.result, load_file(file)
