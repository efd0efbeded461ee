"""What a label says that a change of the feature does to the outputs: a claim that steering can test.

A feature that promotes “X” raises the output X. A feature of a language model that is high for some tokens,
at its position, before it or in its context, should make the model expect what follows such places: the
outputs that come after them in the data more often than after others. One that is high for a class raises its
output.
The position in a sequence, and the variance of a norm, say nothing about outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.features import labels
from interbasis.analysis.features.records import Feature, TokenKind

MAX_OUTPUTS = 5
"""Outputs of a claim, at each side."""
MIN_FOLLOWING = 5
"""Times that a token must follow the tokens of a label before it counts among what they make likely."""


@dataclass(frozen=True)
class Claim:
    """Outputs that rise, and that fall, when a feature is raised."""

    text: str
    raised: tuple[int, ...]
    lowered: tuple[int, ...] = ()

    def value(self, changes: Tensor) -> Tensor:  # [..., outputs] -> [...]
        """Mean change of what is raised less that of what is lowered; all outputs where there is neither."""
        ends = [changes[..., list(side)] if side else changes for side in (self.raised, self.lowered)]
        return ends[0].mean(-1) - ends[1].mean(-1)


def label_claims(feature: Feature, outputs: Mapping[str, int], tokens: Tensor | None) -> tuple[Claim, ...]:
    """The claims of a feature's label.

    Args:
        feature: A described feature.
        outputs: Numbers of outputs by name.
        tokens: Samples [n, positions] of a language model's data, to count what follows; None for others.

    Returns:
        None, one or two claims.
    """
    claims = []
    said = labels.response(feature.evidence)
    if tokens is not None and said is not None and said.place is not None:
        ends = [_followers(said.place, tokens, named) for named in (said.tokens, said.opposite)]
        high, low = reversed(ends) if said.low else ends
        if high or low:
            claims.append(Claim(f"what follows {said.text}", high, low))
    elif feature.classes is not None and (said is None or said.kind == "class"):
        name, area = labels.separated_class(feature.classes)
        if name in outputs:
            ends = [(outputs[name],), ()]
            claims.append(
                Claim(f"{'' if area >= 0.5 else 'not '}“{name}”", *ends[:: 1 if area >= 0.5 else -1])
            )
    if moved := labels.promotion(feature):
        names = [[push.name for push in side] for side in labels.outstanding_pushes(moved)]
        if {name for side in names for name in side} <= outputs.keys():
            raised, lowered = (tuple(outputs[name] for name in side) for side in names)
            claims.append(Claim(labels.promoted(moved), raised, lowered))
    return tuple(claims)


def _followers(kind: TokenKind, tokens: Tensor, named: Sequence[int]) -> tuple[int, ...]:  # [n, T]
    """Tokens that come next at places with the named ones more often than elsewhere, the clearest first."""
    if kind == "next" or not named:
        return tuple(named)
    there = torch.isin(tokens, torch.tensor(named))
    lags = {"token": range(1), "previous": range(1, 2), "context": range(1, labels.WINDOW + 1)}[kind]
    T = tokens.shape[1]
    near = torch.stack([torch.nn.functional.pad(there, (lag, 0))[:, :T] for lag in lags]).any(0)
    following, chosen = tokens[:, 1:].flatten(), near[:, :-1].flatten()
    size = int(tokens.max()) + 1
    counts = torch.bincount(following[chosen], minlength=size).double()
    expected = torch.bincount(following, minlength=size).double() * chosen.double().mean()
    excess = (counts - expected) / expected.clamp_min(1e-300).sqrt()
    excess[counts < MIN_FOLLOWING] = 0
    best = excess.topk(min(MAX_OUTPUTS, size))
    return tuple(best.indices[best.values > 0].tolist())
