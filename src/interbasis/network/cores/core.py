"""What a section's non-linear core has to answer.

A section is F(f) = P f + B · core(A f). With N_st = ∂core_s/∂u_t, u = A f, the basis needs two sums over
the data, Σ N_ss and Σ_st N_stᵀ Q N_st, and the edges need Σ_t N_st A_j f_jt for every input feature j.
Everything else about a section is linear and lives in `network.Section`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from interbasis.numerics.integration import Rule

if TYPE_CHECKING:
    from interbasis.network.network import Section

Sums = dict[str, Tensor]

MOST = 64
"""Tokens whose attributions are held at once while they are summed with signs."""


class Moments(NamedTuple):
    """The two sums over the data that decide a section's Jacobian Gram."""

    local: Tensor  # Σ N_ss          [c_out, c_in]
    gram: Tensor  # Σ_st N_stᵀQN_st  [c_in, c_in]


class Core(ABC):
    """A differentiable map u ↦ core(u) with core(0) = 0, [n, T, c_in] → [n, S, c_out].

    The outputs belong to the S input positions ``at``, a slice with start and stop.

    A core is one of two kinds. Where both sums follow from statistics that do not depend on Q
    (``has_statistics``), it implements `statistics` and `moments`, and one pass over the data serves all
    layers. Where they do not, it implements `batch_moments` and gets a pass of its own.
    """

    has_statistics: bool = False
    mixes_positions: bool = False
    """Whether an output position depends on other input positions than its own."""
    has_squares: bool = False
    """Whether it implements `squared_attributions`."""
    samples_queries: bool = False
    """Whether `sums_at` and `signed_attributions_at` can look at some of the output positions only."""

    @abstractmethod
    def __call__(self, u: Tensor, at: slice) -> Tensor: ...  # [n, T, c_in] -> [n, S, c_out]

    def written(self, u: Tensor, at: slice, write: Tensor) -> Tensor:  # [n, T, c_in] -> [n, S, rows]
        """B · core(u), for some rows B [rows, c_out] of the write matrix."""
        return self(u, at) @ write.T

    def written_from(self, f: Tensor, read: Tensor, at: slice, write: Tensor) -> Tensor:
        """The same for u = A f with few input features, f [n, T, r] and read [c_in, r]."""
        return self.written(f @ read.T, at, write)

    def written_from_table(self, rows: Tensor, index: Tensor, at: slice, write: Tensor) -> Tensor:
        """The same for u = rows[index], where few different tokens make many samples.

        rows [U, c_in], index [n, T] -> [n, S, rows of B]
        """
        if self.mixes_positions:
            return self.written(rows[index], at, write)
        return self.written(rows[:, None], slice(0, 1), write)[:, 0][index[:, at]]

    def statistics(self, u: Tensor, at: slice) -> Sums:  # u [n, T, c_in]
        """Sums over the batch from which `moments` follow for any Q."""
        raise NotImplementedError

    def moments(self, sums: Sums, metric: Tensor) -> Moments:  # Q [c_out, c_out]
        raise NotImplementedError

    def batch_moments(self, u: Tensor, at: slice, metric: Tensor, signs: Tensor | None) -> Moments:
        """Both sums over a batch; ``signs`` [n, S, R] are stochastic sources, where they are needed."""
        raise NotImplementedError

    def moments_at(self, u: Tensor, at: Tensor, metric: Tensor) -> Moments:
        """Both sums over the output positions ``at`` [n, S], each sample's own."""
        raise NotImplementedError

    def batch_sums(self, u: Tensor, at: slice, metric: Tensor, signs: Tensor | None) -> Sums:
        """What adds up over batches, from which `gathered` makes both sums, once for all of them."""
        return self.batch_moments(u, at, metric, signs)._asdict()

    def sums_at(self, u: Tensor, at: Tensor, metric: Tensor) -> Sums:
        """The same over the output positions ``at`` [n, S]."""
        return self.moments_at(u, at, metric)._asdict()

    def moments_from_sums(self, sums: Sums, metric: Tensor) -> Moments:
        """Both sums from those of all batches, with the metric they were made with."""
        return Moments(**sums)

    def to(self, *args: Any, **kwargs: Any) -> "Core":
        """The core in another dtype or on another device; one without parameters is the same everywhere."""
        return self

    def at_zero(self, like: Tensor) -> Tensor:  # [] or [c_out]
        """What was taken away so that core(0) = 0, in the dtype and on the device of ``like``."""
        return like.new_zeros(())

    def tensors(self) -> list[Tensor]:
        """The core's own weights, if it has any."""
        return []

    @abstractmethod
    def attributions(self, u: Tensor, f: Tensor, read: Tensor, at: slice, rule: Rule) -> Tensor:
        """Σ_t N̄_st A_j f_jt, with N̄ the Jacobian averaged along the line from 0 to u by ``rule``.

        u [n, T, c_in], f [n, T, r], read [c_in, r] -> [c_out, n·S, r]
        """

    def squared_attributions(self, section: "Section", f: Tensor, rule: Rule) -> Tensor:
        """Σ A² over tokens, [r_out, r_in] in float64, for cores that know it in closed form.

        ``section`` and f [n, T, r_in] are in the coordinates of two bases.
        """
        raise NotImplementedError

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, at: slice, rule: Rule, signs: Tensor
    ) -> Tensor:
        """`attributions` summed with signs over groups: signs [groups, g, R] cover the n·S tokens.

        The last group may be padded with zeros. Returns [c_out, groups·R, r].
        """
        groups, size, sources = signs.shape
        sums: Tensor | None = None
        for samples, here, first in _token_blocks(len(u), at):
            found = self.attributions(u[samples], f[samples], read, here, rule)  # [c_out, tokens, r]
            # the signs of these tokens, each in the columns of its own group
            last = first + found.shape[1] - 1
            spanned = slice(first // size, last // size + 1)
            weights = torch.block_diag(*signs[spanned])[first - spanned.start * size :][: found.shape[1]]
            if sums is None:
                sums = found.new_zeros(len(found), groups * sources, f.shape[2])
            part = sums[:, spanned.start * sources : spanned.stop * sources]
            part += torch.einsum("ctj,tg->cgj", found, weights)
        assert sums is not None
        return sums

    def signed_attributions_at(
        self, u: Tensor, f: Tensor, read: Tensor, at: Tensor, rule: Rule, signs: Tensor
    ) -> Tensor:
        """The same at the output positions ``at`` [n, S], each sample's own, in order."""
        raise NotImplementedError


def _token_blocks(samples: int, at: slice) -> Iterator[tuple[slice, slice, int]]:
    """Runs of at most MOST tokens: (samples, positions, number of the first token)."""
    outputs = at.stop - at.start
    together = max(1, MOST // outputs)
    for start in range(0, samples, together):
        for left in range(at.start, at.stop, MOST):
            here = slice(left, min(left + MOST, at.stop))
            yield slice(start, start + together), here, start * outputs + left - at.start


def into_groups(tokens: Tensor, size: int) -> Tensor:  # [tokens, …] -> [groups, size, …]
    """Consecutive tokens in groups, the last one filled up with zeros."""
    groups = -(-len(tokens) // size)
    padding = [0, 0] * (tokens.ndim - 1) + [0, groups * size - len(tokens)]
    return torch.nn.functional.pad(tokens, padding).unflatten(0, (groups, size))
