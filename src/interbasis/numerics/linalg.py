"""The few pieces of linear algebra the method rests on, in float64 on the CPU.

Eigendecompositions of Grams lose half their digits, so they are never done in less than float64, and
always on explicitly symmetrised matrices.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

EPSILON = torch.finfo(torch.float64).eps
MIN_TILED_WIDTH = 256
"""Below this width a symmetric product is done as one plain matrix product."""


def symmetric_product(x: Tensor) -> Tensor:  # [n, width] -> [width, width]
    """xᵀx at about half the cost of the plain product: only tiles on and above the diagonal are computed."""
    width = x.shape[1]
    product = x.new_empty(width, width)
    _fill_upper(product, x, 0, width)
    return product


def _fill_upper(product: Tensor, x: Tensor, start: int, stop: int) -> None:
    if stop - start <= MIN_TILED_WIDTH:
        tile = x[:, start:stop]
        product[start:stop, start:stop] = tile.T @ tile
        return
    middle = (start + stop) // 2
    _fill_upper(product, x, start, middle)
    _fill_upper(product, x, middle, stop)
    corner = x[:, start:middle].T @ x[:, middle:stop]
    product[start:middle, middle:stop] = corner
    product[middle:stop, start:middle] = corner.T


def transposed_product(x: Tensor, y: Tensor) -> Tensor:  # [n, width], [n, m] -> [width, m]
    """xᵀy, where rows of x with a single entry (a depthwise convolution's) are added where they belong."""
    single = (x != 0).sum(1) <= 1
    if not single.any():
        return x.T @ y
    rows = x[single]
    columns = rows.abs().argmax(1)
    product = x[~single].T @ y[~single]
    return product.index_add_(0, columns, rows.gather(1, columns[:, None]) * y[single])


def eigenbasis(matrix: Tensor) -> tuple[Tensor, Tensor]:  # [w, w] -> [w], [w, w]
    """Eigenvalues of a symmetric matrix in descending order, and its eigenvectors as rows."""
    matrix = matrix.cpu().double()
    values, vectors = torch.linalg.eigh((matrix + matrix.T).div_(2))
    return values.flip(0), fix_signs(vectors.T.flip(0))


def right_singular_basis(factor: Tensor) -> tuple[Tensor, Tensor]:  # [k, w] -> [min(k, w)], [min(k, w), w]
    """Eigenvalues and eigenvectors (as rows) of factorᵀ·factor, found on the factor's small side."""
    _, singular, vectors = torch.linalg.svd(factor.cpu().double(), full_matrices=False)
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


def graded_root_factor(matrix: Tensor) -> Tensor:  # [k, k] -> [k, k]
    """R with RᵀR = matrix, whose entries are scales apart: each is known to ε √(entry_ii entry_jj)."""
    scale = matrix.diagonal().clamp_min(0).sqrt()
    safe = torch.where(scale > 0, scale, 1.0)
    return square_root_factor(matrix / safe / safe[:, None]) * scale


def haar_rotation(width: int, key: tuple[int, int]) -> Tensor:  # [width, width]
    """A rotation drawn uniformly from the orthogonal group: QR of a Gaussian matrix, signs of R fixed.

    The key is (seed, stream): different streams of one seed are independent.
    """
    generator = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
    q, r = torch.linalg.qr(torch.from_numpy(generator.standard_normal((width, width))))
    return (q * r.diagonal().sign()).T


@dataclass(frozen=True)
class Floor:
    """Rule that cuts a spectrum: a value is dropped when it is at or below its own floor,

        max( absolute · min(1, largest),  resolution · largest,  rounding · magnitude_j ).

    The resolution is that of the decomposition and the rounding that of the numbers that went in
    (docs/method.md, "Noise floor"); the absolute part is scaled down with data that are small themselves.
    ``relative``, where it is given, stands for the last two; 0 leaves the absolute cut alone, unscaled: the
    paper's rule.
    """

    absolute: float = 1e-15
    relative: float | None = None
    rounding: float = 0.0

    def levels(
        self, values: Tensor, resolution: float, magnitudes: Tensor, largest: Tensor | None = None
    ) -> Tensor:  # [r] -> [r]
        """The floor of each value of a spectrum.

        ``magnitudes`` [r] are what each value is the sum of, before anything cancels; ``largest``, one for
        all or [r], is what the values are compared with where that is not the largest of them.
        """
        if self.relative == 0 or not len(values):
            return torch.full_like(values, self.absolute)
        largest = values.max() if largest is None else largest
        relative = resolution if self.relative is None else self.relative
        floors = torch.maximum(self.absolute * largest.clamp(0, 1), relative * largest).expand_as(values)
        return floors if self.relative is not None else torch.maximum(floors, self.rounding * magnitudes)


@dataclass(frozen=True)
class SpectrumCut:
    """Result of cutting a spectrum at floors, and how near its floor the last kept value lies."""

    kept: int
    dropped: int
    floor: float
    """Floor of the kept value that is nearest to its floor; of the first value where none is kept."""
    smallest_kept: float | None
    """The kept value that is nearest to its floor, in multiples of it."""
    largest_dropped: float | None
    """The dropped value that is nearest to its floor, in multiples of it."""

    @classmethod
    def from_floors(cls, values: Tensor, floors: Tensor) -> "SpectrumCut":  # [r], [r]
        """Cut a spectrum at the floor of each of its values."""
        if not len(values):
            return cls(0, 0, 0.0, None, None)
        above = values > floors
        ratios = values / floors.clamp_min(torch.finfo(torch.float64).tiny)
        last = int(torch.where(above, ratios, torch.inf).argmin())
        first = int(torch.where(above, -torch.inf, ratios).argmax())
        count = int(above.sum())
        return cls(
            kept=count,
            dropped=len(values) - count,
            floor=floors[last].item(),
            smallest_kept=values[last].item() if count else None,
            largest_dropped=values[first].item() if count < len(values) else None,
        )
