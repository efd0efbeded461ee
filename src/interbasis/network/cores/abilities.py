"""Optional abilities of cores, each an interface of its own: check for them with ``isinstance``."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from interbasis.network.cores.core import Counted, Sums
from interbasis.network.cores.squares import Squares
from interbasis.numerics.integration import Rule

if TYPE_CHECKING:
    from interbasis.network.network import Section


class ClosedFormSquares(ABC):
    """Edges from a few sums over tokens, without the attributions of single ones."""

    @abstractmethod
    def squares(self, section: "Section", rule: Rule) -> Squares:
        """The sums of ``section``, whose core this is, in the coordinates of two bases."""


class SamplesQueries(ABC):
    """Outputs at some of the positions and sums over them, which depend on other positions too."""

    @abstractmethod
    def at(self, u: Tensor, positions: Tensor) -> Tensor:
        """core(u) at the output positions [n, S], each sample's own; u [n, T, c_in] -> [n, S, c_out]."""

    @abstractmethod
    def sums_at(self, u: Tensor, positions: Tensor, metric: Tensor, counted: Counted | None = None) -> Sums:
        """`PassCore.batch_sums` over the output positions [n, S], each sample's own."""

    @abstractmethod
    def signed_attributions_at(
        self, u: Tensor, f: Tensor, read: Tensor, positions: Tensor, rule: Rule, signs: Tensor
    ) -> Tensor:
        """`Core.signed_attributions` at the output positions [n, S], each sample's own, in order."""


class FastAblation(ABC):
    """B · core(u) by short cuts, for rows B [rows, c_out] of the write matrix; None if none is shorter."""

    @abstractmethod
    def written_from(self, f: Tensor, read: Tensor, outputs: slice, write: Tensor) -> Tensor | None:
        """B · core(A f) for few input features, f [n, T, r] and read A [c_in, r] -> [n, S, rows]."""

    @abstractmethod
    def written_from_table(self, rows: Tensor, index: Tensor, outputs: slice, write: Tensor) -> Tensor | None:
        """B · core(rows[index]) for few different tokens, rows [U, c_in] and index [n, T] -> [n, S, rows]."""
