"""Labels of features: the evidence that explains most, with its share, short enough for a box.

What a feature responds to explains a share of its variance; of modular addition's Fourier terms that is the
share of what the position leaves. What it does to the outputs holds a share of its squared effect on all.
All evidence is ranked by its share. The label is the first that a feature responds to, where its share is at
least `MIN_SHARE`, or else what it does, likewise. Below that nothing is claimed: an example stands in.

Tokens are the one that a feature stands on, the one before, the one after, or one that came before. A share
of variance by groups of tokens is adjusted for the number of groups, 1 − (1 − η²)(n − 1)/(n − k), so that
many rare tokens explain nothing by themselves. A context is one token among the `WINDOW` before: its share is
the squared correlation of the feature with whether that token is there.

The first position has no token before it and the last none after it, and what sets such a position apart is
no token: shares are taken over the positions that have one, and count with these positions' part of all
variance.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from interbasis.analysis.features import records
from interbasis.analysis.features.activations import FeatureChunk
from interbasis.analysis.features.probes import adjusted_share
from interbasis.analysis.features.records import Evidence, EvidenceKind, Feature, TokenKind

WINDOW = 12
"""Tokens before a position that are its context."""
MAX_TOKENS = 4096
"""Different tokens that have a group of their own, the first that occur; all others are one group."""
MIN_COUNT = 16
"""Occurrences of a token from which on it stands in a label."""
KINDS: tuple[TokenKind, ...] = get_args(TokenKind)


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
        """[kinds, groups], [kinds, groups, features], and [kinds, 3, features]: count, sum and sum of squares
        over positions that have such a token."""

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


MIN_SHARE = 0.5
"""Share of a feature's variance that a label must explain."""
MAX_TEXT = 26
"""Characters of a label besides its share, as many as a box of the page holds."""
OUTSTANDING = 0.5
"""A position is named where it alone makes up this share of what position explains."""

OUTPUT_KINDS: tuple[EvidenceKind, ...] = ("direct effect", "mean effect")
"""Kinds of evidence about what a feature does, not about what it responds to."""
FORMS = {"token": "{}", "previous": "after {}", "next": "before {}", "context": "with {}"}


def evidence(
    feature: Feature, shares: Mapping[TokenKind, TokenShare], name: Callable[[int], str], isolated: bool
) -> tuple[Evidence, ...]:
    """Evidence of all kinds about a feature, the largest share first."""
    entries: list[tuple[EvidenceKind, str, float]] = []
    if isolated:
        entries.append(("variance", "variance of the norm", 1.0))
    left = 1.0
    if feature.positions is not None:
        left = 1 - feature.positions.share
        entries.append(("position", _position(feature.positions.means), feature.positions.share))
    if feature.fourier is not None:
        entries.append(("fourier", feature.fourier.terms[0].text, left * feature.fourier.share))
    if feature.classes is not None:
        best, area = _separated_class(feature.classes)
        entries.append(("class", f"{'' if area >= 0.5 else 'not '}{best}", feature.classes.explained))
    for kind, share in shares.items():
        if share.tokens:
            text = FORMS[kind].format(_quoted([name(token) for token in share.tokens]))
            entries.append((kind, text, share.share))
    for effect, moved in zip(OUTPUT_KINDS, (feature.effects, feature.mean_effects), strict=True):
        if moved is not None and moved.share > 0:
            entries.append((effect, promoted(moved), moved.share))
    entries.sort(key=lambda entry: -entry[2])
    return tuple(Evidence(kind=kind, text=text, share=share) for kind, text, share in entries)


def label(feature: Feature, examples: records.FeatureExamples | None) -> str:
    """The line of text for a box."""
    best = next((item for item in feature.evidence if item.kind not in OUTPUT_KINDS), None)
    effect = next((item for item in feature.evidence if item.kind in OUTPUT_KINDS), None)
    explained = best is not None and best.share >= MIN_SHARE
    if feature.fourier is not None and (best is None or best.kind == "fourier" or not explained):
        return feature.fourier.text
    if best is not None and best.kind == "variance":
        return best.text
    if best is not None and explained and best.kind != "class":
        return f"{_cut(best.text)} {best.share:.0%}"
    if feature.classes is not None:
        name, area = _separated_class(feature.classes)
        return f"{'+' if area >= 0.5 else '−'}{name} (AUROC {max(area, 1 - area):.2f})"
    if effect is not None and effect.share >= MIN_SHARE:
        return f"{_cut(effect.text)} {effect.share:.0%}"
    example = _example(examples)
    if example:
        return f"e.g. {example}"
    return promoted(feature.effects) if feature.effects else ""


def _separated_class(classes: records.ClassStatistics) -> tuple[str, float]:
    """(name, AUROC) of the class that the feature separates best."""
    pairs = zip(classes.names, classes.auroc, strict=True)
    return max(pairs, key=lambda pair: max(pair[1], 1 - pair[1]))


def promoted(effects: records.Effects | records.MeanEffects) -> str:
    """Text of the outputs that a feature pushes up and down most."""
    return f"↑ {_visible(effects.up[0].name)} ↓ {_visible(effects.down[0].name)}"


def _position(means: Sequence[float]) -> str:
    """The position that stands out by itself, "position 0", or "position"."""
    middle = sum(means) / len(means)
    squares = [(mean - middle) ** 2 for mean in means]
    largest = max(range(len(means)), key=lambda k: squares[k])
    # one position among n that alone is high moves the mean by 1/n of it
    outstanding = sum(squares) and squares[largest] / sum(squares) >= OUTSTANDING
    return f"position {largest}" if outstanding else "position"


def _quoted(names: Sequence[str]) -> str:
    """“Lily / Tom”, as many as fit."""
    texts = [_visible(name) for name in names]
    while len(texts) > 1 and len(" / ".join(texts)) > MAX_TEXT - 9:
        texts.pop()
    return f"“{' / '.join(texts)}”"


def _visible(text: str) -> str:
    """A token as one line."""
    return text.replace("\n", "↵").replace("\t", "→") or "∅"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _example(examples: records.FeatureExamples | None) -> str:
    """The end of a language model's strongest example: the token, with those before it as far as fits."""
    shown = [example for band in examples.bands for example in band.examples] if examples else []
    texts = [example for example in shown if isinstance(example, records.TokenExample)]
    if not texts:
        return ""
    strongest = max(texts, key=lambda example: abs(example.value))
    text = _visible("".join(strongest.tokens[: strongest.active + 1]))
    return f"“…{text[-(MAX_TEXT - 8) :]}”"
