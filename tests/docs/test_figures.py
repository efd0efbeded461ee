"""A figure that stands in two places is the same in both."""

import re

import pytest

from pages import README

FIGURES = {
    "edges of the demo": {
        "README.md": r"\*\*(\d+) of ([\d,]+) edges are enough",
        "README.md, output": r"(\d+) of ([\d,]+) in attn_in\.0 → mlp_in\.0",
        "docs/index.md": r"attention layer (\d+) of ([\d,]+) edges are enough",
        "docs/method.md": r'"(\d+) of ([\d,]+) edges" means',
    },
    "edges there are in the demo": {
        "docs/method.md": r"93 · 46 = ([\d,]+)\.",
        "README.md": r'"Of ([\d,]+)" counts',
    },
    "version": {
        "CITATION.cff": r"(?m)^version: (\S+)$",
        "README.md": r"neural networks\*, version ([\d.]+)\.\n",
        "docs/index.md": r"neural networks\*, version ([\d.]+)\. ",
    },
    "modulus": {
        "README.md": r"computes \*x \+ y\* mod (\d+)\.",
        "docs/index.md": r"computes \*x \+ y\* mod (\d+)\.",
    },
    "features of the demo": {
        "README.md": r"\*\*(\w+) features carry the whole answer, waves of x \+ y with (\w+) frequencies",
        "docs/index.md": r"(\w+) features carry the whole answer: waves of\nx \+ y with (\w+) frequencies",
    },
    "time of the demo": {
        "README.md": r"computes this in (a minute or two)",
        "docs/index.md": r"computes this in (a minute or two)",
        "docs/cli.md": r"a report and a page, in (a minute or two)",
    },
    "hours of GPT-2 small on two threads": {
        "docs/results/benchmarks.md": r"12 blocks, 500 × 1,024 tokens, hours\*\* \| \*\*([\d.]+)\*\*",
        "README.md": r"tokens: ([\d.]+) hours of two CPU threads",
    },
    "largest error of closed forms": {
        "docs/method.md": r"per-sample Jacobians \(`tests/reference\.py`, relative error at most ([\w-]+)\)",
        "README.md": r"per-sample Jacobians \(relative error at most ([\w-]+)\)",
    },
    "speed of an MLP's basis": {
        "README.md": r"basis of an MLP takes about (1/\d+) of the time",
        "docs/results.md": r"MLP bases in (1/\d+),",
    },
    "speed of attention's basis": {
        "README.md": r"attention (1/\d+) to\s+(1/\d+)",
        "docs/results.md": r"attention in (1/\d+) to (1/\d+)",
    },
    "attention's ratios": {
        "docs/results/benchmarks.md": r"\| attention, d = 768.*\| \*\*(\d+)\*\* \|[\s\S]*?"
        r"\| attention, basis, exact \(4,096 tokens\).*\*\*(\d+)\*\*",
        "docs/results.md": r"attention in 1/(\d+) to 1/(\d+)",
    },
    "types in closed form": {
        "docs/families.md": r"(\d+) of (\d+) have closed forms, (\d+) more are taken block by block",
        "docs/results/model_types.md": r"(\d+) of (\d+) causal types in closed form and (\d+) block by block",
    },
    "all types in closed form": {
        "docs/families.md": r"(\d+) of \d+ have closed forms",
        "docs/results.md": r"causal types of transformers are taken, (\d+) of them in closed form",
        "CHANGELOG.md": r"(\d+) causal types of transformers in closed form",
    },
    "claims of modular addition": {
        "docs/results/reproduction_modadd.md": r"(\d) reproduced, (\d) differs, (\d) not reproduced",
        "docs/results.md": r"(\d) of 8 claims on five models trained here, (\d) differs, (\d) not reproduced",
    },
    "claims of CIFAR-10": {
        "docs/results/reproduction_cifar10.md": r"(\d) reproduced, (\d) differ;",
        "docs/results.md": r"(\d) of 6 claims reproduced, (\d) differ",
    },
    "Λ and the loss from dropping a direction": {
        "docs/results/yardstick.md": r"\| LIB \(378\) \| [\d.]+ \([\d.]+\) \| \*\*([\d.]+) ",
        "docs/results.md": r"\*\*Yes\*\*: rank correlation ([\d.]+) with the loss",
        "docs/results.md, all": r"dropping a direction \(rank correlation ([\d.]+),",
    },
    "variance and the loss from dropping a direction": {
        "docs/results/yardstick.md": r"\| LIB \(378\) \| ([\d.]+) ",
        "docs/results.md": r"loss from dropping it, variance ([\d.]+);",
        "docs/results.md, all": r"rank correlation [\d.]+, variance ([\d.]+)\)",
    },
    "labels beyond random directions": {
        "docs/results/labels.md": r"\*\*(\d+ %) \((\d+ to \d+ %)\) of LIB's .+ and (\d+ %) \((\d+ to \d+ %)",
        "docs/results.md": r"on a TinyStories GPT-2 (\d+ %) \((\d+ to \d+ %); PCA: (\d+ %), (\d+ to \d+ %)\)",
    },
    "features with a label": {
        "docs/results/traces.md": r"as often as PCA's \((\d+) and (\d+) %\), .+ rotation's \((\d+) %\)",
        "docs/results.md": r"easy as in PCA \((\d+) % and (\d+) % labelled\), .+ rotation \((\d+) %\)",
    },
    "signs of effects on new prompts": {
        "docs/results/traces.md": r"the sign of the change is right in (\d+) % of cases",
        "docs/results.md": r"the sign in about (\d+) % of cases on new prompts",
    },
}  # fmt: skip
"""Every figure with the places where it stands, the first of which is its source."""
ALONE = {
    "1, 15, 18", "39",  # the demo's frequencies, which its output has in another order
    "2405.10928", "10⁸", "10¹⁰", "512,000", "3.11", "2026", "2024",
    "41", "1.3 GB",  # the installation
    "5",  # per cent: the error of a build by default
}  # fmt: skip
"""Numbers of README.md that no page repeats, or that other tests compare."""
NUMBER = re.compile(r"(?<![\w-])\d[\d.,/⁰¹²³⁴-⁹]*(?:e-\d+)?(?: GB)?(?<![.,])")


def text_of(place: str) -> str:
    name = place.partition(",")[0]
    return (README.parent / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_wherever_it_stands(name: str) -> None:
    found = {place: re.findall(pattern, text_of(place)) for place, pattern in FIGURES[name].items()}
    assert all(len(values) == 1 for values in found.values()), found
    assert len({str(values) for values in found.values()}) == 1, found


def test_every_number_of_the_readme_is_compared_or_stands_there_alone() -> None:
    """A new number belongs into FIGURES where a page has it, too, and into ALONE where none has."""
    text = text_of("README.md")
    compared = {
        part
        for places in FIGURES.values()
        for place, pattern in places.items()
        if place == "README.md"
        for match in re.finditer(pattern, text)
        for part in match.groups()
    }
    prose = re.sub(r"```.*?```|<picture>.*?</picture>|\]\([^)]*\)|`[^`]*`", "", text, flags=re.DOTALL)
    numbers = set(NUMBER.findall(re.sub(r"1, 15, 18 and 39", "1, 15, 18", prose)))
    assert numbers - compared - ALONE - {"1", "15", "18"} == set()


def test_areas_of_the_overview_are_those_of_the_controls() -> None:
    tables = re.split(r"^## ", text_of("docs/results/controls.md"), flags=re.MULTILINE)
    overview = text_of("docs/results.md")
    row = re.compile(r"^\| LIB(?:, (?:shuffled|redrawn) weights, seed \d)? \|.*\| ([\d.]+) \(", re.MULTILINE)
    for model in ("modular addition", "CIFAR-10", "TinyStories"):
        measured = [row.findall(table) for table in tables if table.lower().startswith(model.lower())]
        (shown,) = re.findall(rf"^\| {model} \([a-zA-Z].*$", overview, re.MULTILINE)
        assert len(measured) == 1
        assert len(measured[0]) >= 5
        assert re.findall(r"\b0\.\d+", shown) == measured[0]
