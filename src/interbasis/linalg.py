"""The few pieces of linear algebra the method rests on, in float64 on the CPU.

Eigendecompositions of Grams lose half their digits, so they are never done in less than float64, and
always on explicitly symmetrised matrices.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

EPSILON = torch.finfo(torch.float64).eps
TILE = 512
"""Below this width a symmetric product is done as one plain matrix product."""


def symmetric_product(x: Tensor) -> Tensor:  # [n, width] -> [width, width]
    """xᵀx at about half the cost of the plain product: only tiles on and above the diagonal are computed."""
    width = x.shape[1]
    product = x.new_empty(width, width)
    _fill_upper(product, x, 0, width)
    return product


def _fill_upper(product: Tensor, x: Tensor, start: int, stop: int) -> None:
    if stop - start <= TILE:
        tile = x[:, start:stop]
        product[start:stop, start:stop] = tile.T @ tile
        return
    middle = (start + stop) // 2
    _fill_upper(product, x, start, middle)
    _fill_upper(product, x, middle, stop)
    corner = x[:, start:middle].T @ x[:, middle:stop]
    product[start:middle, middle:stop] = corner
    product[middle:stop, start:middle] = corner.T


def eigenbasis(matrix: Tensor) -> tuple[Tensor, Tensor]:  # [w, w] -> [w], [w, w]
    """Eigenvalues of a symmetric matrix in descending order, and its eigenvectors as rows."""
    matrix = matrix.to("cpu", torch.float64)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return values.flip(0), fix_signs(vectors.T.flip(0))


def right_singular_basis(factor: Tensor) -> tuple[Tensor, Tensor]:  # [k, w] -> [min(k, w)], [min(k, w), w]
    """Eigenvalues and eigenvectors (as rows) of factorᵀ·factor, found on the factor's small side."""
    _, singular, vectors = torch.linalg.svd(factor.to("cpu", torch.float64), full_matrices=False)
    return singular.square(), fix_signs(vectors)


def fix_signs(rows: Tensor) -> Tensor:  # [r, w] -> [r, w]
    """Flip each row so that its entry of largest magnitude is positive."""
    if rows.numel() == 0:
        return rows
    largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
    return rows * torch.where(largest < 0, -1.0, 1.0).to(rows.dtype)


def square_root_factor(matrix: Tensor) -> Tensor:  # [k, k] -> [k, k]
    """R with RᵀR = matrix, for a positive semi-definite matrix; what rounding made negative counts as 0."""
    values, vectors = eigenbasis(matrix)
    return values.clamp_min(0).sqrt()[:, None] * vectors


def haar_rotation(width: int, key: tuple[int, int]) -> Tensor:  # [width, width]
    """A rotation drawn uniformly from the orthogonal group: QR of a Gaussian matrix, signs of R fixed.

    The key is (seed, stream): different streams of one seed are independent.
    """
    generator = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
    q, r = torch.linalg.qr(torch.from_numpy(generator.standard_normal((width, width))))
    return (q * r.diagonal().sign()).T


@dataclass(frozen=True)
class Floor:
    """Where a spectrum is cut: drop values ≤ max(absolute, relative · largest).

    ``relative=None`` means width · ε with ε = 2.2e-16, the usual tolerance of a matrix rank, and at least
    ``rounding``, what the numbers that went in were rounded to; 0 leaves the absolute cut alone: the paper's
    rule.
    """

    absolute: float = 1e-15
    relative: float | None = None
    rounding: float = 0.0

    def cut(self, values: Tensor, width: int) -> "Cut":
        """Cut a descending spectrum of a matrix acting on ``width`` coordinates."""
        relative = max(width * EPSILON, self.rounding) if self.relative is None else self.relative
        largest = values[0].item() if len(values) else 0.0
        floor = max(self.absolute, relative * largest)
        kept = int((values > floor).sum())
        return Cut(
            kept=kept,
            dropped=len(values) - kept,
            floor=floor,
            smallest_kept=values[kept - 1].item() if kept else None,
            largest_dropped=values[kept].item() if kept < len(values) else None,
        )


@dataclass(frozen=True)
class Cut:
    """What a floor did to a spectrum, and how near the cut the last kept value lies."""

    kept: int
    dropped: int
    floor: float
    smallest_kept: float | None
    largest_dropped: float | None
