"""Products with weights of queries and keys that leave out what causal attention does not see."""

from typing import NamedTuple

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import Heads

POSITIONS_PER_BLOCK = 128
"""Positions summed for at once: fewer skip more of what causal attention does not see, and run slower."""


class FeatureColumns(NamedTuple):
    """Features of one sample and how one head reads them, a column per feature."""

    at_queries: Tensor  # f_js of the queries [S, r]
    at_keys: Tensor  # f_jt of the keys [T, r]
    read_q: Tensor  # W_Q c_j [h, r]
    read_k: Tensor  # W_K c_j [h, r]


class CausalBlocks:
    """Products with weights [S, T] that leave out what causal attention does not see."""

    def __init__(self, x: Heads, weights: Tensor):
        self.weights = weights
        queries, keys = (_cut(length) for length in weights.shape)
        self.by_queries = [(block, x.keys_seen_by(block)) for block in queries]
        self.by_keys = [(x.queries_that_see(block), block) for block in keys]

    def over_queries(self, pairs: Tensor, factors: Tensor | None = None) -> Tensor:  # [S, ...] -> [T, ...]
        """Σ_s w_st factor_s pairs_s."""
        result = pairs.new_empty(self.weights.shape[1], *pairs.shape[1:])
        for queries, keys in self.by_keys:
            weights = self.weights[queries, keys].T
            weights = weights if factors is None else weights * factors[queries]
            torch.mm(weights, pairs[queries].flatten(1), out=result[keys].flatten(1))
        return result

    def over_keys(self, pairs: Tensor) -> Tensor:  # [T, ...] -> [S, ...]
        """Σ_t w_st pairs_t."""
        result = pairs.new_empty(len(self.weights), *pairs.shape[1:])
        for queries, keys in self.by_queries:
            torch.mm(self.weights[queries, keys], pairs[keys].flatten(1), out=result[queries].flatten(1))
        return result


def _cut(length: int) -> list[slice]:
    starts = range(0, length, POSITIONS_PER_BLOCK)
    return [slice(start, min(start + POSITIONS_PER_BLOCK, length)) for start in starts]
