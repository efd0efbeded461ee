"""Edges into active features that can go: masks and their gradients against automatic differentiation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from interbasis.analysis.dictionaries.ablation import EvaluatedData, MaskedPair, grid
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import silent
from interbasis.dictionaries.chain import Chain
from interbasis.dictionaries.edge_sums import DictionaryEdgeSettings, PairOfDictionaries
from interbasis.numerics.integration import rule
from interbasis.run.run import Run
from placed_dictionaries import by_autograd, dictionary
from tiny_models import random_model

TOKENS = torch.randint(0, 23, (4, 6), generator=torch.Generator().manual_seed(2))
GRADIENT = rule("gradient")


@pytest.fixture(params=[("ln1.0", "topk", "ln1.1", "topk"), ("mlp_in.0", "relu", "ln1.1", "jumprelu")])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A random GPT-2 with two dictionaries, and all edges between them stored."""
    monkeypatch.setattr("interbasis.dictionaries.strongest_edges.STORED_SHARE", 1.0)
    a, kind, b, other = request.param
    network = interbasis.from_hf(random_model("gpt2")).to(torch.float64)
    places = {a: dictionary(12, 20, kind, 1), b: dictionary(12, 16, other, 2)}
    return interbasis.build(network, TOKENS, dictionaries=places, norm_limit=0, progress=False)


def masked(run: Any) -> MaskedPair:
    network = run.computing
    data = EvaluatedData.from_data(network, TOKENS, None)
    settings = DictionaryEdgeSettings(GRADIENT, counted=run.counted)
    source, target = run.layers
    pair = PairOfDictionaries(network, source, target, settings)
    return MaskedPair(data, pair, run.graph.edges[0], run.graph.statistics[1], 0.0, silent)


def loss_with(run: Any, weights: Tensor) -> Tensor:
    """The mean cross-entropy with every stored edge times its weight, by autograd Jacobians."""
    network, (a, b), edges = run.computing, run.layers, run.graph.edges[0]
    frequency = run.graph.statistics[1].frequency.double()
    means = edges.mean.double() / frequency[edges.target.long()]
    total = torch.zeros(())
    for sample in TOKENS:
        chain = Chain((*network.sections[a.source_index : b.index], *b.through), GRADIENT)
        before = network.activations_at(a.index, sample[None])
        inner = [f[0] for f in chain.activations(network.activations_at(a.source_index, sample[None]))]
        z, vectors = a.encode(before), a.split(a.encode(before), before, inner[0][None])[0]
        jacobian = by_autograd(chain.sections, inner, GRADIENT)
        f = network.activations_at(b.index, sample[None])
        u = b.dictionary.preactivations(f[0][:, b.columns])
        active = b.dictionary.is_active(u)
        A = torch.zeros(len(sample), b.features, a.features, dtype=torch.float64)
        for t in range(len(sample)):
            for m, j in enumerate(z.indices[0, t].tolist()):
                A[:, :, j] += torch.einsum(
                    "kd,sde,e->sk", b.rows(torch.arange(b.features)), jacobian[:, :, t], vectors[t, m]
                )
        dropped = (1 - weights) * (A[:, edges.target.long(), edges.source.long()] - means)
        change = torch.zeros_like(u).index_add(1, edges.target.long(), -dropped)
        least = 0.0 if b.dictionary.threshold is None else b.dictionary.threshold
        moved = torch.where(u + change > least, u + change, 0.0)
        x = f.clone()
        x[0][:, b.columns] = f[0][:, b.columns] + ((moved - u) * active) @ b.dictionary.decoder
        for section in network.sections[b.index :]:
            x = section(x)
        logits = network.finish(x, sample[None])[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, sample[1:], reduction="sum")
    return total / (TOKENS.numel() - len(TOKENS))


def test_masks_and_their_gradients_are_those_of_autograd(run: Any) -> None:
    pair, edges = masked(run), run.graph.edges[0]
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(len(edges.rms), generator=generator) < 0.4
    everything, some = pair.evaluate([torch.ones_like(mask), mask])
    assert everything.value == pytest.approx(pair.data.baseline.value, rel=1e-12)
    assert everything.error == pytest.approx(0, abs=1e-20)
    weights = mask.double().requires_grad_()
    expected = loss_with(run, weights)
    assert some.kept == mask.sum()
    assert some.value == pytest.approx(expected.item(), rel=1e-10)
    assert abs(some.value - everything.value) > 1e-4
    (slope,) = torch.autograd.grad(expected * (TOKENS.numel() - len(TOKENS)), weights)
    received = pair.gradients(mask)
    assert (received - torch.where(mask, 0.0, slope)).abs().max() <= 1e-10 * slope.abs().max()


def test_edges_required_pass_and_the_number_below_fails(run: Any, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    result = run.ablate(tolerance=0.02, robust=True)
    again = interbasis.open_run(
        tmp_path / "run", run.network, TOKENS, dictionaries=run.given_dictionaries, progress=False
    )
    assert again.stored(type(result)) == result
    (pair,) = result.pairs.values()
    values = {trial.kept: trial.value for trial in pair.trials}
    assert list(values) == sorted(values)
    assert all(value <= result.limit for kept, value in values.items() if kept >= pair.count)
    below = max((kept for kept in values if kept < pair.count), default=None)
    assert below is None or values[below] > result.limit
    assert result.limit == pytest.approx(result.baseline + 0.02)
    assert pair.robust_count is None or pair.robust_count >= pair.count
    assert pair.opposed_value >= values[pair.count] - 1e-6
    assert pair.epsilon == run.graph.edges[0].rms[pair.count - 1].item()
    with pytest.raises(InterbasisError, match=r"no edges begin at 'ln1\.1'"):
        run.ablate(sections=["ln1.1"])


def test_a_grid_is_even_and_ends_with_the_largest() -> None:
    assert grid(0, 3) == [1, 2, 3]
    assert grid(5, 5) == []
    assert grid(100, 1000)[-1] == 1000
    assert all(100 < number <= 1000 for number in grid(100, 1000))
