"""What only some cores can do, each an interface of its own: ask for it with ``isinstance``."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from interbasis.network.cores.core import Counted, Sums
from interbasis.numerics.integration import Rule

if TYPE_CHECKING:
    from interbasis.network.network import Section


class ClosedFormSquares(ABC):
    """Edges from a few sums over tokens, without the attributions of single ones."""

    @abstractmethod
    def squares(self, section: "Section", rule: Rule) -> Callable[[Tensor], Tensor]:
        """f [n, T, r_in] ↦ Σ A² over its tokens, [r_out, r_in] in float64.

        ``section``, whose core this is, and f are in the coordinates of two bases.
        """


class SamplesQueries(ABC):
    """Sums over some of the output positions, which other positions have their say in."""

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
        """For u = A f with few input features, f [n, T, r] and read [c_in, r] -> [n, S, rows]."""

    @abstractmethod
    def written_from_table(self, rows: Tensor, index: Tensor, outputs: slice, write: Tensor) -> Tensor | None:
        """For u = rows[index], rows [U, c_in] and index [n, T] -> [n, S, rows]: few different tokens."""
