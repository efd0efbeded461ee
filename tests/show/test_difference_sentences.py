"""Sentences about the difference of two models say what was measured."""

import copy

import torch
from torch import nn

import interbasis
from cases import CASES, normal
from interbasis.analysis.differences.records import ChangedDirection
from interbasis.analysis.features.records import TokenExample
from interbasis.models import modadd
from interbasis.show.difference_sentences import difference_claims, difference_findings
from interbasis.show.difference_tables import active_tokens


def test_one_linear_section_that_differs() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)).double()
    other = copy.deepcopy(module)
    other[2].weight.data += 0.3 * normal(3, 7, seed=1)
    networks = interbasis.from_torch(module), interbasis.from_torch(other)
    record = interbasis.diff(*networks, normal(60, 5, seed=2), progress=False).record
    leading, shares, end, treated = difference_findings(record)
    name = record.sections[record.leading].name
    assert leading.startswith(f"The difference arises in {name}, which adds ")
    assert shares.startswith("Sections that differ: 1 of 2.")
    assert end.endswith("is passed on.")
    assert treated.startswith(f"Of what {name} treats differently,")
    assert "No other section differs." in [claim.because for claim in difference_claims(record)]


def test_embeddings_and_all_sections_differ() -> None:
    case = CASES["modadd"]()
    weights = {name: w * (1 + 0.1 * normal(*w.shape, seed=3)) for name, w in (case.weights or {}).items()}
    record = interbasis.diff(case.network, modadd.from_weights(weights), case.inputs, progress=False).record
    embeddings, leading, *_, last = difference_findings(record)
    share = 100 * record.layers[case.network.layers[0]].arising
    assert embeddings.startswith(f"Embeddings differ by {share:.3g} % ")
    assert embeddings.endswith(f" at {case.network.layers[0]}.")
    assert leading.startswith("The largest difference arises in ")
    assert " adds " in leading.partition("; the next, ")[2]
    assert "reads differently" in last or "treats differently" in last


def test_tokens_are_shown_on_one_line() -> None:
    def example(*tokens: str) -> TokenExample:
        last = len(tokens) - 1
        return TokenExample(
            value=1.0, sample=0, position=last, tokens=tokens, activations=(0.0,) * len(tokens), active=last
        )

    examples = example("s", ".", "\n", "Th"), example("25", "75", "="), example("=")
    assert active_tokens(ChangedDirection(share=0.5, examples=examples)) == "s.↵[Th] · 25 75 [=] · [=]"
