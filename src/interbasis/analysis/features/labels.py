"""Labels of features: what explains most of them, with its share, and what they promote; for a box.

What a feature responds to explains a share of its variance; of modular addition's Fourier terms that is the
share of what the position leaves. What it does to the outputs holds a share of its squared effect on all.
All evidence is ranked by its share. The label of a language model's feature has up to two parts:

- what it responds to: of the tokens that can be named, at its position, before it, after it or anywhere in
  the context, those that explain most, and at least `MIN_NAMED_SHARE`; or its position in the sequence, or
  that it depends on the token, with those for which it is highest and lowest, if these explain `MIN_SHARE`;
- what it promotes: the output that it moves most, where that stands out among all (`MIN_CONTRAST`). A feature
  that is low for the tokens named promotes, where they are, what it lowers when it is high.

Where there is neither, nothing is claimed: "no short description", and an example.

Tokens are the one that a feature stands on, the one before, the one after, or one that came before. What the
identity of a token explains is adjusted for the number of groups, 1 − (1 − η²)(n − 1)/(n − k), so that many
rare tokens explain nothing by themselves. What named tokens explain is the squared correlation of the feature
with whether one of them is there: much less, if a hundred other tokens matter as well. A context is one token
among the `WINDOW` before.

The first position has no token before it and the last none after it, and what sets such a position apart is
no token: shares are taken over the positions that have one, and count with these positions' part of all
variance.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

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
    """By the identity of the token, whichever it is."""
    tokens: tuple[int, ...]
    """Tokens at which the feature stands out most, the strongest first; all on one side of its mean."""
    named: float
    """By whether one of these tokens is there."""
    low: bool = False
    """Whether the feature is below its mean at these tokens."""
    opposite: tuple[int, ...] = ()
    """The token that stands out most on the other side."""


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
            chosen, low = _standing_out(counts, shift, 1 if kind == "context" else top)
            together = counts @ chosen  # [features], occurrences of the tokens that are named
            apart = (counts[:, None] * shift * chosen).sum(0) / together.clamp_min(1)
            named = together * apart.square() * n / (n - together).clamp_min(1)
            named = adjusted_share(named / within.clamp_min(1e-300), n, 2)
            named = (named * within / scatters[0].clamp_min(1e-300)).clamp(0, 1).where(~constant, 0)
            strength = (counts[:, None] * shift.square() * chosen).T
            other = (counts[:, None] * shift.square()).where((counts >= MIN_COUNT)[:, None], 0)
            other[0] = 0
            other = other.where((shift < 0) != low, 0).T
            shares[kind] = [
                TokenShare(
                    value,
                    tuple(names[g] for g in _ranked(column)),
                    own,
                    below,
                    tuple(names[g] for g in _ranked(far)[:1]),
                )
                for value, column, own, below, far in zip(
                    share.tolist(), strength, named.tolist(), low.tolist(), other, strict=True
                )
            ]
        return shares


def _ranked(strength: Tensor) -> list[int]:  # [G]
    """Groups with a strength above 0, the strongest first."""
    return strength.argsort(descending=True, stable=True)[: int((strength > 0).sum())].tolist()


def _standing_out(counts: Tensor, shift: Tensor, top: int) -> tuple[Tensor, Tensor]:  # [G], [G, F]
    """Groups that explain most of each feature as 0 and 1 [G, F], and whether they are below its mean [F].

    All are on the side of the mean that the strongest is on.
    """
    strength = counts[:, None] * shift.square()
    strength[0] = 0
    strength[counts < MIN_COUNT] = 0
    best = strength.argmax(0)
    side = shift.gather(0, best[None]).sign()
    strength = strength.where(shift.sign() == side, 0)
    values, groups = strength.topk(min(top, len(strength)), dim=0)
    floor = values[0] / 8  # a token that explains much less than the first is not worth naming
    strong = (values > floor) & (values > 0)
    return torch.zeros_like(strength).scatter_(0, groups, strong.to(strength)), side[0] < 0


MIN_SHARE = 0.5
"""Share of a feature's variance that the position, the class or the identity of a token must explain."""
MIN_NAMED_SHARE = 0.25
"""Share of a feature's variance that tokens named in a label must explain: a correlation of one half."""
MIN_CONTRAST = 1.5
"""Contrast from which on a label says what a feature promotes; a random direction has about 1."""
MIN_AREA = 0.75
"""AUROC, or 1 less it, from which on a class stands in a label."""
NO_DESCRIPTION = "no short description"
MAX_TEXT = 34
"""Characters of a label besides its share, as many as a box of the page holds."""
OUTSTANDING = 0.5
"""A position is named where it alone makes up this share of what position explains."""

OUTPUT_KINDS: tuple[EvidenceKind, ...] = ("direct effect", "mean effect")
"""Kinds of evidence about what a feature does, not about what it responds to."""
FORMS = {"token": "{}", "previous": "after {}", "next": "before {}", "context": "with {}"}
IDENTITIES = {"token": "token", "previous": "token before", "next": "token after"}
"""Words before the two ends of a feature: the token for which it is highest, and lowest."""


def evidence(
    feature: Feature, shares: Mapping[TokenKind, TokenShare], name: Callable[[int], str], isolated: bool
) -> tuple[Evidence, ...]:
    """Evidence of all kinds about a feature, the largest share first."""
    entries: list[Evidence] = []

    def add(kind: EvidenceKind, text: str, share: float, **known: Any) -> None:
        entries.append(Evidence(kind=kind, text=text, share=share, **known))

    if isolated:
        add("variance", "variance of the norm", 1.0)
    left = 1.0
    if feature.positions is not None:
        left = 1 - feature.positions.share
        add("position", _position(feature.positions.means), feature.positions.share)
    if feature.fourier is not None:
        add("fourier", feature.fourier.terms[0].text, left * feature.fourier.share)
    if feature.classes is not None:
        best, area = separated_class(feature.classes)
        add("class", f"{'' if area >= 0.5 else 'not '}{best}", feature.classes.explained)
    for kind, share in shares.items():
        if share.tokens:
            text = FORMS[kind].format(_quoted([name(token) for token in share.tokens]))
            known = {"place": kind, "low": share.low}
            add(kind, text, share.named, tokens=share.tokens, **known)
            if kind in IDENTITIES:
                ends = [visible(name(token)) for token in (*share.tokens[:1], *share.opposite)]
                scale = " … ".join(f"“{end}”" for end in (reversed(ends) if share.low else ends))
                named = {"tokens": share.tokens[:1], "opposite": share.opposite}
                add("identity", f"{IDENTITIES[kind]}: {scale}", share.share, **named, **known)
    for effect, moved in zip(OUTPUT_KINDS, (feature.effects, feature.mean_effects), strict=True):
        if moved is not None and moved.share > 0:
            add(effect, promoted(moved), moved.share)
    return tuple(sorted(entries, key=lambda entry: -entry.share))


def label(feature: Feature, examples: records.FeatureExamples | None) -> str:
    """The line of text for a box."""
    best = next((item for item in feature.evidence if item.kind not in OUTPUT_KINDS), None)
    explained = best is not None and best.share >= MIN_SHARE
    if feature.fourier is not None and (best is None or best.kind == "fourier" or not explained):
        return feature.fourier.text
    if best is not None and best.kind == "variance":
        return best.text
    said = response(feature.evidence)
    if feature.classes is not None and (said is None or said.kind == "class"):
        name, area = separated_class(feature.classes)
        if max(area, 1 - area) >= MIN_AREA:
            return f"{'' if area >= 0.5 else 'not '}“{name}” (AUROC {max(area, 1 - area):.2f})"
    parts = []
    if said is not None:
        low = said.low and said.kind != "identity"  # whose text runs from high to low
        parts.append(f"{'low: ' if low else ''}{_cut(said.text)} {said.share:.0%}")
    if moved := promotion(feature):
        side = moved.down if said is not None and low else moved.up
        parts.append(promoted(moved) if said is None else f"promotes “{visible(side[0].name)}”")
    if parts:
        return ", ".join(parts)
    example = _example(examples)
    return f"{NO_DESCRIPTION}, e.g. {example}" if example else NO_DESCRIPTION if feature.evidence else ""


def promotion(feature: Feature) -> records.Effects | records.MeanEffects | None:
    """What a feature does to the outputs, where the one that it moves most stands out."""
    moved = feature.mean_effects or feature.effects
    few = feature.effects is not None and feature.effects.share >= MIN_SHARE
    return moved if moved is not None and (few or moved.contrast >= MIN_CONTRAST) else None


def response(evidence: Sequence[Evidence]) -> Evidence | None:
    """What a feature responds to, where that can be said: named if possible, else by its identity."""
    known = [
        item
        for item in evidence
        if item.kind not in OUTPUT_KINDS
        and item.share >= (MIN_NAMED_SHARE if item.kind in KINDS else MIN_SHARE)
    ]
    # sorted by share; the identity of a token is said where nothing shorter can be
    return min(known, key=lambda item: item.kind == "identity", default=None)


def separated_class(classes: records.ClassStatistics) -> tuple[str, float]:
    """(name, AUROC) of the class that the feature separates best."""
    pairs = zip(classes.names, classes.auroc, strict=True)
    return max(pairs, key=lambda pair: max(pair[1], 1 - pair[1]))


def promoted(effects: records.Effects | records.MeanEffects) -> str:
    """Text of the outputs that a feature pushes up and down most, as far as both stand out."""
    up, down = ([f"“{visible(push.name)}”" for push in side] for side in outstanding_pushes(effects))
    return (
        f"promotes {up[0]} over {down[0]}"
        if up and down
        else "".join([f"promotes {name}" for name in up] + [f"suppresses {name}" for name in down])
    )


def outstanding_pushes(
    effects: records.Effects | records.MeanEffects,
) -> tuple[Sequence[records.Push], Sequence[records.Push]]:
    """The output that a feature raises most and the one it lowers most, less one that moves far less."""
    up, down = effects.up[0], effects.down[0]
    largest = max(abs(up.value), abs(down.value))
    first, second = ([push] if 2 * abs(push.value) >= largest else [] for push in (up, down))
    return first, second


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
    texts = [visible(name) for name in names]
    while len(texts) > 1 and len(" / ".join(texts)) > MAX_TEXT - 9:
        texts.pop()
    return f"“{' / '.join(texts)}”"


def visible(text: str) -> str:
    """A token as one line, with the spaces at its ends."""
    text = text.replace("\n", "↵").replace("\t", "→")
    inner = text.strip(" ")
    start = len(text) - len(text.lstrip(" "))
    return "␣" * start + inner + "␣" * (len(text) - start - len(inner)) or "∅"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _example(examples: records.FeatureExamples | None) -> str:
    """The end of a language model's strongest example: the token, with those before it as far as fits."""
    shown = [example for band in examples.bands for example in band.examples] if examples else []
    texts = [example for example in shown if isinstance(example, records.TokenExample)]
    if not texts:
        return ""
    strongest = max(texts, key=lambda example: abs(example.value))
    text = visible("".join(strongest.tokens[: strongest.active + 1]))
    return f"“…{text[-(MAX_TEXT - 8) :]}”"
