"""Fourier labels: known terms come back, and so do the paper's 120."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import interbasis
from cases import modular_addition, normal
from interbasis import features, modadd
from interbasis.analysis.features.fourier_labels import Form, Spectrum, surfaces
from interbasis.analysis.features.records import FourierTerm

REFERENCE_LAYERS = ("ln1.0", "ln2.0", "unembed")


def grid(p: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = 2 * math.pi / p * torch.arange(p, dtype=torch.float64)
    return angle[:, None], angle[None]


def term_surface(term: FourierTerm, p: int) -> torch.Tensor:  # [p, p]
    """A term as a function of x and y: Σ amplitude · trigonometric function."""
    x, y = (k * angle for k, angle in zip(term.frequencies, grid(p), strict=True))
    if "·" in term.text:
        wave = torch.cos if term.text.startswith("cos") else torch.sin
        return term.amplitudes[0] * wave(x + term.phases[0]) * wave(y + term.phases[1])
    if len(term.phases) == 2:
        first = term.amplitudes[0] * torch.cos(x + term.phases[0])
        return first + term.amplitudes[1] * torch.cos(y + term.phases[1])
    return term.amplitudes[0] * torch.cos(x + (-y if "-" in term.text else y) + term.phases[0])


def same_angle(a: float, b: float) -> bool:
    return abs(math.remainder(a - b, 2 * math.pi)) < 1e-9


def test_a_sum_of_cosines_is_labelled_as_one() -> None:
    x, y = grid(113)
    surface = math.sqrt(0.7) * torch.cos(7 * x + 7 * y + 0.4) + math.sqrt(0.3) * torch.cos(
        31 * x + 31 * y - 2
    )
    (found,) = features.label(surface[None])
    assert found.text == "70% cos(7x+7y) + 30% cos(31x+31y)"
    assert [term.share for term in found.terms[:2]] == pytest.approx([0.7, 0.3], abs=1e-6)
    assert [term.phases[0] for term in found.terms[:2]] == pytest.approx([0.4, -2.0], abs=1e-9)
    assert found.terms[0].frequencies == (7, 7)


def test_a_difference_is_labelled_as_one_for_people_and_as_a_product_by_the_papers_rule() -> None:
    x, y = grid(29)
    surface = (torch.cos(3 * x - 5 * y + 1) + 0.4 * torch.cos(3 * x + 5 * y))[None]
    assert features.label(surface)[0].terms[0].text == "cos(3x-5y)"
    assert features.label(surface)[0].terms[0].phases[0] == pytest.approx(1.0)
    assert features.label(surface, "paper")[0].terms[0].text == "cos(3x)·cos(5y)"


@pytest.mark.parametrize("form", ["leading", "paper"])
def test_both_product_forms(form: Form) -> None:
    x, y = grid(31)
    surface = 3 * torch.cos(4 * x + 0.3) * torch.cos(4 * y - 1.1) - torch.sin(4 * x + 0.3) * torch.sin(
        4 * y - 1.1
    )
    (found,) = features.label(surface[None], form)
    assert [term.text for term in found.terms[:2]] == ["cos(4x)·cos(4y)", "sin(4x)·sin(4y)"]
    assert [term.share for term in found.terms[:2]] == pytest.approx([0.9, 0.1], abs=1e-6)
    cosines = found.terms[0]
    flip = 0.0 if same_angle(cosines.phases[0], 0.3) else math.pi  # cos·cos stays when both turn by π
    assert same_angle(cosines.phases[0], 0.3 + flip)
    assert same_angle(cosines.phases[1], -1.1 + flip)
    assert found.terms[1].amplitudes[0] == pytest.approx(-1)


def test_a_sine_product_that_leads() -> None:
    x, y = grid(23)
    surface = torch.sin(2 * x) * torch.sin(6 * y)
    (found,) = features.label(surface[None])
    rebuilt = sum(term_surface(term, 23) for term in found.terms)
    assert (rebuilt - surface).abs().max() < 1e-12
    assert found.share == pytest.approx(1.0, abs=1e-6)  # a product with phases is one term, however named


def test_single_variables_are_one_term_where_their_shares_are_alike() -> None:
    x, y = grid(19)
    alike = 1.5 + torch.cos(3 * x + 0.2) + torch.cos(3 * y - 0.7)
    apart = torch.cos(3 * x + 0.2) + 0.5 * torch.cos(3 * y - 0.7)
    first, second = features.label(torch.stack([alike, apart]))
    assert {term.text: pytest.approx(term.share, abs=1e-6) for term in first.terms[:2]} == {
        "const": 2.25 / 3.25,
        "cos(3x)+cos(3y)": 1 / 3.25,
    }
    assert first.terms[1].phases == pytest.approx((0.2, -0.7))
    assert [(t.text, round(t.share, 6)) for t in second.terms[:2]] == [("cos(3x)", 0.8), ("cos(3y)", 0.2)]


@given(p=st.integers(2, 13), seed=st.integers(0, 99), form=st.sampled_from(["leading", "paper"]))
def test_all_terms_together_are_the_feature_for_any_p(p: int, seed: int, form: Form) -> None:
    surface = normal(3, p, p, seed=seed)
    for found, whole in zip(features.label(surface, form, terms=p * p), surface, strict=True):
        assert sum(term.share for term in found.terms) == pytest.approx(1.0, abs=1e-12)
        assert (sum(term_surface(term, p) for term in found.terms) - whole).abs().max() < 1e-11


def test_shares_are_those_of_a_least_squares_fit() -> None:
    """The share of a term is the power of its best fit by cosine and sine: an independent reference."""
    p, surface = 11, normal(11, 11, seed=5)
    x, y = grid(p)
    design = torch.stack([torch.cos(2 * x + 3 * y), torch.sin(2 * x + 3 * y)]).flatten(1).T
    fit = design @ torch.linalg.lstsq(design, surface.flatten()[:, None]).solution
    share = (fit.square().sum() / surface.square().sum()).item()
    spectrum = Spectrum(surface[None])
    assert spectrum.sums[0, 1 * spectrum.K + 2].item() == pytest.approx(share, rel=1e-10)


def test_a_feature_of_several_positions_is_summed_over_them() -> None:
    case = modular_addition()
    layer = interbasis.build(case.network, case.inputs, edge_method=None).graph.layers[0]
    by_hand = (case.network.activations(modadd.pairs(7).inputs)[0] @ layer.transform.T).sum(1)
    assert (surfaces(case.network, layer) - by_hand.T.view(-1, 7, 7)).abs().max() < 1e-12
    assert features.fourier(case.network, layer)[0].text == "100% const"


def test_a_feature_that_is_zero_has_a_label() -> None:
    assert features.label(torch.zeros(1, 5, 5))[0].share == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((torch.zeros(3, 4, 5),), r"expected features over all pairs"),
        ((torch.zeros(3, 4, 4), "best"), r"'leading' or 'paper'"),
        ((torch.zeros(3, 4, 4), "paper", 0), r"at least one term"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(interbasis.InterbasisError, match=reason):
        features.label(*arguments)


def test_other_networks_are_refused() -> None:
    network = interbasis.from_torch(torch.nn.Sequential(torch.nn.Linear(3, 2)))
    layer = interbasis.LayerBasis("linear.0", torch.eye(4), torch.eye(4))
    with pytest.raises(interbasis.InterbasisError, match="modular addition"):
        features.fourier(network, layer)


PAPERS_FLOOR, OUR_FLOOR = 0, None
SLOW_GRAPHS = [
    ("lib", 0, OUR_FLOOR),
    ("lib", 1, PAPERS_FLOOR),
    ("pca", 0, PAPERS_FLOOR),
    ("pca", 1, OUR_FLOOR),
]
GRAPHS = [("lib", 0, PAPERS_FLOOR), ("lib", 1, OUR_FLOOR), ("pca", 0, OUR_FLOOR), ("pca", 1, PAPERS_FLOOR)]


@pytest.mark.parametrize(
    ("kind", "seed", "floor"),
    GRAPHS + [pytest.param(*graph, marks=pytest.mark.slow) for graph in SLOW_GRAPHS],
)
def test_the_papers_labels_and_counts(
    shared: Path,
    paper_graph: Callable[..., interbasis.InteractionGraph],
    kind: str,
    seed: int,
    floor: float | None,
) -> None:
    """All 120 stored first terms, exactly to the per cent, and the monosemanticity counts."""
    reference = json.loads((shared / "modadd" / "paper_reference.json").read_text())[f"{kind}_seed{seed}"]
    network = modadd.load(shared / "modadd" / f"seed{seed}.safetensors")
    layers = paper_graph(kind, seed, relative_threshold=floor).layers[:3]
    for name, layer in zip(REFERENCE_LAYERS, layers, strict=True):
        labels = features.fourier(network, layer, "paper")
        expected = [(per_cent, text.replace(" * ", "·").replace(" ", ""))
                    for per_cent, text in reference["labels_first_term_top10"][name]]  # fmt: skip
        found = [(round(100 * label.share), label.terms[0].text) for label in labels[:10]]
        assert found == expected, name
        counts = features.monosemantic(labels)
        assert counts.paper == reference["monosemantic_top10_incl_const(paper)"][name]
        assert counts.without_constant == sum(round(100 * label.share) > 90 for label in labels[1:11])


def test_what_people_read_names_the_difference_that_the_paper_misses(
    shared: Path, paper_graph: Callable[..., interbasis.InteractionGraph]
) -> None:
    network = modadd.load(shared / "modadd" / "seed0.safetensors")
    label = features.fourier(network, paper_graph("lib", 0, relative_threshold=PAPERS_FLOOR).layers[2])[9]
    assert label.text.startswith("58% cos(18x-18y)")
