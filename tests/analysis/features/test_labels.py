"""Labels from evidence: shares against their definitions, and which evidence wins."""

from typing import Any

import pytest
import torch
from torch import Tensor

from interbasis.analysis.features import explained_variance
from interbasis.analysis.features.activations import FeatureChunk
from interbasis.analysis.features.labels import (
    MAX_TEXT,
    MIN_CONTRAST,
    MIN_SHARE,
    NO_DESCRIPTION,
    WINDOW,
    TokenIndex,
    TokenShare,
    TokenSums,
    evidence,
    label,
)
from interbasis.analysis.features.records import (
    Effects,
    Feature,
    Histogram,
    MeanEffects,
    MeanPush,
    PositionStatistics,
    Push,
)

NAMES = ["the", " cat", " dog", " sat", " Lily", " Tom", "\n"]


@pytest.fixture(scope="module")
def text() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and features that follow the token, the one before, the one after, one in the context,
    nothing."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 7, (60, 20), generator=generator)
    tokens[:, ::9] = torch.randint(0, 3, tokens[:, ::9].shape, generator=generator)
    table = torch.tensor([0.0, 3.0, 2.0, -1.0, 0.2, 0.1, -0.3], dtype=torch.float64)
    noise = torch.randn(60, 20, generator=generator, dtype=torch.float64)
    before = torch.nn.functional.pad(tokens, (1, 0))[:, :20]
    after = torch.nn.functional.pad(tokens, (0, 1))[:, 1:]
    rare = tokens.clone()
    rare[:30] = 0  # token 6 occurs in the second half of the samples only
    seen = torch.stack([(rare[:, max(0, t - WINDOW) : t] == 6).any(1) for t in range(20)], 1).double()
    values = [table[tokens] + 0.1 * noise, table[before], table[after], 5 * seen + 0.1 * noise, noise]
    return rare, torch.stack(values, 2), tokens


def sums_of(tokens: Tensor, values: Tensor, cuts: int) -> tuple[TokenSums, TokenIndex]:
    sums, index = TokenSums(values.shape[2]), TokenIndex()
    for start in range(0, len(tokens), cuts):
        some = tokens[start : start + cuts]
        sums.add(FeatureChunk(start, some, None, values[start : start + cuts]), index.groups(some))
    return sums, index


def test_shares_are_adjusted_explained_variances(text: tuple[Tensor, Tensor, Tensor]) -> None:
    _, values, tokens = text
    sums, index = sums_of(tokens, values, 60)
    shares = sums.shares(index)
    n = tokens.numel()
    eta = explained_variance(values.flatten(0, 1), tokens.flatten())
    for j in range(values.shape[2]):
        adjusted = max(0.0, 1 - (1 - eta[j].item()) * (n - 1) / (n - 7))
        assert shares["token"][j].share == pytest.approx(adjusted, abs=1e-10)
    assert shares["token"][4].share < 0.02  # noise
    assert shares["token"][0].tokens[0] == 1
    assert shares["previous"][1].share > 0.9 > MIN_SHARE > shares["token"][1].share
    assert shares["next"][2].share > 0.9


def test_named_tokens_explain_what_their_presence_does(text: tuple[Tensor, Tensor, Tensor]) -> None:
    """The squared correlation with whether one of them is there, less than what all tokens explain."""
    _, values, tokens = text
    sums, index = sums_of(tokens, values, 7)
    shares, n = sums.shares(index), tokens.numel()
    for j in range(values.shape[2]):
        found = shares["token"][j]
        there = torch.isin(tokens, torch.tensor(found.tokens)).double().flatten()
        x = values[:, :, j].flatten()
        r2 = torch.corrcoef(torch.stack([x, there]))[0, 1].item() ** 2
        assert found.named == pytest.approx(max(0.0, 1 - (1 - r2) * (n - 1) / (n - 2)), abs=1e-10)
        assert found.low == bool(x[there > 0].mean() < x.mean())
    assert shares["token"][0].tokens == (1, 2)
    assert shares["token"][0].opposite == (3,)
    assert shares["token"][0].share > shares["token"][0].named > 0.8
    flipped, _ = sums_of(tokens, -values, 60)
    assert flipped.shares(index)["token"][0].low


def test_a_context_is_a_token_that_came_before(text: tuple[Tensor, Tensor, Tensor]) -> None:
    rare, values, _ = text
    shares = sums_of(rare, values, 60)[0].shares(sums_of(rare, values, 60)[1])
    found = shares["context"][3]
    assert found.tokens == (6,)
    truth = torch.stack([(rare[:, max(0, t - WINDOW) : t] == 6).any(1) for t in range(20)], 1).double()
    x, y = values[:, 1:, 3].flatten(), truth[:, 1:].flatten()  # nothing comes before position 0
    expected = torch.corrcoef(torch.stack([x, y]))[0, 1].item() ** 2
    n, whole = len(x), values[:, :, 3].flatten()
    part = x.var(correction=0) * n / (whole.var(correction=0) * len(whole))
    assert found.share == pytest.approx((1 - (1 - expected) * (n - 1) / (n - 2)) * part.item(), abs=1e-10)


@pytest.mark.parametrize(("kind", "apart"), [("previous", 0), ("next", 19)])
def test_a_position_without_a_token_before_or_after_it_is_explained_by_none(
    text: tuple[Tensor, Tensor, Tensor], kind: str, apart: int
) -> None:
    """The share of the tokens alone, where the first or the last position stands far out."""
    _, values, tokens = text
    x = values[:, :, 1 if kind == "previous" else 2].clone()
    x[:, apart] += 20
    sums, index = sums_of(tokens, x[..., None], 7)
    known = x[:, 1:] if kind == "previous" else x[:, :-1]
    groups = tokens[:, :-1] if kind == "previous" else tokens[:, 1:]
    eta = explained_variance(known.reshape(-1, 1), groups.flatten()).item()
    n = known.numel()
    part = (known.var(correction=0) * n / (x.var(correction=0) * x.numel())).item()
    (share,) = sums.shares(index)[kind]
    assert share.share == pytest.approx((1 - (1 - eta) * (n - 1) / (n - 7)) * part, abs=1e-10)
    assert share.share < 0.15
    assert sums.shares(index)["context"][0].share < 0.05


def test_tokens_that_occur_once_explain_nothing() -> None:
    values = torch.randn(1, 40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums, index = sums_of(torch.arange(40)[None], values, 1)
    assert all(one.share == 0 for of_kind in sums.shares(index).values() for one in of_kind)


def test_chunks_and_resumed_passes_give_the_same(text: tuple[Tensor, Tensor, Tensor]) -> None:
    _, values, tokens = text
    whole, index = sums_of(tokens, values, 60)
    cut, other = sums_of(tokens, values, 7)
    assert torch.equal(index.tokens, other.tokens)
    resumed, again = TokenSums(values.shape[2]), TokenIndex()
    half, known = sums_of(tokens[:30], values[:30], 30)
    vars(resumed).update(vars(half))
    again.restore(known.tokens)
    resumed.add(FeatureChunk(30, tokens[30:], None, values[30:]), again.groups(tokens[30:]))
    for kind, expected in whole.shares(index).items():
        for one in (cut.shares(other), resumed.shares(again)):
            assert [s.tokens for s in one[kind]] == [s.tokens for s in expected]
            assert [s.share for s in one[kind]] == pytest.approx([s.share for s in expected])


def feature(**known: Any) -> Feature:
    return Feature(index=1, label="", histogram=Histogram(edges=(0.0, 1.0), counts=(1,)), **known)


def labelled(one: Feature, shares: dict[Any, TokenShare] | None = None, isolated: bool = False) -> str:
    known = evidence(one, shares or {}, lambda token: NAMES[token], isolated)
    return label(one.model_copy(update={"evidence": known}), None)


def test_what_explains_most_is_the_label() -> None:
    placed = feature(positions=PositionStatistics(means=(9.0, 0.0, 0.1, 0.0), share=0.97))
    assert labelled(placed, {"token": TokenShare(0.6, (1,), 0.6)}) == "position 0 97%"
    slope = feature(positions=PositionStatistics(means=(1.0, 2.0, 3.0, 4.0), share=0.9))
    assert labelled(slope) == "position 90%"
    shares = {"token": TokenShare(0.95, (4, 5), 0.62), "previous": TokenShare(0.7, (0,), 0.7)}
    assert labelled(feature(), shares) == "after “the” 70%"
    assert labelled(feature(), {"token": TokenShare(0.8, (4, 5), 0.62)}) == "“␣Lily / ␣Tom” 62%"
    assert labelled(feature(), {"next": TokenShare(0.9, (6,), 0.55, low=True)}) == "low: before “↵” 55%"
    assert labelled(feature(), {"context": TokenShare(0.3, (0,), 0.3)}) == "with “the” 30%"
    assert labelled(feature(), isolated=True) == "variance of the norm"


def test_what_no_few_tokens_explain_is_not_named() -> None:
    """A hundred tokens may matter while the three strongest explain little."""
    wide = TokenShare(0.9, (4,), 0.1, opposite=(1,))
    assert labelled(feature(), {"token": wide}) == "token: “␣Lily” … “␣cat” 90%"
    low = TokenShare(0.9, (4,), 0.1, low=True, opposite=(1,))
    assert labelled(feature(), {"previous": low}) == "token before: “␣cat” … “␣Lily” 90%"
    assert labelled(feature(), {"token": TokenShare(0.49, (4,), 0.24)}) == NO_DESCRIPTION
    assert labelled(feature()) == ""  # nothing was looked at


def test_what_a_feature_does_is_evidence_and_the_label_where_nothing_else_is() -> None:
    up, down = (Push(name=" Lily", value=2.0),), (Push(name=" Tom", value=-1.0),)
    pushes = feature(effects=Effects(up=up, down=down, share=0.6))
    assert labelled(pushes) == "promotes “␣Lily” over “␣Tom”"
    assert labelled(pushes, {"token": TokenShare(0.55, (1,), 0.55)}) == "“␣cat” 55%, promotes “␣Lily”"
    low: dict[Any, TokenShare] = {"token": TokenShare(0.55, (1,), 0.55, low=True)}
    assert labelled(pushes, low) == "low: “␣cat” 55%, promotes “␣Tom”"
    known = evidence(pushes, low, lambda token: NAMES[token], False)
    assert [(item.kind, item.share, item.low) for item in known] == [
        ("direct effect", 0.6, False),
        ("token", 0.55, True),
        ("identity", 0.55, True),
    ]
    outstanding = feature(effects=Effects(up=up, down=down, share=0.01, contrast=MIN_CONTRAST))
    assert labelled(outstanding) == "promotes “␣Lily” over “␣Tom”"
    means = tuple(MeanPush(name=push.name, value=push.value, error=0.1) for push in (*up, *down))
    weak = feature(mean_effects=MeanEffects(up=means[:1], down=means[1:], share=0.2))
    assert [one.kind for one in evidence(weak, {}, str, False)] == ["mean effect"]
    assert labelled(weak) == NO_DESCRIPTION


def test_labels_fit_a_box() -> None:
    long = ["x" * 40, "y" * 30]
    known = evidence(feature(), {"context": TokenShare(0.9, (0, 1), 0.9)}, lambda t: long[t], False)
    text = label(feature(evidence=known), None)
    assert len(text) <= MAX_TEXT + 5
    assert text.endswith("90%")
