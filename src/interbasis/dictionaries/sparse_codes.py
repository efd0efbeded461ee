"""Codes z [B, K] with few entries per token, and the products that training requires of them.

Only the active entries are stored, so a product with d columns costs entries · d instead of B · K · d.
`embedding_bag` gathers and sums rows without holding the gathered ones.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

MAX_SORTED_WIDTH = 512
"""Entries of a row up to which sorting it is faster than selecting from it."""

SPARSE_PRODUCT_RATIO = 140
"""Entries of a dense product that cost as much as one that is computed alone."""
PRODUCT_ROWS = 128
"""Rows that are gathered at a time: few enough to stay in the cache."""


@dataclass(frozen=True, eq=False)
class SparseCode:
    """Active entries of z [B, K], n of them, in the order of tokens."""

    tokens: Tensor  # [n]
    features: Tensor  # [n]
    values: Tensor  # [n]
    token_starts: Tensor  # [B], where the entries of every token begin
    by_feature: Tensor  # [n], order of the entries by feature
    feature_starts: Tensor  # [K], where the entries of every feature begin in that order

    @classmethod
    def from_entries(
        cls, tokens: Tensor, features: Tensor, values: Tensor, shape: tuple[int, int]
    ) -> "SparseCode":
        """Make a code of shape [B, K] from its entries in the order of tokens."""
        by_feature = stable_order(features, shape[1])
        return cls(
            tokens, features, values, _starts(tokens, shape[0]), by_feature,
            _starts(features[by_feature], shape[1]),
        )  # fmt: skip

    @classmethod
    def largest_per_token(cls, u: Tensor, active: int) -> "SparseCode":
        """ReLU of the ``active`` largest pre-activations of every token, from u [B, K]."""
        return cls._at(u, largest(u, active))

    @classmethod
    def largest_per_batch(cls, u: Tensor, active: int) -> "SparseCode":
        """ReLU of the B · ``active`` largest pre-activations of all tokens together, from u [B, K]."""
        return cls._at(u, largest(u.view(1, -1), active * len(u)))

    @classmethod
    def largest_among(cls, u: Tensor, features: Tensor, active: int) -> "SparseCode":
        """ReLU of the ``active`` largest pre-activations of every token among some features [m]."""
        chosen = u[:, features]
        flat = largest(chosen, active)
        tokens = flat.div(len(features), rounding_mode="floor")
        local = flat - tokens * len(features)
        return cls.from_entries(tokens, features[local], chosen.view(-1)[flat].relu(), (len(u), u.shape[1]))

    @classmethod
    def _at(cls, u: Tensor, flat: Tensor) -> "SparseCode":
        tokens = flat.div(u.shape[1], rounding_mode="floor")
        features = flat - tokens * u.shape[1]
        return cls.from_entries(tokens, features, u.view(-1)[flat].relu(), (len(u), u.shape[1]))

    def with_values(self, values: Tensor) -> "SparseCode":
        """The same places with other values [n]."""
        return replace(self, values=values)

    def times(self, rows: Tensor) -> Tensor:  # [K, d] -> [B, d]
        """z · rows."""
        return embedding_bag(
            self.features, rows, self.token_starts, mode="sum", per_sample_weights=self.values
        )

    def transposed_times(self, rows: Tensor) -> Tensor:  # [B, d] -> [K, d]
        """zᵀ · rows."""
        tokens, values = self.tokens[self.by_feature], self.values[self.by_feature]
        return embedding_bag(tokens, rows, self.feature_starts, mode="sum", per_sample_weights=values)

    def sum_over_tokens(self) -> Tensor:  # [K]
        """Σ z over tokens."""
        total = self.values.new_zeros(len(self.feature_starts))
        return total.index_add_(0, self.features, self.values)

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # [B, d], [K, d] -> [n]
        """Entries of left · rightᵀ at the places of this code; of few places, one by one."""
        if SPARSE_PRODUCT_RATIO * len(self.features) > len(left) * len(right):
            return (left @ right.T).view(-1)[self.tokens * len(right) + self.features]
        places = zip(self.tokens.split(PRODUCT_ROWS), self.features.split(PRODUCT_ROWS), strict=True)
        return torch.cat([(left[tokens] * right[features]).sum(1) for tokens, features in places])


def largest(u: Tensor, count: int) -> Tensor:  # [B, K] -> [B · count]
    """Indices of the ``count`` largest entries of every row, in u.flatten(), in ascending order.

    On the CPU every row is compared with its ``count``-th largest entry, which numpy finds with vector
    instructions in a fraction of the time of `topk`. Where entries tie, `topk` decides.
    """
    if u.device.type == "cpu":
        values, first = u.numpy(), u.shape[1] - count
        ordered = np.sort(values) if u.shape[1] <= MAX_SORTED_WIDTH else np.partition(values, first)
        flat = np.flatnonzero(values >= ordered[:, first, None])
        if len(flat) == len(u) * count:
            return torch.from_numpy(flat)
    columns = u.topk(count, 1, sorted=False).indices.sort(1).values
    return (columns + torch.arange(len(u), device=u.device)[:, None] * u.shape[1]).flatten()


def stable_order(numbers: Tensor, end: int) -> Tensor:  # [n] -> [n]
    """Order of numbers from 0 to ``end`` − 1; on the CPU by numpy, which sorts small integers by radix."""
    if numbers.device.type == "cpu" and end <= 2**15:
        return torch.from_numpy(np.argsort(numbers.to(torch.int16).numpy(), kind="stable"))
    return numbers.argsort(stable=True)


def _starts(ordered: Tensor, end: int) -> Tensor:  # [n] -> [end]
    """Where every number from 0 to ``end`` − 1 begins in ordered numbers."""
    return torch.searchsorted(ordered, torch.arange(end, device=ordered.device))
