"""The label of a feature: what explains most of it, with the evidence and its share, short enough for a box.

What a feature responds to explains a share of its variance; of modular addition's Fourier terms that is the
share of what the position leaves. What it does to the outputs holds a share of its squared effect on all.
All evidence is ranked by its share. The label is the first that a feature responds to, where its share is at
least `MIN_SHARE`, or else what it does, likewise. Below that nothing is claimed: an example stands in.
"""

from collections.abc import Callable, Mapping, Sequence

from interbasis.analysis.features.fourier_labels import FourierLabel
from interbasis.analysis.features.records import (
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
"""Characters of a label besides its share: what a box of the page holds."""
OUTSTANDING = 0.5
"""A position is named where it alone makes up this share of what position explains."""

OUTPUT_KINDS: tuple[EvidenceKind, ...] = ("direct effect", "mean effect")
"""Evidence of what a feature does, not of what it responds to."""
FORMS: Mapping[TokenKind, str] = {
    "token": "{}",
    "previous": "after {}",
    "next": "before {}",
    "context": "with {}",
}


def evidence(
    feature: Feature,
    fourier: FourierLabel | None,
    shares: Mapping[TokenKind, TokenShare],
    name: Callable[[int], str],
    isolated: bool,
) -> tuple[Evidence, ...]:
    """All that is known about a feature, the largest share first."""
    found = []
    if isolated:
        found.append(Evidence(kind="variance", text="variance of the norm", share=1.0))
    left = 1.0
    if feature.positions is not None:
        left = 1 - feature.positions.share
        text = _position(feature.positions.means)
        found.append(Evidence(kind="position", text=text, share=feature.positions.share))
    if fourier is not None:
        text = fourier.terms[0].text
        found.append(Evidence(kind="fourier", text=text, share=left * fourier.share))
    if feature.classes is not None:
        means, separated = feature.classes.means, feature.classes.auroc
        best = max(range(len(means)), key=lambda k: max(separated[k], 1 - separated[k]))
        sign = "" if separated[best] >= 0.5 else "not "
        text = f"{sign}{feature.classes.names[best]}"
        found.append(Evidence(kind="class", text=text, share=feature.classes.explained))
    for kind, share in shares.items():
        if share.tokens:
            text = FORMS[kind].format(_quoted([name(token) for token in share.tokens]))
            found.append(Evidence(kind=kind, text=text, share=share.share))
    for effect, moved in zip(OUTPUT_KINDS, (feature.effects, feature.mean_effects), strict=True):
        if moved is not None and moved.share > 0:
            found.append(Evidence(kind=effect, text=promoted(moved), share=moved.share))
    return tuple(sorted(found, key=lambda one: -one.share))


def label(feature: Feature, fourier: FourierLabel | None, examples: FeatureExamples | None) -> str:
    """The one line for a box."""
    best = next((one for one in feature.evidence if one.kind not in OUTPUT_KINDS), None)
    if fourier is not None and (best is None or best.kind == "fourier" or best.share < MIN_SHARE):
        return fourier.text
    if best is not None and best.kind == "variance":
        return best.text
    if best is not None and best.share >= MIN_SHARE and best.kind != "class":
        return f"{_cut(best.text)} {best.share:.0%}"
    if feature.classes is not None:
        separated = feature.classes.auroc
        area = max(max(one, 1 - one) for one in separated)
        where = next(k for k, one in enumerate(separated) if max(one, 1 - one) == area)
        sign = "+" if separated[where] >= 0.5 else "−"
        return f"{sign}{feature.classes.names[where]} (AUROC {area:.2f})"
    done = next((one for one in feature.evidence if one.kind in OUTPUT_KINDS), None)
    if done is not None and done.share >= MIN_SHARE:
        return f"{_cut(done.text)} {done.share:.0%}"
    example = _example(examples)
    if example:
        return f"e.g. {example}"
    return promoted(feature.effects) if feature.effects else ""


def promoted(effects: Effects | MeanEffects) -> str:
    """What a feature pushes up and down most."""
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
    """The end of the strongest example of a language model: the token, with those before it as far as
    fits."""
    places = [one for band in examples.bands for one in band.examples] if examples else []
    tokens = [one for one in places if isinstance(one, TokenExample)]
    if not tokens:
        return ""
    strongest = max(tokens, key=lambda one: abs(one.value))
    text = _visible("".join(strongest.tokens[: strongest.active + 1]))
    return f"“…{text[-(MAX_TEXT - 8) :]}”"
