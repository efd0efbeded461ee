"""Share of a feature that is the token it stands on, the one before, the one after, or one that came before.

A share of variance by groups of tokens is adjusted for the number of groups, 1 − (1 − η²)(n − 1)/(n − k),
so that many rare tokens explain nothing by themselves. A context is one token among the `WINDOW` before:
its share is the squared correlation of the feature with whether that token is there.

The first position has no token before it and the last none after it, and what sets such a position apart is
no token: shares are taken over the positions that have one, and count with these positions' part of all
variance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from interbasis.analysis.features.activations import FeatureChunk
from interbasis.analysis.features.moments import adjusted_share

WINDOW = 12
"""Tokens before a position that are its context."""
MAX_TOKENS = 4096
"""Different tokens that have a group of their own, the first that occur; all others are one group."""
MIN_COUNT = 16
"""Occurrences of a token from which on it stands in a label."""
TokenKind = Literal["token", "previous", "next", "context"]
KINDS: tuple[TokenKind, ...] = ("token", "previous", "next", "context")


class TokenIndex:
    """Numbers of tokens in the order in which they occur; 0 is no token, or one beyond `MAX_TOKENS`."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    @property
    def tokens(self) -> Tensor:
        """Token of each group; entry 0 means nothing."""
        return torch.tensor([0, *self._numbers])

    def groups(self, inputs: Tensor) -> Tensor:  # [n, T] -> [n, T]
        """The group of every token; new tokens get the next number, in order of their first appearance."""
        flat = inputs.detach().cpu().flatten().numpy()
        distinct, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        for token in distinct[first.argsort()].tolist():
            if len(self._numbers) < MAX_TOKENS:
                self._numbers.setdefault(token, len(self._numbers) + 1)
        numbers = torch.tensor([self._numbers.get(token, 0) for token in distinct.tolist()])
        return numbers[torch.from_numpy(inverse)].view(inputs.shape)

    def restore(self, tokens: Tensor) -> None:
        """Resume from the tokens known so far."""
        self._numbers = {token: number for number, token in enumerate(tokens[1:].tolist(), 1)}


@dataclass(frozen=True)
class TokenShare:
    """Share of a feature that one kind of token explains."""

    share: float
    tokens: tuple[int, ...]
    """Tokens at which the feature stands out most, the strongest first; all on one side of its mean."""


class TokenSums:
    """Counts and sums of values by kind of token and token, of one layer."""

    def __init__(self, features: int):
        shapes = (1,), (1, features), (3, features)
        self.counts, self.sums, self.totals = (torch.zeros(len(KINDS), *s).double() for s in shapes)
        """[kinds, groups]; [kinds, groups, features]; [kinds, 3, features]: count, sum and sum of squares over
        positions that have such a token."""

    def add(self, chunk: FeatureChunk, groups: Tensor) -> None:
        """Values [n, S, features] of the last S positions of ``groups`` [n, T]."""
        values, pad, T = chunk.values, torch.nn.functional.pad, groups.shape[1]
        more = max(0, int(groups.max()) + 1 - self.counts.shape[1])
        self.counts, self.sums = pad(self.counts, (0, more)), pad(self.sums, (0, 0, 0, more))
        start = T - values.shape[1]
        first = int(start == 0)  # position 0 has no token before it
        behind = values[:, first:]
        # [n, T] each: the token so many positions before, 0 where there is none
        lags = [pad(groups, (lag, 0))[:, :T] for lag in range(1, WINDOW + 1)]
        context = []
        for lag, token in enumerate(lags):
            for nearer in lags[:lag]:  # a token that is there twice is there
                token = token.where(token != nearer, 0)
            context.append(token[:, start + first :])
        self._add("token", values, [groups[:, start:]])
        self._add("previous", behind, [lags[0][:, start + first :]])
        self._add("next", values[:, :-1], [groups[:, start + 1 :]])
        self._add("context", behind, context)

    def _add(self, kind: TokenKind, values: Tensor, tokens: Sequence[Tensor]) -> None:
        k, flat = KINDS.index(kind), values.flatten(0, 1)
        for token in tokens:
            self.counts[k].index_add_(0, token.flatten(), torch.ones(len(flat)).double())
            self.sums[k].index_add_(0, token.flatten(), flat)
        count = flat.new_full((flat.shape[1],), len(flat))
        self.totals[k] += torch.stack([count, flat.sum(0), flat.square().sum(0)])

    def shares(self, index: TokenIndex, top: int = 3) -> dict[TokenKind, list[TokenShare]]:
        """Share of each feature that every kind of token explains."""
        count = self.totals[:, 0, 0]  # [kinds]
        means = self.totals[:, 1] / self.totals[:, 0].clamp_min(1)  # [kinds, features]
        scatters = (self.totals[:, 2] - self.totals[:, 1] * means).clamp_min(0)  # Σ (x − mean)²
        constant = scatters[0] <= 1e-13 * self.totals[0, 2] + 1e-300  # over all positions
        names, shares = index.tokens.tolist(), {}
        for kind, n, mean, within, counts, sums in zip(
            KINDS, count.tolist(), means, scatters, self.counts, self.sums, strict=True
        ):
            shift = sums / counts.clamp_min(1)[:, None] - mean  # [groups, features]
            explained, groups = counts[:, None] * shift.square(), int((counts > 0).sum())
            if kind == "context":
                explained *= (n / (n - counts).clamp_min(1))[:, None]
                explained[(counts < MIN_COUNT) | (n - counts < MIN_COUNT)] = 0
                explained[0], groups = 0, 2
            raw = explained.amax(0) if kind == "context" else explained.sum(0)
            share = adjusted_share(raw / within.clamp_min(1e-300), n, groups)
            share = (share * within / scatters[0].clamp_min(1e-300)).clamp(0, 1).where(~constant, 0)
            tokens = _standing_out(counts, shift, 1 if kind == "context" else top)
            shares[kind] = [
                TokenShare(value, tuple(names[group] for group in chosen if group))
                for value, chosen in zip(share.tolist(), tokens, strict=True)
            ]
        return shares

    def state(self) -> dict[str, Tensor]:
        """Tensors to resume from."""
        return dict(vars(self))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        vars(self).update(state)


def _standing_out(counts: Tensor, shift: Tensor, top: int) -> list[list[int]]:  # [G], [G, F]
    """Groups that explain most of each feature, on the side of the mean that the strongest is on."""
    strength = counts[:, None] * shift.square()
    strength[0] = 0
    strength[counts < MIN_COUNT] = 0
    best = strength.argmax(0)
    side = shift.gather(0, best[None]).sign()
    strength = strength.where(shift.sign() == side, 0)
    values, groups = strength.topk(min(top, len(strength)), dim=0)
    floor = values[0] / 8  # a token that explains much less than the first is not worth naming
    strong = (values > floor) & (values > 0)
    return [column[mask].tolist() for column, mask in zip(groups.T, strong.T, strict=True)]
