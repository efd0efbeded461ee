"""Safetensors files of tensors that are not all in memory: they are written and read one at a time."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Entry:
    """A tensor that will be written: read when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @classmethod
    def from_tensor(cls, name: str, tensor: Tensor) -> "Entry":
        return cls(name, tuple(tensor.shape), tensor.dtype, lambda: tensor)

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def write_tensors(path: Path, entries: Sequence[Entry], metadata: dict[str, str]) -> None:
    """Write a safetensors file, the same bytes as `safetensors.torch.save_file` writes."""
    ordered = sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for entry in ordered:
        header[entry.name] = {
            "dtype": NAMES[entry.dtype], "shape": entry.shape, "data_offsets": (offset, offset + entry.bytes),
        }  # fmt: skip
        offset += entry.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in ordered:
            tensor = entry.read().detach().cpu().contiguous()
            assert (tuple(tensor.shape), tensor.dtype) == (entry.shape, entry.dtype), entry.name
            file.write(tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")


def tensor_digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """SHA-256 of tensors on the CPU, with their names, dtypes and shapes, and of texts that go with them."""
    digest = hashlib.sha256(json.dumps(texts).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, NAMES[tensor.dtype], list(tensor.shape)]).encode())
        if tensor.numel():
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a safetensors file, in memory; nothing else of the file stays there."""
    with safe_open(path, "pt") as file:
        return file.get_tensor(name).clone()
