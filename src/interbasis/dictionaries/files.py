"""Files of dictionaries: configs and tensors, with one sentence for whatever is missing, cut or of another
shape.

Tensors are read from safetensors and from numpy archives without pickles.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from interbasis.base.errors import InterbasisError, first_problem
from interbasis.base.files import file_sha256
from interbasis.base.json_text import parse_json


class FileConfig(BaseModel):
    """A config that another library wrote: fields that are not used here are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


Config = TypeVar("Config", bound=FileConfig)


def read_config(path: Path, kind: type[Config], parse: Callable[[str], object] = parse_json) -> Config:
    """Read and validate a config.

    Args:
        path: The file.
        kind: What it must hold.
        parse: From text to values.

    Returns:
        The config.

    Raises:
        InterbasisError: It cannot be read, or a value is missing or of the wrong type.
    """
    try:
        return kind.model_validate(parse(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        reason = first_problem(error)
    except FileNotFoundError as error:
        raise InterbasisError(
            f"expected {path.name} beside the weights in {path.parent}, but there is no such file; "
            "download or copy the whole folder"
        ) from error
    except (OSError, ValueError) as error:
        reason = str(error)
    raise InterbasisError(f"could not read the config {path} ({reason}); download or copy it again")


@dataclass(frozen=True)
class Tensors:
    """The tensors of one file, by name."""

    path: Path
    tensors: Mapping[str, Tensor]
    dtype: torch.dtype
    """What tensors are converted to when they are taken."""

    @classmethod
    def read(cls, path: Path, dtype: torch.dtype | None = None) -> "Tensors":
        """Read all tensors of a safetensors or .npz file.

        Args:
            path: The file.
            dtype: Of the tensors; by default that of the file, float32 at least.

        Returns:
            The tensors.

        Raises:
            InterbasisError: The file is missing, cut or of another kind.
        """
        tensors = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
        stored = torch.float32
        for tensor in tensors.values():
            if tensor.is_floating_point() and tensor.ndim == 2:  # thresholds are stored in float64 by some
                stored = torch.promote_types(stored, tensor.dtype)
        return cls(path, tensors, dtype or stored)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Shape of a tensor that must be there, with so many dimensions."""
        shape = tuple(self._get(name).shape)
        if len(shape) != dimensions:
            raise InterbasisError(
                f"expected the tensor {name} of {self.path} to have {dimensions} dimensions, "
                f"received the shape {list(shape)}; the file is of another kind than its config says"
            )
        return shape

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor that must be there, finite and of this shape."""
        tensor = self._get(name)
        if tuple(tensor.shape) != shape:
            raise InterbasisError(
                f"expected the tensor {name} of {self.path} to have the shape {list(shape)}, received "
                f"{list(tensor.shape)}; its config or another tensor belongs to a dictionary of another width"
            )
        tensor = tensor.to(self.dtype, copy=True)
        if not torch.isfinite(tensor).all():
            raise InterbasisError(
                f"expected finite numbers in the tensor {name} of {self.path}, received NaN or infinity; "
                "take another checkpoint of this dictionary"
            )
        return tensor

    def threshold(self, name: str, features: int) -> Tensor:  # [features]
        """A threshold of every feature, or one for all of them; infinite where a feature is never active."""
        tensor = self._get(name)
        if tensor.numel() not in (1, features) or torch.isnan(tensor).any():
            raise InterbasisError(
                f"expected the tensor {name} of {self.path} to have one threshold or {features}, and no NaN, "
                f"received the shape {list(tensor.shape)}; take another checkpoint of this dictionary"
            )
        return tensor.to(self.dtype).flatten().expand(features).clone()

    def _get(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise InterbasisError(
                f"expected a tensor {name} in {self.path}, received {', '.join(self.tensors) or 'none'}; "
                "the file is of another kind than its config says, or was cut when it was copied"
            )
        return self.tensors[name]


UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
"""What the readers of safetensors and numpy raise for bytes that are none of theirs."""


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a cut or foreign file raises into one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise InterbasisError(
            f"expected the weights of a dictionary at {path}, but there is no such file; "
            "download or copy the whole folder"
        ) from error
    except UNREADABLE as error:
        if isinstance(error, InterbasisError):
            raise
        raise InterbasisError(
            f"could not read {path} as {kind} ({error}); it is cut or something else: download or copy it "
            "again"
        ) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with reading(path, "a safetensors file"), safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


def _read_npz(path: Path) -> dict[str, Tensor]:
    with reading(path, "a numpy archive without pickles"), open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is not a zip archive")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:  # which would leave open a file that it opened
            return {name: torch.from_numpy(np.ascontiguousarray(archive[name])) for name in archive.files}


def digest(*paths: Path) -> str:
    """SHA-256 of a file; of several, that of their digests."""
    digests = [file_sha256(path) for path in paths]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
