"""A network and its answer: true features of every layer, the parts they belong to, who acts on whom."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.network.network import Network

NO_PART = -1
"""The part of a true feature that nothing reads."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Planted structure. True features g of a layer are mixed into its coordinates, f = T g."""

    mixings: tuple[Tensor, ...]
    """T [width, true features] per node layer, the constant left out."""
    values: tuple[Tensor, ...]
    """g [samples, true features] per node layer, as the parts compute it without mixing."""
    parts: tuple[Tensor, ...]
    """The part of every true feature, per node layer; `NO_PART` for what nothing reads."""
    acts_on: tuple[Tensor, ...]
    """Per section [parts, parts], True where the second part is read by the first; the diagonal is True."""
    modular: bool = True
    """Whether the parts are modules of their own, or act on each other."""

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self.acts_on[0])

    def present(self, layer: int) -> list[int]:
        """The parts that have true features at a layer."""
        return [part for part in self.parts[layer].unique().tolist() if part != NO_PART]

    def covariance(self, layer: int) -> Tensor:
        """Covariance of the true features of a layer, [true, true]."""
        centred = self.values[layer] - self.values[layer].mean(0)
        return centred.T @ centred / len(centred)

    def shares(self, layer: int, transform: Tensor) -> Tensor:  # C [r, width + 1] -> [r, parts + 1]
        """Share of every feature that each part contributes: c_kᵀ S_kk c_k over the sum of all parts.

        c = C T says how a feature is read off the true features, S is their covariance. The last column is
        what nothing reads. The measure does not depend on the coordinates within a part.
        """
        c, S = transform[:, 1:] @ self.mixings[layer], self.covariance(layer)
        columns = []
        for part in [*range(self.count), NO_PART]:
            inside = self.parts[layer] == part
            columns.append(((c[:, inside] @ S[inside][:, inside]) * c[:, inside]).sum(1))
        contributions = torch.stack(columns, dim=1).clamp_min(0)
        return contributions / contributions.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)


@dataclass(frozen=True, eq=False)
class KnownNetwork:
    """A network, inputs for it, and the truth about both."""

    network: Network
    inputs: Tensor
    truth: Truth
