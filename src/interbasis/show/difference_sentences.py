"""Differences between models in words: what was found, and what may be claimed."""

import math
from collections.abc import Iterator

from interbasis.analysis.differences.records import Difference
from interbasis.show.difference_tables import METRICS, active_tokens, share_text
from interbasis.show.sentences import ClaimTexts, ReportClaim

MIN_LEAD = 2.0
"""A section leads if its own difference is so many times that of the next."""
MAX_SAME_OUTPUTS = 0.01
"""Outputs are nearly the same up to this share."""
MIN_OTHER_JACOBIAN = 0.1
"""Jacobians are those of another computation from this share on."""
TEXTS = ClaimTexts("difference_sentences.toml")
_claim = TEXTS.claim


def difference_findings(result: Difference) -> Iterator[str]:
    """Sentences about where two models differ."""
    words, names, leading = TEXTS.groups["findings"], list(result.layers), result.leading
    embedding = result.layers[names[0]].arising
    if embedding:
        yield words["embedding"].format(share=_part(embedding), layer=names[0])
    if leading is None:
        yield words["same"]
        return
    arising = _arising(result)
    section, layer = result.sections[leading], names[names.index(leading) + 1]
    others = [name for name in arising if name != leading]
    following = (
        f"; the next, {result.sections[others[0]].name}, adds {_share(arising[others[0]])}" if others else ""
    )
    yield words["leading"].format(
        arises="The largest difference arises" if others else "The difference arises",
        section=section.name,
        arising=_part(arising[leading]),
        layer=layer,
        next=following,
    )
    changed = [row for row in result.sections.values() if row.changed]
    yield words["shares"].format(
        count=len(changed),
        sections=len(result.sections),
        outputs=_range([row.outputs.value for row in changed]),
        jacobian=_range([row.jacobian.value for row in changed]),
    )
    last = result.layers[names[-1]]
    yield words["end" if last.arising else "end_passed_on"].format(
        layer=names[-1],
        total=_part(last.total),
        arising=_share(last.arising),
        passed=_share(last.passed_on),
    )
    if section.heads:
        head = section.heads[0]
        paths = {path: _share(getattr(head, path)) for path in ("total", "value", "key", "query")}
        yield words["head"].format(
            section=section.name, head=head.head, **paths | {"total": _part(head.total)}
        )
    kind = "read" if section.reading_directions else "treated"
    direction = (section.reading_directions or section.input_directions)[0]
    yield words[kind].format(
        section=section.name, share=_share(direction.share), tokens=active_tokens(direction)
    )


def difference_claims(result: Difference) -> list[ReportClaim]:
    """Claims that a difference allows, and claims that it does not."""
    return [*_claims(result), _claim(False, "cause", "no_intervention"), _claim(False, "other_data", "one")]


def _claims(result: Difference) -> Iterator[ReportClaim]:
    leading = result.leading
    if leading is None:
        return
    section, arising = result.sections[leading], _arising(result)
    shares = {"outputs": share_text(section.outputs), "jacobian": share_text(section.jacobian)}
    yield _claim(
        True, "measured", "because", samples=result.data.samples, section=section.name, along=result.along,
        spec=f" of {result.data.spec}" if result.data.spec else "", metric=METRICS[result.metric], **shares,
    )  # fmt: skip
    if len(arising) == 1:
        yield _claim(True, "arises", "alone", section=section.name)
    else:
        other = list(arising)[1]
        times = arising[leading] / arising[other]
        yield _claim(
            times >= MIN_LEAD, "arises", "leads" if times >= MIN_LEAD else "close", section=section.name,
            times=times, other=result.sections[other].name,
        )  # fmt: skip
    for row in result.sections.values():
        if row.outputs.value <= MAX_SAME_OUTPUTS and row.jacobian.value >= MIN_OTHER_JACOBIAN:
            yield _claim(
                True, "mechanism", "because", section=row.name, outputs=share_text(row.outputs),
                jacobian=share_text(row.jacobian),
            )  # fmt: skip
    errors = [
        share.error / share.value
        for row in result.sections.values()
        if row.changed
        for share in (row.outputs, row.jacobian)
        if share.value > 0 and not math.isnan(share.error)
    ]
    yield _claim(False, "order", "errors" if errors else "none", error=max(errors, default=0.0))


def _arising(result: Difference) -> dict[str, float]:
    """Differences that arise in sections, as shares of the variance after them, the largest first."""
    after = [layer.arising for layer in list(result.layers.values())[1:]]
    by_section = dict(zip(result.sections, after, strict=True))
    positive = {name: value for name, value in by_section.items() if value > 0}
    return dict(sorted(positive.items(), key=lambda item: -item[1]))


def _range(values: list[float]) -> str:
    low, high = (f"{100 * value:.3g} %" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _share(value: float) -> str:
    """A share as text; more than all of it as a multiple."""
    return f"{100 * value:.3g} %" if value < 1 else f"{value:.3g} times"


def _part(value: float) -> str:
    """The same before the words for what it is a share of."""
    return _share(value) + (" of" if value < 1 else "")
