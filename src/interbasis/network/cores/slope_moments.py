"""Moments of cores whose Jacobian is diagonal, or diagonals side by side, N = [diag(d₁) | diag(d₂) | …].

    Σ N = [diag Σd₁ | diag Σd₂ | …],    Σ NᵀQN = blocks Q ∘ Σ d_a d_bᵀ

Where there are many read-outs, neither is made: Σ d dᵀ, which is symmetric, is summed and kept in rows of
tiles on and above its diagonal, and what is asked for is multiplied out tile by tile.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from interbasis.base.devices import double_sum
from interbasis.network.cores.core import Moments, Sums
from interbasis.numerics.linalg import symmetric_product

MAX_DENSE_WIDTH = 2048
"""Most read-outs for which both matrices are made."""
ROWS_PER_TILE = 1024
"""Rows of a tile, and its columns."""
PRODUCTS = "slope_products"


def slope_sums(d: Tensor) -> Sums:  # [tokens, c_in]
    """Σ d and Σ d dᵀ, the latter in rows of tiles where it is large."""
    sums = {"slopes": double_sum(d, 0)}
    if d.shape[1] <= MAX_DENSE_WIDTH:
        return sums | {PRODUCTS: symmetric_product(d)}
    starts = range(0, d.shape[1], ROWS_PER_TILE)
    return sums | {f"{PRODUCTS}.{k}": _tiled_rows(d[:, k:]) for k in starts}


def _tiled_rows(d: Tensor) -> Tensor:  # [tokens, c] -> [at most ROWS_PER_TILE, c]
    """The first rows of dᵀd."""
    tile = d[:, :ROWS_PER_TILE]
    rows = d.new_empty(tile.shape[1], d.shape[1])
    rows[:, : len(rows)] = symmetric_product(tile)
    rows[:, len(rows) :] = tile.T @ d[:, len(rows) :]
    return rows


class SlopeMoments(Moments):
    """Moments from `slope_sums` of d [tokens, c_in] and Q [c_out, c_out]; c_in is a multiple of c_out."""

    def __init__(self, sums: Sums, metric: Tensor):
        object.__setattr__(self, "_sums", sums)
        object.__setattr__(self, "_metric", metric)

    @property
    def _parts(self) -> tuple[Tensor, Tensor]:
        return self.__dict__["_sums"]["slopes"], self.__dict__["_metric"]

    @property
    def _products(self) -> Tensor | None:  # [c_in, c_in]
        """Σ d dᵀ, where it is not in tiles."""
        return self.__dict__["_sums"].get(PRODUCTS)

    def _tiled_rows(self) -> Iterator[tuple[int, Tensor]]:
        """(number of the first row, these rows of Σ d dᵀ from the diagonal on)."""
        for name, rows in self.__dict__["_sums"].items():
            if name.startswith(f"{PRODUCTS}."):
                yield int(name.removeprefix(f"{PRODUCTS}.")), rows

    @property
    def local(self) -> Tensor:  # [c_out, c_in]
        slopes, metric = self._parts
        return torch.cat([torch.diag(part) for part in slopes.split(len(metric))], dim=1)

    @property
    def gram(self) -> Tensor:  # [c_in, c_in]
        slopes, metric = self._parts
        products, times = self._products, len(slopes) // max(1, len(metric))
        if products is None:
            products = metric.new_empty(len(slopes), len(slopes))
            for first, rows in self._tiled_rows():
                products[first : first + len(rows), first:] = rows
                products[first:, first : first + len(rows)] = rows.T
        return (metric if times == 1 else metric.tile(times, times)) * products

    def written(self, write: Tensor) -> Tensor:
        slopes, metric = self._parts
        if self._products is not None:
            return super().written(write)
        return torch.cat([write * part for part in slopes.split(len(metric))], dim=1).cpu()

    def between(self, read: Tensor) -> Tensor:
        if self._products is not None:
            return super().between(read)
        slopes, metric = self._parts
        half = torch.zeros(read.shape[1], read.shape[1], dtype=torch.float64)
        for first, rows in self._tiled_rows():
            inner = half.new_zeros(len(rows), read.shape[1])
            outputs = torch.arange(first, first + len(rows), device=metric.device) % len(metric)
            for start in range(first, len(slopes), len(rows)):
                tile = rows[:, start - first : start - first + len(rows)]
                columns = torch.arange(start, start + tile.shape[1], device=metric.device) % len(metric)
                weight = 0.5 if start == first else 1.0  # the transpose is added below
                block = (metric[outputs[:, None], columns] * tile).cpu()
                inner.addmm_(block, read[start : start + tile.shape[1]].double(), alpha=weight)
            half.addmm_(read[first : first + len(rows)].double().T, inner)
        return half + half.T

    def diagonal(self) -> Tensor:
        slopes, metric = self._parts
        if self._products is not None:
            return super().diagonal()
        squares = torch.cat([rows.diagonal() for _, rows in self._tiled_rows()])
        return (metric.diagonal().tile(len(slopes) // len(metric)) * squares).cpu()
