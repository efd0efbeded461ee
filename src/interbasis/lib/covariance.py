"""Means and scatters of streams of vectors, in float64, centred as they grow (Chan, Golub & LeVeque 1979)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.network.network import Section
from interbasis.numerics.linalg import symmetric_product

MAX_ROOT_WIDTH = 256
"""Widest layer whose scatter is kept as a triangular root as well."""


@dataclass
class Covariance:
    """Count, mean and scatter Σ (x − mean)(x − mean)ᵀ of a stream of vectors.

    Squaring costs half the digits: directions with variances below 2.2e-16 of the largest are lost in a
    scatter, but not in its root R, RᵀR = scatter, which grows by QR decompositions. It is kept for narrow
    layers of networks that compute in float64.
    """

    count: int
    mean: Tensor  # [w]
    scatter: Tensor  # [w, w], or its diagonal [w] where no more is wanted
    root: Tensor | None = None  # R [at most w, w]

    @classmethod
    def from_rows(cls, x: Tensor, full: bool = True, known: "Known | None" = None) -> "Covariance":
        """Compute the covariance of the rows x [n, w]: their full scatter, or its diagonal alone."""
        mean = x.mean(0, dtype=torch.float64) if len(x) else x.new_zeros(x.shape[1], dtype=torch.float64)
        centred = x - mean  # float64, whatever x is
        if not full:
            return cls(len(x), mean, centred.square().sum(0))
        exact = x.dtype == torch.float64 and x.shape[1] <= MAX_ROOT_WIDTH
        if exact:
            return cls(len(x), mean, symmetric_product(centred), _triangle(centred))
        if known is None or not known.holds(x):
            return cls(len(x), mean, symmetric_product(centred))
        return cls(len(x), mean, known.scatter(centred))

    def merge(self, other: "Covariance") -> None:
        """Take in another stream: scatters add, plus the scatter of the two means about their common one."""
        total = self.count + other.count
        if not other.count:
            return
        shift = other.mean - self.mean
        weight = self.count * other.count / total
        self.scatter += other.scatter
        if self.scatter.ndim == 2:
            self.scatter.addr_(shift, shift, alpha=weight)
        else:
            self.scatter += weight * shift.square()
        if self.root is not None and other.root is not None:
            self.root = _triangle(torch.cat([self.root, other.root, weight**0.5 * shift[None]]))
        self.mean += shift * (other.count / total)
        self.count = total

    @property
    def finite(self) -> bool:
        """Whether all entries are finite: none of a scatter is larger than those on its diagonal."""
        return bool(self.mean.isfinite().all() and self.variances.isfinite().all())

    @property
    def gram(self) -> Tensor:
        """The centred Gram E[(x − mean)(x − mean)ᵀ], [w, w]."""
        return self.scatter / self.count

    @property
    def variances(self) -> Tensor:
        """Variance of every coordinate, the Gram's diagonal, [w]."""
        return (self.scatter.diagonal() if self.scatter.ndim == 2 else self.scatter) / self.count

    @property
    def squares(self) -> Tensor:
        """E[x²] of every coordinate, the mean included, [w]."""
        return self.variances + self.mean.square()


@dataclass(frozen=True, eq=False)
class Known:
    """The rows of the layer before, some of whose columns the next layer holds again (a residual stream)."""

    rows: Tensor  # [n, w]
    covariance: Covariance
    target: Tensor  # [c], columns of the next layer
    source: Tensor  # [c], what they are columns of here

    def holds(self, x: Tensor) -> bool:
        """Whether x holds these columns again, bit for bit, and their scatter is known."""
        if not len(self.target) or len(x) != len(self.rows) or self.covariance.scatter.ndim != 2:
            return False
        return torch.equal(_columns(x, self.target), _columns(self.rows, self.source))

    def scatter(self, centred: Tensor) -> Tensor:  # [n, w′] -> [w′, w′]
        """centredᵀ·centred, in which what the two layers share is not multiplied again."""
        width, target = centred.shape[1], self.target
        fresh = torch.ones(width, dtype=torch.bool, device=centred.device).index_fill_(0, target, False)
        order = torch.cat([fresh.nonzero()[:, 0], target])
        fresh_columns, shared = _columns(centred, order).split([width - len(target), len(target)], dim=1)
        result, offset = centred.new_empty(width, width), fresh_columns.shape[1]
        result[offset:, offset:] = _columns(_columns(self.covariance.scatter, self.source).T, self.source)
        result[:offset, :offset] = symmetric_product(fresh_columns)
        corner = fresh_columns.T @ shared
        result[:offset, offset:], result[offset:, :offset] = corner, corner.T
        before = order.argsort()
        return _columns(_columns(result, before).T, before).T.contiguous()


def _columns(x: Tensor, index: Tensor) -> Tensor:  # [n, w], [c] -> [n, c]
    """Return columns of x; adjacent ones are not copied."""
    if len(index) and (index.diff() == 1).all():
        return x[:, int(index[0]) : int(index[-1]) + 1]
    return x[:, index]


def known_columns(section: Section, rows: Tensor, covariance: Covariance) -> Known:
    """Columns that a section's target shares with its source, the constants left out."""
    target, source = section.copies
    first, before = section.target.first_coordinate, section.source.first_coordinate
    varying = (target >= first) & (source >= before)
    places = target[varying] - first, source[varying] - before
    return Known(rows, covariance, *(place.to(rows.device) for place in places))


def _triangle(rows: Tensor) -> Tensor:  # [m, w] -> [min(m, w), w]
    """R of a QR decomposition: RᵀR = rowsᵀ·rows."""
    return torch.linalg.qr(rows, mode="r").R
