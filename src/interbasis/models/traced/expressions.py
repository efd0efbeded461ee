"""Streams as linear maps of those that a node layer holds.

A stream that is made by `Mixed` operations and at most one `Spread` from the streams of a cut is

    x_s = b + Σ_i Σ_k T_ik (W_k f_i)_s,

with taps T of a stencil for every stream f_i of the cut. A second `Spread` on the way, or a bias that
padding would cut off, requires a node layer in between.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from interbasis.models.traced.streams import Mixed, Spread, Stream
from interbasis.network.stencil import Stencil


class NeedsCutError(Exception):
    """A stream that has to be in a node layer first."""

    def __init__(self, stream: Stream):
        super().__init__()
        self.stream = stream


@dataclass(frozen=True, eq=False)
class Term:
    """Σ_k T_k (W_k f)_s of one stream; without a stencil a matrix [rows, 1, c]."""

    stream: Stream
    taps: Tensor  # [rows, K, c]
    stencil: Stencil | None = None


@dataclass(frozen=True, eq=False)
class Expression:
    """b + terms."""

    bias: Tensor  # [rows]
    terms: tuple[Term, ...]

    @property
    def spreads(self) -> bool:
        return any(term.stencil is not None for term in self.terms)

    def after(self, weight: Tensor) -> "Expression":
        """W times it."""
        terms = tuple(
            Term(t.stream, (weight @ t.taps.flatten(1)).unflatten(1, t.taps.shape[1:]), t.stencil)
            for t in self.terms
        )
        return Expression(weight @ self.bias, terms)


@dataclass
class Expressions:
    """Of streams in those of one cut."""

    cut: Collection[Stream]
    unfolded: dict[Stream, Spread] = field(default_factory=dict)
    """How streams that the cut holds on a coarser grid are read."""
    found: dict[Stream, Expression] = field(default_factory=dict)

    def of(self, stream: Stream) -> Expression:
        if stream not in self.found:
            self.found[stream] = self._make(stream)
        return self.found[stream]

    def _make(self, stream: Stream) -> Expression:
        if not isinstance(stream.made, Mixed) or stream in self.cut or stream in self.unfolded:
            return self._through(torch.eye(stream.channels, dtype=torch.float64), stream)
        total = stream.made.bias.double()
        terms: list[Term] = []
        for weight, part in zip(stream.made.weights, stream.inputs, strict=True):
            moved = self._through(weight.double(), part)
            total = total + moved.bias
            terms += moved.terms
        return Expression(total, _merged(terms))

    def _through(self, weight: Tensor, stream: Stream) -> Expression:
        """W times a stream."""
        if stream in self.cut:
            return Expression(weight.new_zeros(len(weight)), (Term(stream, weight[:, None]),))
        if stream in self.unfolded:
            return self._spread(weight, self.unfolded[stream])
        if isinstance(stream.made, Spread):
            return self._spread(weight, stream.made)
        if isinstance(stream.made, Mixed):
            return self.of(stream).after(weight)
        raise NeedsCutError(stream)

    def _spread(self, weight: Tensor, spread: Spread) -> Expression:
        inner, stencil = self.of(spread.inputs[0]), spread.stencil
        whole = spread.taps_after(weight)  # [rows, K, c]
        if inner.spreads:
            if spread.inputs[0] not in self.unfolded:
                raise NeedsCutError(spread.inputs[0])
            return _composed(whole, stencil, inner)
        plain = spread.inputs[0] in self.cut
        terms = tuple(
            Term(
                t.stream,
                whole if plain else (whole.flatten(0, 1) @ t.taps[:, 0]).unflatten(0, whole.shape[:2]),
                stencil,
            )
            for t in inner.terms
        )
        if not inner.bias.any():
            return Expression(weight.new_zeros(len(weight)), terms)
        sums = stencil.weight.sum(2)  # [S, K]
        if (sums - sums[:1]).abs().max() > 1e-12:
            raise NeedsCutError(spread.inputs[0])
        return Expression(torch.einsum("rkc,k,c->r", whole, sums[0], inner.bias), terms)


def _composed(taps: Tensor, stencil: Stencil, inner: Expression) -> Expression:
    """A stencil of single pixels after another, pair by pair of their taps."""
    terms = []
    for term in inner.terms:
        assert term.stencil is not None
        indices, weights, matrices = [], [], []
        for k in range(stencil.taps):
            index, weight = stencil.index[:, k, 0], stencil.weight[:, k, 0]
            for other in range(term.stencil.taps):
                both = weight * term.stencil.weight[index, other, 0]
                if both.any():
                    indices.append(term.stencil.index[index, other, 0])
                    weights.append(both)
                    matrices.append(taps[:, k] @ term.taps[:, other])
        whole = Stencil(
            term.stencil.source,
            stencil.target,
            torch.stack(indices, dim=1)[..., None],
            torch.stack(weights, dim=1)[..., None],
        )
        terms.append(Term(term.stream, torch.stack(matrices, dim=1), whole))
    return Expression(taps.new_zeros(len(taps)), tuple(terms))


def _merged(terms: list[Term]) -> tuple[Term, ...]:
    """Terms that read the same stream in the same way are added."""
    merged: dict[tuple[Stream, int], Term] = {}
    for term in terms:
        key = term.stream, id(term.stencil)
        if key in merged:
            term = Term(term.stream, merged[key].taps + term.taps, term.stencil)
        merged[key] = term
    return tuple(merged.values())
