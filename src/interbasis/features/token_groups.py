"""How much of a feature is the token it stands on, the one before, the one after, or one that came before.

A share of variance by groups of tokens is adjusted for the number of groups, 1 − (1 − η²)(n − 1)/(n − k),
so that many rare tokens explain nothing by themselves. A context is one token among the `WINDOW` before:
its share is the squared correlation of the feature with whether that token is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interbasis.features.activations import Chunk

WINDOW = 12
"""Tokens before a position that are its context."""
MAX_TOKENS = 4096
"""Different tokens that are told apart, the first that occur; all others are one group."""
MIN_COUNT = 16
"""How often a token must occur to stand in a label."""
TokenKind = Literal["token", "previous", "next", "context"]
KINDS: tuple[TokenKind, ...] = ("token", "previous", "next", "context")


class TokenIndex:
    """Numbers of tokens in the order in which they occur; 0 is no token, or one of the rest."""

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
        """Take up the tokens known so far."""
        self.tokens = tokens
        self._groups = torch.zeros(int(tokens.max()) + 1, dtype=torch.int64)
        self._groups[tokens[1:]] = torch.arange(1, len(tokens))


@dataclass(frozen=True)
class TokenShare:
    """What one kind of token explains of a feature."""

    share: float
    tokens: tuple[int, ...]
    """Those at which the feature stands out most, the strongest first; all on one side of its mean."""


class TokenSums:
    """Counts and sums of values by token, of one layer."""

    def __init__(self) -> None:
        self.counts: dict[TokenKind, Tensor] = {kind: torch.zeros(1, dtype=torch.float64) for kind in KINDS}
        self.sums: dict[TokenKind, Tensor] = {}
        self.total = torch.zeros(0)  # [3, features]: count, sum, sum of squares

    def add(self, chunk: Chunk, groups: Tensor) -> None:
        """Values [n, S, features] of the last S positions of ``groups`` [n, T]."""
        values = chunk.values
        count = torch.full_like(values[0, 0], values[..., 0].numel())
        total = torch.stack([count, values.sum((0, 1)), values.square().sum((0, 1))])
        self.total = total if not len(self.total) else self.total + total
        known = max(int(groups.max()) + 1, len(self.counts["token"]))
        for kind in KINDS:
            self.counts[kind] = torch.nn.functional.pad(
                self.counts[kind], (0, known - len(self.counts[kind]))
            )
            sums = self.sums.get(kind, values.new_zeros(0, values.shape[2]))
            self.sums[kind] = torch.nn.functional.pad(sums, (0, 0, 0, known - len(sums)))
        size = values.shape[1]
        self._add("token", groups[:, -size:], values)
        self._add("previous", _before(groups, 1)[:, -size:], values)
        self._add("next", torch.nn.functional.pad(groups, (0, 1))[:, 1:][:, -size:], values)
        seen: list[Tensor] = []
        for lag in range(1, WINDOW + 1):  # a token that is there twice is there
            token = _before(groups, lag)
            for other in seen:
                token = token.where(token != other, 0)
            seen.append(_before(groups, lag))
            self._add("context", token[:, -size:], values)

    def _add(self, kind: TokenKind, groups: Tensor, values: Tensor) -> None:
        flat = groups.flatten()
        self.counts[kind].index_add_(0, flat, torch.ones(len(flat), dtype=torch.float64))
        self.sums[kind].index_add_(0, flat, values.flatten(0, 1))

    def shares(self, index: TokenIndex, top: int = 3) -> dict[TokenKind, list[TokenShare]]:
        """For every kind, what it explains of each feature."""
        n, mean = self.total[0, 0].item(), self.total[1] / self.total[0]
        scatter = self.total[2] - self.total[1] * mean  # [features]
        floor = 1e-13 * self.total[2] + 1e-300
        shares: dict[TokenKind, list[TokenShare]] = {}
        for kind in KINDS:
            counts, sums = self.counts[kind], self.sums[kind]
            shift = sums / counts.clamp_min(1)[:, None] - mean  # [groups, features]
            if kind == "context":
                explained = counts[:, None] * shift.square() * (n / (n - counts).clamp_min(1))[:, None]
                explained[(counts < MIN_COUNT) | (n - counts < MIN_COUNT)] = 0
                explained[0] = 0
                raw, groups = explained.amax(0) / scatter.clamp_min(1e-300), 2
            else:
                raw = (counts[:, None] * shift.square()).sum(0) / scatter.clamp_min(1e-300)
                groups = int((counts > 0).sum())
            adjusted = (1 - (1 - raw) * (n - 1) / max(n - groups, 1)).clamp(0, 1)
            adjusted[scatter <= floor] = 0
            chosen = _standing_out(counts, shift, 1 if kind == "context" else top)
            shares[kind] = [
                TokenShare(share, tuple(int(index.tokens[g]) for g in groups_of if g))
                for share, groups_of in zip(adjusted.tolist(), chosen, strict=True)
            ]
        return shares

    def state(self) -> dict[str, Tensor]:
        """All of it, to go on from."""
        if not self.sums:
            return {}
        state = {"total": self.total}
        for kind in KINDS:
            state |= {f"{kind}.counts": self.counts[kind], f"{kind}.sums": self.sums[kind]}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state."""
        self.total = state["total"]
        for kind in KINDS:
            self.counts[kind], self.sums[kind] = state[f"{kind}.counts"], state[f"{kind}.sums"]


def _before(groups: Tensor, lag: int) -> Tensor:  # [n, T] -> [n, T]
    """The group so many positions before; 0 where there is none."""
    return torch.nn.functional.pad(groups, (lag, 0))[:, : groups.shape[1]]


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
    return [
        [g for g, keep in zip(column, kept, strict=True) if keep]
        for column, kept in zip(groups.T.tolist(), ((values > floor) & (values > 0)).T.tolist(), strict=True)
    ]
