"""Labels of features: the evidence that explains most, with its share, short enough for a box.

What a feature responds to explains a share of its variance; of modular addition's Fourier terms that is the
share of what the position leaves. What it does to the outputs holds a share of its squared effect on all.
All evidence is ranked by its share. The label is the first that a feature responds to, where its share is at
least `MIN_SHARE`, or else what it does, likewise. Below that nothing is claimed: an example stands in.
"""

from collections.abc import Callable, Mapping, Sequence

from interbasis.analysis.features.records import (
    ClassStatistics,
    Effects,
    Evidence,
    EvidenceKind,
    Feature,
    FeatureExamples,
    MeanEffects,
    TokenExample,
)
from interbasis.analysis.features.token_groups import TokenKind, TokenShare

MIN_SHARE = 0.5
"""Share of a feature's variance that a label must explain."""
MAX_TEXT = 26
"""Characters of a label besides its share, as many as a box of the page holds."""
OUTSTANDING = 0.5
"""A position is named where it alone makes up this share of what position explains."""

OUTPUT_KINDS: tuple[EvidenceKind, ...] = ("direct effect", "mean effect")
"""Kinds of evidence about what a feature does, not about what it responds to."""
FORMS: Mapping[TokenKind, str] = {
    "token": "{}",
    "previous": "after {}",
    "next": "before {}",
    "context": "with {}",
}


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


def label(feature: Feature, examples: FeatureExamples | None) -> str:
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


def _separated_class(classes: ClassStatistics) -> tuple[str, float]:
    """(name, AUROC) of the class that the feature separates best."""
    pairs = zip(classes.names, classes.auroc, strict=True)
    return max(pairs, key=lambda pair: max(pair[1], 1 - pair[1]))


def promoted(effects: Effects | MeanEffects) -> str:
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


def _example(examples: FeatureExamples | None) -> str:
    """The end of a language model's strongest example: the token, with those before it as far as fits."""
    shown = [example for band in examples.bands for example in band.examples] if examples else []
    texts = [example for example in shown if isinstance(example, TokenExample)]
    if not texts:
        return ""
    strongest = max(texts, key=lambda example: abs(example.value))
    text = _visible("".join(strongest.tokens[: strongest.active + 1]))
    return f"“…{text[-(MAX_TEXT - 8) :]}”"
