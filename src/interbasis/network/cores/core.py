"""Interface of a section's non-linear core.

A section is F(f) = P f + B · core(A f). With N_st = ∂core_s/∂u_t, u = A f, the basis needs two sums over
the data, Σ N_ss and Σ_st N_stᵀ Q N_st, and the edges need Σ_t N_st A_j f_jt for every input feature j.
Everything else about a section is linear and lives in `network.Section`. What only some cores can do beyond
that are interfaces of their own, which are checked for with ``isinstance``: `ClosedFormSquares`,
`SamplesQueries`, `FastAblation`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from interbasis.numerics.integration import Rule

if TYPE_CHECKING:
    from interbasis.network.cores.squares import Squares

Sums = dict[str, Tensor]
"""Sums over data by name; those of other data are added entry by entry."""

MAX_TOKENS_PER_SUM = 64
"""Tokens whose attributions are held at once while they are summed with signs."""


@dataclass(frozen=True, eq=False)
class Moments:
    """The two sums over the data that decide a section's Jacobian Gram."""

    local: Tensor  # Σ N_ss          [c_out, c_in]
    gram: Tensor  # Σ_st N_stᵀQN_st  [c_in, c_in]

    def written(self, write: Tensor) -> Tensor:  # B [r, c_out] -> [r, c_in], on the CPU
        """B Σ N_ss."""
        return (write @ self.local).cpu()

    def between(self, read: Tensor) -> Tensor:  # A [c_in, w], on the CPU -> [w, w]
        """Aᵀ (Σ NᵀQN) A in float64."""
        read = read.double()
        return read.T @ self.gram.cpu() @ read

    def diagonal(self) -> Tensor:  # [c_in], on the CPU
        """Diagonal of Σ NᵀQN."""
        return self.gram.diagonal().cpu()


class Counted(NamedTuple):
    """Masks, as numbers 0 and 1, of the tokens of a batch that count in sums; all of them are computed."""

    inputs: Tensor  # [n, T]
    outputs: Tensor  # [n, T], of the positions that come out

    @property
    def both(self) -> Tensor:  # [n, T], bool
        """Positions that count as input and as output."""
        return (self.inputs * self.outputs).bool()


class Matrices(Protocol):
    """The matrices of a section, F(f) = P f + B · core(A f)."""

    @property
    def skip(self) -> Tensor: ...  # P [d_out, d_in]
    @property
    def read(self) -> Tensor: ...  # A [c_in, d_in]
    @property
    def write(self) -> Tensor: ...  # B [d_out, c_out]


class Core(ABC):
    """A differentiable map u ↦ core(u) with core(0) = 0, [n, T, c_in] → [n, S, c_out].

    The outputs belong to S of the input positions, the slice ``outputs`` with start and stop.

    A core is one of two kinds, `StatisticsCore` or `PassCore`, by how `moments` is known.
    """

    mixes_positions: bool = False
    """Whether an output position depends on other input positions than its own."""

    @abstractmethod
    def __call__(self, u: Tensor, outputs: slice) -> Tensor: ...  # [n, T, c_in] -> [n, S, c_out]

    @abstractmethod
    def moments(self, sums: Sums, metric: Tensor) -> Moments:  # Q [c_out, c_out]
        """Both sums over the data from those of all batches."""

    @abstractmethod
    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        """Σ_t N̄_st A_j f_jt, with N̄ the Jacobian averaged along the line from 0 to u by ``rule``.

        u [n, T, c_in], f [n, T, r], read [c_in, r] -> [c_out, n·S, r]
        """

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule, signs: Tensor
    ) -> Tensor:
        """`attributions` summed with signs over groups: signs [groups, g, R] cover the n·S tokens.

        The last group may be padded with zeros. Returns [c_out, groups·R, r].
        """
        groups, size, sources = signs.shape
        sums: Tensor | None = None
        for samples, positions, first in _token_blocks(len(u), outputs):
            block = self.attributions(u[samples], f[samples], read, positions, rule)  # [c_out, tokens, r]
            # the signs of these tokens, each in the columns of its own group
            last = first + block.shape[1] - 1
            spanned = slice(first // size, last // size + 1)
            weights = torch.block_diag(*signs[spanned])[first - spanned.start * size :][: block.shape[1]]
            if sums is None:
                sums = block.new_zeros(len(block), groups * sources, f.shape[2])
            part = sums[:, spanned.start * sources : spanned.stop * sources]
            part += torch.einsum("ctj,tg->cgj", block, weights)
        assert sums is not None
        return sums

    def pull_back(self, u: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        """g ↦ N̄ᵀg, token by token, for a core that does not mix positions: effect of u on g · core(u).

        u [tokens, c_in], cotangents g [tokens, k, c_out] -> [tokens, k, c_in]. Closed forms where a core has
        them; here, backward passes at the nodes of the rule.
        """
        repeated = u.repeat_interleave(cotangents.shape[1], 0)
        total = torch.zeros_like(repeated)
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            with torch.enable_grad():
                at = (node * repeated).detach()[:, None].requires_grad_()
                output = self(at, slice(0, 1))[:, 0]
            total += weight * torch.autograd.grad(output, at, cotangents.flatten(0, 1))[0][:, 0]
        return total.unflatten(0, cotangents.shape[:2])

    def push_forward(self, u: Tensor, tangents: Tensor, rule: Rule) -> Tensor:
        """t ↦ N̄ t, token by token, for a core that does not mix positions: the transpose of `pull_back`.

        u [tokens, c_in], tangents [tokens, M, c_in] -> [tokens, M, c_out]. Closed forms where a core has
        them; here, two backward passes at each node of the rule.
        """
        tokens, count = tangents.shape[:2]
        repeated, flat = u.repeat_interleave(count, 0), tangents.flatten(0, 1)
        total = torch.zeros(())
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            with torch.enable_grad():  # N t is the derivative of (Nᵀg)·t, which is linear in g
                at = (node * repeated).detach()[:, None].requires_grad_()
                output = self(at, slice(0, 1))[:, 0]
                g = torch.zeros_like(output, requires_grad=True)
                (pulled,) = torch.autograd.grad(output, at, g, create_graph=True)
            total = total.to(u) + weight * torch.autograd.grad(pulled[:, 0], g, flat)[0]
        return total.unflatten(0, (tokens, count))

    def to(self, *args: Any, **kwargs: Any) -> "Core":
        """The core in another dtype or on another device; one without parameters is the same everywhere."""
        return self

    def at_zero(self, like: Tensor) -> Tensor:  # [] or [c_out]
        """Value subtracted so that core(0) = 0, in the dtype and on the device of ``like``."""
        return like.new_zeros(())

    def tensors(self) -> list[Tensor]:
        """The core's own weights, if it has any."""
        return []


class StatisticsCore(Core):
    """A core whose moments follow from sums that do not depend on Q: one pass over the data serves all."""

    @abstractmethod
    def statistics(self, u: Tensor, outputs: slice) -> Sums:  # u [n, T, c_in]
        """Sums over the batch from which `moments` follow for any Q."""


class PassCore(Core):
    """A core whose sums depend on Q, which is known once the next layer is: it gets a pass of its own."""

    @abstractmethod
    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None = None
    ) -> Sums:
        """Sums over the batch from which `moments` follow for this metric.

        ``signs`` [n, S, R] are stochastic sources, for cores that need them. Of ``counted`` tokens alone, for
        cores that mix positions; a core that does not is given those tokens and no others.
        """


class ClosedFormSquares(ABC):
    """Edges from a few sums over tokens, without the attributions of single ones."""

    @abstractmethod
    def squares(self, section: Matrices, rule: Rule) -> "Squares":
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


def _token_blocks(samples: int, outputs: slice) -> Iterator[tuple[slice, slice, int]]:
    """Runs of at most MAX_TOKENS_PER_SUM tokens: (samples, positions, number of the first token)."""
    count = outputs.stop - outputs.start
    samples_at_once = max(1, MAX_TOKENS_PER_SUM // count)
    for start in range(0, samples, samples_at_once):
        for left in range(outputs.start, outputs.stop, MAX_TOKENS_PER_SUM):
            positions = slice(left, min(left + MAX_TOKENS_PER_SUM, outputs.stop))
            yield slice(start, start + samples_at_once), positions, start * count + left - outputs.start


def into_groups(tokens: Tensor, size: int) -> Tensor:  # [tokens, …] -> [groups, size, …]
    """Consecutive tokens in groups, the last one filled up with zeros."""
    groups = -(-len(tokens) // size)
    padding = [0, 0] * (tokens.ndim - 1) + [0, groups * size - len(tokens)]
    return torch.nn.functional.pad(tokens, padding).unflatten(0, (groups, size))


def take_positions(f: Tensor, positions: Tensor) -> Tensor:  # [n, T, r], [n, Q] -> [n, Q, r]
    """Return f at positions of every sample."""
    return f.gather(1, positions[..., None].expand(-1, -1, f.shape[2]))
