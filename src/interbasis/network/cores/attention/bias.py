"""Constants that are added to attention scores by position: ALiBi and relative biases."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ScoreBias:
    """The score of query s and key t gets slopes[h] · (t − s) + table[h][t − s] in head h.

    ALiBi (BLOOM, MPT) has slopes. Relative biases (T5) have tables, whose entries are those of
    t − s = −reach … reach; beyond, that of the nearest holds, as where T5's buckets end. Neither depends on
    the activations, so that they enter Jacobians through the pattern alone.
    """

    slopes: tuple[float, ...] = ()
    tables: tuple[tuple[float, ...], ...] = ()

    def __repr__(self) -> str:
        kinds = [name for name in ("slopes", "tables") if getattr(self, name)]
        return f"ScoreBias({' and '.join(kinds)})"

    def __call__(self, heads: slice, distances: Tensor, like: Tensor) -> Tensor:
        """Biases of some heads for distances t − s [...], [heads, ...]."""
        total = like.new_zeros(heads.stop - heads.start, *distances.shape)
        if self.slopes:
            slopes = torch.tensor(self.slopes[heads], dtype=torch.float64).to(like)
            total += slopes.view(-1, *[1] * distances.ndim) * distances
        if self.tables:
            tables = torch.tensor(self.tables[heads], dtype=torch.float64).to(like)
            reach = tables.shape[1] // 2
            total += tables[:, distances.clamp(-reach, reach) + reach]
        return total
