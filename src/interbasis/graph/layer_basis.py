"""Features of one node layer: f̂ = C f, and back by C⁺."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import overload

import torch
from pydantic import StrictBool, StrictStr
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.records import Record
from interbasis.base.tensor_file import Entry, read_tensor
from interbasis.compute.checkpoints import State
from interbasis.numerics.linalg import SpectrumCut

MAX_DENSE_IDENTITY = 2**13
"""Widest layer whose identity matrix is made when it is asked for."""


@dataclass(frozen=True, eq=False)
class LayerBasis:
    """The features of one node layer, in float64. A basis from elsewhere requires C and C⁺ only."""

    name: str
    transform: Tensor
    """C [features, width]: f̂ = C f. Feature 0 is the constant where the layer has one."""
    inverse: Tensor
    """C⁺ [width, features]: back to the network's coordinates, dropped directions at their mean."""
    mean: Tensor | None = None
    """E[f] [width], 1 for the constant."""
    eigenvalues: Tensor | None = None
    """Measure that ranks the features, [features]: Λ or the variance (`BasisKind.ranked_by`), and the
    variance in the last layer. Entry 0, the constant's, is 1 by convention."""
    variances: Tensor | None = None
    """D [directions]: variances of the principal directions kept, in descending order; entry 0, the
    constant's, is 1 by convention. For neuron, the neurons' own."""
    constant: bool = True
    """Whether feature 0 is the constant."""
    variance_cut: SpectrumCut | None = None
    """Effect of the noise floor on D."""
    jacobian_cut: SpectrumCut | None = None
    """Effect of the noise floor on Λ."""
    isolated: int = 0
    """Features after the constant that hold one coordinate each and took part in no decomposition."""
    eigenvalue_errors: Tensor | None = None
    """Standard errors of Λ [features] where query positions were sampled, here or in layers after it."""
    skip_positions: int = 0
    """First positions of every sample that were left out of the sums behind it."""
    norm_limit: float | None = None
    """Largest norm of a token that counted in these sums; None is any."""
    tokens: int | None = None
    """Number of tokens that counted in them; None where it is not known, as in runs of version 0.1."""

    def __post_init__(self) -> None:
        if self.transform.ndim != 2 or self.inverse.shape != self.transform.T.shape:
            raise InterbasisError(
                f"layer {self.name!r}: a transform of shape [features, width] requires an inverse of shape "
                f"[width, features], received {list(self.transform.shape)} and {list(self.inverse.shape)}"
            )

    def __repr__(self) -> str:
        return f"LayerBasis({self.name}: {self.features} features of {self.width} coordinates)"

    def counting(self, skip_positions: int, norm_limit: float | None) -> "LayerBasis":
        """The same basis, whose sums left out these positions and tokens of a larger norm."""
        return self._updated(skip_positions=skip_positions, norm_limit=norm_limit)

    def measured_on(self, tokens: int) -> "LayerBasis":
        """The same basis, with so many tokens in its sums."""
        return self._updated(tokens=tokens)

    def _updated(self, **fields: object) -> "LayerBasis":
        layer = copy(self)  # `dataclasses.replace` would make the matrices of an identity
        vars(layer).update(fields)
        return layer

    @property
    def first_feature(self) -> int:
        """The first feature after the constant."""
        return int(self.constant)

    @property
    def identity(self) -> bool:
        """Whether f̂ = f, with nothing stored for it."""
        return False

    def to_features(self, f: Tensor) -> Tensor:  # [..., width] -> [..., features]
        """f̂ = C f, in the dtype and on the device of f."""
        return f if self.identity else f @ self.transform.to(f).T

    def from_features(self, features: Tensor) -> Tensor:  # [..., features] -> [..., width]
        """C⁺ f̂."""
        return features if self.identity else features @ self.inverse.to(features).T

    def rows(self, features: Sequence[int] | Tensor) -> Tensor:  # [k] -> [k, width]
        """C[j] of some features j: the directions that they read."""
        return self.transform[torch.as_tensor(features, device=self.transform.device)]

    def directions(self, features: Sequence[int] | Tensor) -> Tensor:  # [k] -> [width, k]
        """C⁺[:, j] of some features j: one unit of each in the layer's coordinates."""
        return self.inverse[:, torch.as_tensor(features, dtype=torch.int64, device=self.inverse.device)]

    def centred(self) -> "LayerBasis":
        """The same features with 0 as their mean, as those of a rotated basis have it already."""
        return self

    def deviation(self, feature: int) -> float:
        """The feature's standard deviation over the data of the build; 1 where it is not known.

        In every basis the variance of a feature is what its layer is ranked by.
        """
        if self.eigenvalues is None:
            return 1.0
        return float(self.eigenvalues[feature].clamp_min(0).sqrt())

    @property
    def features(self) -> int:
        return len(self.transform)

    @property
    def width(self) -> int:
        return self.transform.shape[1]


class IdentityBasis(LayerBasis):
    """f̂ = f, with no matrices stored: the identity is made when it is asked for, never for a vocabulary."""

    def __init__(
        self,
        name: str,
        width: int,
        mean: Tensor | None = None,
        variances: Tensor | None = None,
        constant: bool = True,
    ):
        vars(self).update(
            name=name, mean=mean, eigenvalues=variances, variances=variances, constant=constant, _width=width
        )

    @property
    def transform(self) -> Tensor:  # [width, width]
        """The identity, made dense."""
        if self.width > MAX_DENSE_IDENTITY:
            raise InterbasisError(
                f"layer {self.name!r} is not rotated and {self.width} wide, so its identity is not made "
                "dense; where layer.identity is true, use the activations as they are"
            )
        return torch.eye(self.width, dtype=torch.float64)

    @property
    def inverse(self) -> Tensor:  # [width, width]
        """The identity, made dense."""
        return self.transform

    def rows(self, features: Sequence[int] | Tensor) -> Tensor:  # [k] -> [k, width]
        return torch.nn.functional.one_hot(torch.as_tensor(features, device="cpu"), self.width).double()

    def directions(self, features: Sequence[int] | Tensor) -> Tensor:  # [k] -> [width, k]
        return self.rows(features).T

    def centred(self) -> LayerBasis:
        """C = H: f̂ = f − E[f], apart from the constant; without a constant or a mean, as it is."""
        if not self.constant or self.mean is None:
            return self
        transform, inverse = self.transform, self.inverse
        transform[1:, 0] = -self.mean[1:]
        inverse[1:, 0] = self.mean[1:]
        return LayerBasis(
            self.name, transform, inverse, self.mean, self.eigenvalues, self.variances, self.constant
        )

    @property
    def identity(self) -> bool:
        return True

    @property
    def features(self) -> int:
        return self.width

    @property
    def width(self) -> int:
        return int(self.__dict__["_width"])


class StoredBasis(LayerBasis):
    """A basis whose C and C⁺ are read from a file whenever they are asked for."""

    def __init__(self, layer: LayerBasis, file: Path, prefix: str):
        """``layer`` in memory says all but the two matrices, which the file holds as ``prefix``transform and
        ``prefix``inverse."""
        fields = {name: value for name, value in vars(layer).items() if name not in ("transform", "inverse")}
        vars(self).update(fields, _file=file, _prefix=prefix, _size=(layer.features, layer.width))

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


TENSORS_PER_LAYER = ("transform", "inverse", "mean", "eigenvalues", "variances", "eigenvalue_errors")


class LayerHeader(Record):
    """Description of a layer without its tensors."""

    name: StrictStr
    constant: StrictBool
    isolated: int = 0
    identity: bool = False
    width: int = 0
    variance_cut: SpectrumCut | None
    jacobian_cut: SpectrumCut | None
    tokens: int | None = None

    @classmethod
    def from_layer(cls, layer: LayerBasis) -> "LayerHeader":
        return cls.model_validate({name: getattr(layer, name) for name in cls.model_fields})

    def to_layer(self, prefix: str, tensors: dict[str, Tensor]) -> LayerBasis:
        """Return the layer, whose tensors are called ``prefix``transform and so on."""
        optional = {name: tensors.get(prefix + name) for name in TENSORS_PER_LAYER[2:]}
        if self.identity:
            return IdentityBasis(
                self.name, self.width, optional["mean"], optional["variances"], self.constant
            )._updated(tokens=self.tokens)
        layer = LayerBasis(
            self.name,
            tensors[prefix + "transform"],
            tensors[prefix + "inverse"],
            constant=self.constant,
            variance_cut=self.variance_cut,
            jacobian_cut=self.jacobian_cut,
            isolated=self.isolated,
        )
        return layer._updated(**optional, tokens=self.tokens)


def layer_entries(layer: LayerBasis, prefix: str) -> list[Entry]:
    """Tensors of a layer, to be read one at a time; an identity has no matrices."""
    tensors = {prefix + name: getattr(layer, name) for name in TENSORS_PER_LAYER[2:]}
    entries = [Entry.from_tensor(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    if not layer.identity:
        size = layer.features, layer.width
        for name, shape in (("transform", size), ("inverse", size[::-1])):
            entries.append(Entry(prefix + name, shape, torch.float64, partial(getattr, layer, name)))
    return entries


def dump_layers(layers: Sequence[LayerBasis]) -> State:
    """Return layers as tensors and plain values."""
    entries = [entry for k, layer in enumerate(layers) for entry in layer_entries(layer, f"{k}.")]
    tensors = {entry.name: entry.read().detach().cpu().contiguous() for entry in entries}
    return tensors, {"layers": [LayerHeader.from_layer(layer).model_dump() for layer in layers]}


def load_layers(state: State) -> list[LayerBasis]:
    """Return the layers that were dumped."""
    tensors, values = state
    headers = [LayerHeader.model_validate(header) for header in values["layers"]]
    return [header.to_layer(f"{k}.", tensors) for k, header in enumerate(headers)]
