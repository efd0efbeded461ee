"""Transformers with programs in their weights: they compute them, and the truth about them holds."""

import pytest
import torch

from interbasis_studies.known import ProgramSpec, fit, plant_program, score
from interbasis_studies.known.programs import PROGRAMS

SEQUENCES = 60


def expected(program: str, tokens: list[int]) -> list[int | None]:
    """The program in plain Python: an answer for every position, None where it has none."""
    if program == "reverse":
        return tokens[::-1]
    if program == "histogram":
        return [0, *(tokens.count(token) for token in tokens[1:])]
    if program == "sort":
        return [None, *sorted(tokens[1:])]
    if program == "brackets":
        balances = [sum(1 - 2 * token for token in tokens[: t + 1]) for t in range(len(tokens))]
        return [int(balances[t] == 0 <= min(balances[: t + 1])) for t in range(len(tokens))]
    previous = [tokens[0], *tokens[:-1]]  # the first position attends to itself
    before = [[s for s in range(t + 1) if previous[s] == tokens[t]] for t in range(len(tokens))]
    copies = [{tokens[s] for s in places} for places in before]
    return [found.pop() if len(found) == 1 else None for found in copies]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_computes_the_program(program: str) -> None:
    known = plant_program(ProgramSpec(program=program, sequences=SEQUENCES, sharpness=20), seed=1)
    outputs = known.network(known.inputs)
    wanted = [expected(program, row) for row in known.inputs.tolist()]
    places = [
        (n, t, answer) for n, row in enumerate(wanted) for t, answer in enumerate(row) if answer is not None
    ]
    assert len(places) > SEQUENCES
    for n, t, answer in places:
        row = outputs[n, t]
        if program == "brackets":
            assert row.item() == pytest.approx(answer, abs=1e-9)
        else:
            assert row.argmax().item() == answer
            assert row.max().item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_only_what_the_truth_names_acts(program: str) -> None:
    """Other variables of an input, drawn anew, change no variable but those that read them."""
    spec = ProgramSpec(program=program, sequences=SEQUENCES, sharpness=3)
    known, truth = plant_program(spec, seed=0), plant_program(spec, seed=0).truth
    sizes = PROGRAMS[program](3.0).sizes
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(list(sizes.values())))
    generator = torch.Generator().manual_seed(0)
    for k, section in enumerate(known.network.sections):
        f = known.network.activations_at(k, known.inputs)
        before = section(f)[..., 1:] @ torch.linalg.pinv(truth.mixings[k + 1]).T
        owners = owner if k + 1 < len(known.network.sections) else truth.parts[-1]
        for part in range(len(sizes)):
            change = torch.zeros(*f.shape[:2], len(owner), dtype=torch.float64)
            change[..., owner == part] = torch.rand(
                *f.shape[:2], int((owner == part).sum()), generator=generator, dtype=torch.float64
            )
            moved = f.clone()
            moved[..., 1:] += change @ truth.mixings[k].T
            after = section(moved)[..., 1:] @ torch.linalg.pinv(truth.mixings[k + 1]).T
            touched = {int(owners[i]) for i in ((after - before).abs().amax((0, 1)) > 1e-9).nonzero()[:, 0]}
            allowed = set(truth.acts_on[k][:, part].nonzero()[:, 0].tolist())
            assert touched <= allowed, (k, part)
            if k + 1 < len(known.network.sections):
                assert touched >= allowed & set(owners.tolist()), (k, part)


def test_the_best_rotation_finds_more_than_a_random_one() -> None:
    known = plant_program(ProgramSpec(program="induction", sequences=100), seed=0)
    scores = {basis: score(known, fit(known, basis)) for basis in ("lib", "random", "ceiling")}
    assert scores["ceiling"].features == pytest.approx(1, abs=1e-6)
    assert scores["ceiling"].features >= scores["lib"].features > scores["random"].features
    assert scores["lib"].edge_auroc > scores["random"].edge_auroc
