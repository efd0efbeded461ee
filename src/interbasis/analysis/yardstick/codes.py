"""The protocol by which a method enters the yardstick: codes of the activations at places of a network.

A method gives, per place, directions in the order of their importance, and what is left of the activations
when some of them are kept and the others put at their mean. A method that ranks coordinates gives a mask
(`CoordinateCode`), every other linear method an encoder and a decoder (`LinearCode`); anything that can
reconstruct activations from a part of its features, such as a dictionary, can implement `LayerCode`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Executor
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build_data import BuildData
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.covariance import Covariance
from interbasis.lib.statistics import Wanted, collect
from interbasis.network.cores import Normalize, Variance
from interbasis.network.hooks import node_layer
from interbasis.network.network import Network, Section

READ = ":read"
"""Ends the name of the coordinates of a node layer that the next section reads through weights alone."""


@dataclass(frozen=True)
class CodedPlace:
    """Coordinates of a node layer that are replaced together."""

    name: str
    """The node layer's name, with `:read` for the coordinates that only weights read."""
    layer: int
    """Index of the node layer."""
    columns: slice
    """Its coordinates, the constant left out."""

    @property
    def width(self) -> int:
        return int(self.columns.stop - self.columns.start)


def weight_columns(section: Section) -> slice | None:
    """The coordinates that a section reads through its weight matrix and in no other way; None: there are
    none.

    With a skip beside it that carries the same coordinates, replacing them would change the skip too.
    """
    first = section.source.first_coordinate
    if not section.reads_per_position or isinstance(section.core, Variance | Normalize):
        return None
    if not len(section.read):  # linear: P is the weight matrix
        return slice(first, section.source.width)
    columns = slice(*section.columns_read)
    if columns.start == columns.stop or section.skip[:, columns].any():
        return None
    return columns


def all_places(network: Network) -> dict[str, CodedPlace]:
    """Places by name: every node layer but the last, and the coordinates that only weights read."""
    places = {}
    for index, section in enumerate(network.sections):
        node = section.source
        whole = slice(node.first_coordinate, node.width)
        places[node.name] = CodedPlace(node.name, index, whole)
        columns = weight_columns(section)
        if columns is not None and columns != whole:
            name = node.name + READ
            places[name] = CodedPlace(name, index, columns)
    return places


def chosen_places(network: Network, names: tuple[str, ...]) -> list[CodedPlace]:
    """Places by name; without names, all node layers that hold no isolated coordinate.

    Raises:
        InterbasisError: There is no such place.
    """
    known = all_places(network)
    if not names:
        return [place for place in known.values() if _is_default(network, place)]
    chosen = []
    for name in names:
        layer, _, part = name.partition(":")
        wanted = node_layer(layer, network.layers) + (f":{part}" if part else "")
        if wanted not in known:
            raise InterbasisError(
                f"expected a node layer before the last, or such a layer with {READ} where only weights read "
                f"a part of it, received {name!r}; the network has {', '.join(known)}"
            )
        chosen.append(known[wanted])
    return chosen


def _is_default(network: Network, place: CodedPlace) -> bool:
    return not place.name.endswith(READ) and not network.nodes[place.layer].isolated


class LayerCode(Protocol):
    """Directions of the activations at one place, the most important first."""

    @property
    def directions(self) -> int:
        """Number of directions that can be kept."""

    def reconstruct(self, f: Tensor, keep: Tensor) -> Tensor:  # [n, T, width], bool [directions]
        """Return f with the kept directions as they are and the others at their mean, [n, T, width]."""


@dataclass(frozen=True, eq=False)
class LinearCode:
    """x ↦ μ + D_K E_K (x − μ) for the kept directions K; other coordinates of the layer stay as they are."""

    columns: slice
    """Coordinates x of the node layer."""
    encoder: Tensor
    """E [directions, coordinates]."""
    decoder: Tensor
    """D [coordinates, directions]."""
    centre: Tensor
    """μ [coordinates], where dropped directions are put."""

    @property
    def directions(self) -> int:
        return len(self.encoder)

    @cached_property
    def is_invertible(self) -> bool:
        """Whether D E = 1."""
        product = self.decoder.double() @ self.encoder.double()
        return torch.allclose(product, torch.eye(len(product)).to(product), rtol=0, atol=IDENTITY_TOLERANCE)

    def reconstruct(self, f: Tensor, keep: Tensor) -> Tensor:
        E, D, μ = (tensor.to(f) for tensor in (self.encoder[keep], self.decoder[:, keep], self.centre))
        result = f.clone()
        result[..., self.columns] = μ + (f[..., self.columns] - μ) @ E.T @ D.T
        return result


@dataclass(frozen=True, eq=False)
class CoordinateCode:
    """A ranking of coordinates: those that the mask does not keep are put at their mean."""

    columns: slice
    order: Tensor
    """Coordinates within ``columns``, the most important first, [coordinates]."""
    centre: Tensor
    """μ [coordinates]."""

    @property
    def directions(self) -> int:
        return len(self.order)

    def reconstruct(self, f: Tensor, keep: Tensor) -> Tensor:
        kept = torch.zeros_like(keep).index_put((self.order,), keep).to(f.device)
        result = f.clone()
        result[..., self.columns] = torch.where(kept, f[..., self.columns], self.centre.to(f))
        return result


IDENTITY_TOLERANCE = 1e-9
"""Largest entry of D E − 1 that is rounding."""


def changes_nothing(code: LayerCode, keep: Tensor) -> bool:
    """Whether reconstructions are the activations, but for rounding; False where that is not known."""
    if not keep.all() or not isinstance(code, LinearCode | CoordinateCode):
        return False
    return isinstance(code, CoordinateCode) or code.is_invertible


Codes = Mapping[str, LayerCode]
"""Codes by the names of their places."""


@dataclass(frozen=True, eq=False)
class MethodInputs:
    """Everything that a method may be fitted on; labels and test data are not in it."""

    network: Network
    data: BuildData
    config: BuildConfig
    """Settings of bases, without edges."""
    counted: CountedTokens
    """Tokens that count in sums over the data."""
    executor: Executor

    def covariances(self) -> list[Covariance]:
        """Mean and centred Gram of every node layer, in one pass over the data."""
        wanted = Wanted(cores=False, last_gram=self.network.rotate_last, counted=self.counted)
        return collect(self.network, self.data.data, wanted, self.executor).layers


class RankingMethod(Protocol):
    """A way to rank directions, by a name that tables show."""

    @property
    def name(self) -> str: ...

    def fit(self, inputs: MethodInputs) -> Codes:
        """Return the codes of all places that the method supports; of others, nothing."""


def dump_codes(codes: Mapping[str, LinearCode | CoordinateCode]) -> State:
    """Return codes as tensors and plain values."""
    tensors: dict[str, Tensor] = {}
    columns = []
    for number, code in enumerate(codes.values()):
        columns.append([code.columns.start, code.columns.stop])
        named = {"centre": code.centre}
        if isinstance(code, LinearCode):
            named |= {"encoder": code.encoder, "decoder": code.decoder}
        else:
            named["order"] = code.order
        tensors |= {f"{number}.{name}": tensor.cpu().contiguous() for name, tensor in named.items()}
    return tensors, {"places": list(codes), "columns": columns}


def load_codes(state: State) -> dict[str, LinearCode | CoordinateCode]:
    """Return the codes that were dumped."""
    tensors, values = state
    codes: dict[str, LinearCode | CoordinateCode] = {}
    for number, (name, columns) in enumerate(zip(values["places"], values["columns"], strict=True)):
        centre = tensors[f"{number}.centre"]
        if f"{number}.order" in tensors:
            codes[name] = CoordinateCode(slice(*columns), tensors[f"{number}.order"], centre)
        else:
            encoder, decoder = tensors[f"{number}.encoder"], tensors[f"{number}.decoder"]
            codes[name] = LinearCode(slice(*columns), encoder, decoder, centre)
    return codes
