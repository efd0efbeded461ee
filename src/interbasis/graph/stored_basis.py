"""Bases and edges whose matrices stay in a safetensors file, for graphs that are larger than memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import overload

from torch import Tensor

from interbasis.base.tensor_file import read_tensor
from interbasis.graph.layer_basis import LayerBasis


class StoredBasis(LayerBasis):
    """A basis whose C and C⁺ are read from a file whenever they are asked for."""

    def __init__(self, layer: LayerBasis, file: Path, prefix: str):
        """``layer`` in memory says all but the two matrices, which the file holds as ``prefix``transform and
        ``prefix``inverse."""
        kept = {name: value for name, value in vars(layer).items() if name not in ("transform", "inverse")}
        size = layer.features, layer.width
        for name, value in (kept | {"_file": file, "_prefix": prefix, "_size": size}).items():
            object.__setattr__(self, name, value)

    @property
    def transform(self) -> Tensor:  # [features, width]
        return read_tensor(self.__dict__["_file"], self.__dict__["_prefix"] + "transform")

    @property
    def inverse(self) -> Tensor:  # [width, features]
        return read_tensor(self.__dict__["_file"], self.__dict__["_prefix"] + "inverse")

    @property
    def features(self) -> int:
        return int(self.__dict__["_size"][0])

    @property
    def width(self) -> int:
        return int(self.__dict__["_size"][1])


class StoredTensors(Sequence[Tensor]):
    """Tensors that are read from files whenever they are asked for."""

    def __init__(self, places: Sequence[tuple[Path, str]]):
        self._places = list(places)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> "StoredTensors": ...
    def __getitem__(self, index: int | slice) -> "Tensor | StoredTensors":
        if isinstance(index, slice):
            return StoredTensors(self._places[index])
        return read_tensor(*self._places[index])
