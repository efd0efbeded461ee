"""Moments of cores whose Jacobian is diagonal, or diagonals side by side, N = [diag(d₁) | diag(d₂) | …].

    Σ N = [diag Σd₁ | diag Σd₂ | …],    Σ NᵀQN = blocks Q ∘ Σ d_a d_bᵀ

Where there are many read-outs, neither is made: what is asked for is multiplied out some rows at a time.
"""

import torch
from torch import Tensor

from interbasis.network.cores.core import Moments

MAX_DENSE_WIDTH = 2048
"""Most read-outs for which both matrices are made."""
ROWS_AT_ONCE = 1024


class SlopeMoments(Moments):
    """From Σ d [c_in], Σ d dᵀ [c_in, c_in] and Q [c_out, c_out]; c_in is a multiple of c_out."""

    def __init__(self, slopes: Tensor, products: Tensor, metric: Tensor):
        for name, value in {"_slopes": slopes, "_products": products, "_metric": metric}.items():
            object.__setattr__(self, name, value)

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.__dict__["_slopes"], self.__dict__["_products"], self.__dict__["_metric"]

    @property
    def local(self) -> Tensor:  # [c_out, c_in]
        slopes, _, metric = self._parts
        return torch.cat([torch.diag(some) for some in slopes.split(len(metric))], dim=1)

    @property
    def gram(self) -> Tensor:  # [c_in, c_in]
        slopes, products, metric = self._parts
        times = len(slopes) // max(1, len(metric))
        return (metric if times == 1 else metric.tile(times, times)) * products

    def written(self, write: Tensor) -> Tensor:
        slopes, _, metric = self._parts
        if len(slopes) <= MAX_DENSE_WIDTH:
            return super().written(write)
        return torch.cat([write * some for some in slopes.split(len(metric))], dim=1).cpu()

    def between(self, read: Tensor) -> Tensor:
        slopes, products, metric = self._parts
        if len(slopes) <= MAX_DENSE_WIDTH:
            return super().between(read)
        total = read.new_zeros(read.shape[1], read.shape[1])
        for first in range(0, len(slopes), ROWS_AT_ONCE):
            rows = torch.arange(first, min(first + ROWS_AT_ONCE, len(slopes)), device=metric.device)
            block = products[rows].unflatten(1, (-1, len(metric))) * metric[rows % len(metric), None]
            total.addmm_(read[first : first + len(rows)].T, block.flatten(1).cpu() @ read)
        return total

    def diagonal(self) -> Tensor:
        slopes, products, metric = self._parts
        if len(slopes) <= MAX_DENSE_WIDTH:
            return super().diagonal()
        return (metric.diagonal().tile(len(slopes) // len(metric)) * products.diagonal()).cpu()
