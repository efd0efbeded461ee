"""Share of a feature that is the token it stands on, the one before, the one after, or one that came before.

A share of variance by groups of tokens is adjusted for the number of groups, 1 − (1 − η²)(n − 1)/(n − k),
so that many rare tokens explain nothing by themselves. A context is one token among the `WINDOW` before:
its share is the squared correlation of the feature with whether that token is there.

The first position has no token before it and the last none after it, and what sets such a position apart is
no token: shares are taken over the positions that have one, and count with these positions' part of all
variance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
        self.tokens = torch.zeros(1, dtype=torch.int64)  # token of each group; entry 0 means nothing
        self._groups = torch.zeros(0, dtype=torch.int64)  # group of each token

    def groups(self, inputs: Tensor) -> Tensor:  # [n, T] -> [n, T]
        """The group of every token; new tokens get the next number, in order of their first appearance."""
        inputs = inputs.detach().cpu().long()
        top = int(inputs.max()) + 1
        if top > len(self._groups):
            self._groups = torch.nn.functional.pad(self._groups, (0, top - len(self._groups)))
        flat = inputs.flatten()
        new = flat[self._groups[flat] == 0]
        if len(new) and len(self.tokens) <= MAX_TOKENS:
            unique, inverse = new.unique(return_inverse=True)
            first = torch.full((len(unique),), len(new)).scatter_reduce(
                0, inverse, torch.arange(len(new)), "amin"
            )
            unique = unique[first.argsort()][: MAX_TOKENS + 1 - len(self.tokens)]
            self._groups[unique] = torch.arange(len(self.tokens), len(self.tokens) + len(unique))
            self.tokens = torch.cat([self.tokens, unique])
        return self._groups[flat].view(inputs.shape)

    def restore(self, tokens: Tensor) -> None:
        """Resume from the tokens known so far."""
        self.tokens = tokens
        self._groups = torch.zeros(int(tokens.max()) + 1, dtype=torch.int64)
        self._groups[tokens[1:]] = torch.arange(1, len(tokens))


@dataclass(frozen=True)
class TokenShare:
    """Share of a feature that one kind of token explains."""

    share: float
    tokens: tuple[int, ...]
    """Tokens at which the feature stands out most, the strongest first; all on one side of its mean."""


class TokenSums:
    """Counts and sums of values by token, of one layer."""

    def __init__(self) -> None:
        self.counts: dict[TokenKind, Tensor] = {kind: torch.zeros(1, dtype=torch.float64) for kind in KINDS}
        self.sums: dict[TokenKind, Tensor] = {}
        self.totals: dict[TokenKind, Tensor] = {}
        """[3, features]: count, sum and sum of squares, over positions that have such a token."""

    def add(self, chunk: FeatureChunk, groups: Tensor) -> None:
        """Values [n, S, features] of the last S positions of ``groups`` [n, T]."""
        values, pad = chunk.values, torch.nn.functional.pad
        known = max(int(groups.max()) + 1, len(self.counts["token"]))
        for kind in KINDS:
            self.counts[kind] = pad(self.counts[kind], (0, known - len(self.counts[kind])))
            sums = self.sums.get(kind, values.new_zeros(0, values.shape[2]))
            self.sums[kind] = pad(sums, (0, 0, 0, known - len(sums)))
        start = groups.shape[1] - values.shape[1]
        first = int(start == 0)  # position 0 has no token before it
        behind = values[:, first:]
        # [n, T] each: the token so many positions before, 0 where there is none
        lags = [pad(groups, (lag, 0))[:, : groups.shape[1]] for lag in range(1, WINDOW + 1)]
        self._add("token", groups[:, start:], values)
        self._add("previous", lags[0][:, start + first :], behind)
        self._add("next", groups[:, start + 1 :], values[:, :-1])
        for lag, token in enumerate(lags):
            for nearer in lags[:lag]:  # a token that is there twice is there
                token = token.where(token != nearer, 0)
            self._add("context", token[:, start + first :], behind)
        for kind, part in zip(KINDS, (values, behind, values[:, :-1], behind), strict=True):
            flat = part.flatten(0, 1)
            count = torch.full_like(values[0, 0], len(flat))
            total = torch.stack([count, flat.sum(0), flat.square().sum(0)])
            self.totals[kind] = self.totals[kind] + total if kind in self.totals else total

    def _add(self, kind: TokenKind, groups: Tensor, values: Tensor) -> None:
        flat = groups.flatten()
        self.counts[kind].index_add_(0, flat, torch.ones(len(flat), dtype=torch.float64))
        self.sums[kind].index_add_(0, flat, values.flatten(0, 1))

    def shares(self, index: TokenIndex, top: int = 3) -> dict[TokenKind, list[TokenShare]]:
        """Share of each feature that every kind of token explains."""
        variation = {kind: _variation(total) for kind, total in self.totals.items()}
        _, _, scatter = variation["token"]  # of all positions
        constant = scatter <= 1e-13 * self.totals["token"][2] + 1e-300
        shares: dict[TokenKind, list[TokenShare]] = {}
        for kind in KINDS:
            counts, sums = self.counts[kind], self.sums[kind]
            n, mean, within = variation[kind]
            shift = sums / counts.clamp_min(1)[:, None] - mean  # [groups, features]
            if kind == "context":
                explained = counts[:, None] * shift.square() * (n / (n - counts).clamp_min(1))[:, None]
                explained[(counts < MIN_COUNT) | (n - counts < MIN_COUNT)] = 0
                explained[0] = 0
                raw, groups = explained.amax(0) / within.clamp_min(1e-300), 2
            else:
                raw = (counts[:, None] * shift.square()).sum(0) / within.clamp_min(1e-300)
                groups = int((counts > 0).sum())
            share = adjusted_share(raw, n, groups) * within / scatter.clamp_min(1e-300)
            share[constant] = 0
            tokens = _standing_out(counts, shift, 1 if kind == "context" else top)
            shares[kind] = [
                TokenShare(value, tuple(int(index.tokens[group]) for group in chosen if group))
                for value, chosen in zip(share.clamp(0, 1).tolist(), tokens, strict=True)
            ]
        return shares

    def state(self) -> dict[str, Tensor]:
        """Tensors to resume from."""
        return {f"{kind}.{name}": part[kind] for name, part in vars(self).items() for kind in self.sums}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        for key, tensor in state.items():
            kind, _, name = key.partition(".")
            vars(self)[name][kind] = tensor


def _variation(total: Tensor) -> tuple[float, Tensor, Tensor]:  # [3, features]
    """Number, mean [features] and scatter Σ (x − mean)² [features]."""
    mean = total[1] / total[0].clamp_min(1)
    return total[0, 0].item(), mean, (total[2] - total[1] * mean).clamp_min(0)


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
