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
    """A stream has to be in a node layer first."""

    def __init__(self, stream: Stream):
        super().__init__()
        self.stream = stream


@dataclass(frozen=True, eq=False)
class LinearTerm:
    """Σ_k T_k (W_k f)_s of one stream; without a stencil a matrix [rows, 1, c]."""

    stream: Stream
    taps: Tensor  # [rows, K, c]
    stencil: Stencil | None = None


@dataclass(frozen=True, eq=False)
class Expression:
    """b + terms."""

    bias: Tensor  # [rows]
    terms: tuple[LinearTerm, ...]

    @property
    def spreads(self) -> bool:
        return any(term.stencil is not None for term in self.terms)

    def after(self, weight: Tensor) -> "Expression":
        """W times the expression."""
        terms = tuple(
            LinearTerm(t.stream, (weight @ t.taps.flatten(1)).unflatten(1, t.taps.shape[1:]), t.stencil)
            for t in self.terms
        )
        return Expression(weight @ self.bias, terms)


@dataclass
class Expressions:
    """Expressions of streams in those of one cut."""

    cut: Collection[Stream]
    unfolded: dict[Stream, Spread] = field(default_factory=dict)
    """Operations that read streams which the cut holds on a coarser grid."""
    cache: dict[Stream, Expression] = field(default_factory=dict)

    def expression(self, stream: Stream) -> Expression:
        if stream not in self.cache:
            self.cache[stream] = self._make(stream)
        return self.cache[stream]

    def _make(self, stream: Stream) -> Expression:
        if not isinstance(stream.op, Mixed) or stream in self.cut or stream in self.unfolded:
            return self._through(torch.eye(stream.channels, dtype=torch.float64), stream)
        total = stream.op.bias.double()
        terms: list[LinearTerm] = []
        for weight, part in zip(stream.op.weights, stream.inputs, strict=True):
            moved = self._through(weight.double(), part)
            total = total + moved.bias
            terms += moved.terms
        return Expression(total, _merged(terms))

    def _through(self, weight: Tensor, stream: Stream) -> Expression:
        """W times a stream, as an expression."""
        if stream in self.cut:
            return Expression(weight.new_zeros(len(weight)), (LinearTerm(stream, weight[:, None]),))
        if stream in self.unfolded:
            return self._spread(weight, self.unfolded[stream])
        if isinstance(stream.op, Spread):
            return self._spread(weight, stream.op)
        if isinstance(stream.op, Mixed):
            return self.expression(stream).after(weight)
        raise NeedsCutError(stream)

    def _spread(self, weight: Tensor, spread: Spread) -> Expression:
        inner, stencil = self.expression(spread.inputs[0]), spread.stencil
        whole = spread.taps_after(weight)  # [rows, K, c]
        if inner.spreads:
            if spread.inputs[0] not in self.unfolded:
                raise NeedsCutError(spread.inputs[0])
            return _composed(whole, stencil, inner)
        is_direct = spread.inputs[0] in self.cut

        def after(taps: Tensor) -> Tensor:  # [c, 1, c_in] -> [rows, K, c_in]
            return whole if is_direct else (whole.flatten(0, 1) @ taps[:, 0]).unflatten(0, whole.shape[:2])

        terms = tuple(LinearTerm(t.stream, after(t.taps), stencil) for t in inner.terms)
        if not inner.bias.any():
            return Expression(weight.new_zeros(len(weight)), terms)
        sums = stencil.weight.sum(2)  # [S, K]
        if (sums - sums[:1]).abs().max() > 1e-12:
            raise NeedsCutError(spread.inputs[0])
        return Expression(torch.einsum("rkc,k,c->r", whole, sums[0], inner.bias), terms)


def _composed(taps: Tensor, stencil: Stencil, inner: Expression) -> Expression:
    """Compose a stencil of single pixels with another, pair by pair of their taps."""
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
        index, weight = (torch.stack(parts, dim=1)[..., None] for parts in (indices, weights))
        whole = Stencil(term.stencil.source, stencil.target, index, weight)
        terms.append(LinearTerm(term.stream, torch.stack(matrices, dim=1), whole))
    return Expression(taps.new_zeros(len(taps)), tuple(terms))


def _merged(terms: list[LinearTerm]) -> tuple[LinearTerm, ...]:
    """Add terms that read the same stream in the same way."""
    merged: dict[tuple[Stream, int], LinearTerm] = {}
    for term in terms:
        key = term.stream, id(term.stencil)
        if key in merged:
            term = LinearTerm(term.stream, merged[key].taps + term.taps, term.stencil)
        merged[key] = term
    return tuple(merged.values())
