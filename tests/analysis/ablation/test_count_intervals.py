"""Intervals of the edges required: how often they hold the count of the population behind the data."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import interbasis
from interbasis.analysis.ablation.bootstrap import FINE, count_on_draws
from interbasis.analysis.ablation.evaluation import Score
from interbasis.analysis.ablation.search import edges_required
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network

SETS = 60
LEAST = 53
"""Intervals that hold the true count, of 60. Where each does so with probability 0.95, fewer than 53 do with
probability 0.010 (binomial)."""


def population(
    shares: list[float],
) -> tuple[Network, InteractionGraph, Callable[[int, int], tuple[Tensor, Tensor]]]:
    """A network whose accuracy is known for every number of edges, and a source of data for it.

    A sample is the unit vector j with probability ``shares[j]`` and zero otherwise. It is a linear
    classifier's one way to see that the answer is 1, so it is answered rightly if and only if edge j is kept,
    and the accuracy with the first k edges is 1 − Σ_{j ≥ k} shares[j]. Edges rank by the shares, which fall.
    """
    probabilities = torch.tensor([1 - sum(shares), *shares], dtype=torch.float64)
    classifier = nn.Linear(len(shares), 2).double()
    with torch.no_grad():
        classifier.weight.copy_(torch.tensor([[0.0], [1.6]]).expand(2, len(shares)))
        classifier.bias.copy_(torch.tensor([0.0, -1.0]))

    def draw(samples: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.multinomial(probabilities, samples, replacement=True, generator=generator)
        return torch.eye(len(shares) + 1, dtype=torch.float64)[chosen][:, 1:], (chosen > 0).long()

    network = interbasis.from_torch(nn.Sequential(classifier))
    return network, interbasis.build(network, draw(20_000, SETS)[0], basis="neuron").graph, draw


def falling(total: float, number: int, slow: float) -> list[float]:
    weights = 1 / (torch.arange(number, dtype=torch.float64) + slow)
    return (total * weights / weights.sum()).tolist()


FEW = [0.074, 0.072, 0.07, 0.068, 0.066, *[0.001] * 15]


@pytest.mark.parametrize(
    ("shares", "tolerance", "samples", "count", "widest"),
    [
        (FEW, 0.05, 1000, 5, 1),  # four edges fail and five pass on nearly all data
        (FEW, 0.075, 300, 5, 2),  # four edges nearly pass
        (falling(0.4, 200, 30), 0.15, 300, 77, 70),
        ([0.001] * 10, 0.05, 100, 0, 1),
    ],
)
def test_intervals_hold_the_populations_count(
    shares: list[float], tolerance: float, samples: int, count: int, widest: int
) -> None:
    remaining = [sum(shares[k:]) for k in range(len(shares) + 1)]
    assert count == next(k for k, lost in enumerate(remaining) if lost <= tolerance)
    network, graph, draw = population(shares)
    intervals = []
    for seed in range(SETS):
        found = edges_required(
            network, graph, draw(samples, seed), tolerance=tolerance, stable=False, intervals=True
        )[0]
        assert found.interval[0] <= found.count <= found.interval[1]
        assert torch.equal(found.draws, found.draws.round())
        intervals.append(found.interval)
    assert sum(low <= count <= high for low, high in intervals) >= LEAST
    assert all(isinstance(end, int) for ends in intervals for end in ends)
    assert sum(high - low for low, high in intervals) / SETS <= widest  # it says something, too


class Cliffs:
    """Masks of edges of which the samples need so many; what is looked at is counted."""

    def __init__(self, needs: torch.Tensor, candidates: int) -> None:
        self.needs, self.candidates = needs, candidates
        self.losses: dict[int, torch.Tensor] = {}

    def whole(self, kept: int) -> None:
        self.losses[kept] = (self.needs > kept).double()


@pytest.mark.parametrize("cliff", [1, 2, 5, 40, 799, 3000])
def test_the_end_of_a_cliff_is_inside(cliff: int) -> None:
    """A tenth of the samples needs exactly so many edges, the others none: no resampling moves the count."""
    masks = Cliffs(torch.where(torch.arange(500) < 50, cliff, 0), candidates=3000)
    baseline = Score("accuracy", torch.zeros(500).double(), torch.ones(500).double())
    draws, interval = count_on_draws(masks, cliff, baseline, tolerance=0.05)
    assert interval == (cliff, cliff)
    assert set(draws.tolist()) == {cliff}
    assert len(masks.losses) <= 5


def test_far_draws_are_followed() -> None:
    """One sample of 40 needs 1,000 edges; it is in about 64 % of the draws, and twice or more in 26 %."""
    needs = torch.cat([torch.full((1,), 1000), torch.zeros(39)])
    baseline = Score("accuracy", torch.zeros(40).double(), torch.ones(40).double())
    for count, tolerance in ((0, 1 / 40), (1000, 0.001)):
        masks = Cliffs(needs, candidates=5000)
        _, (low, high) = count_on_draws(masks, count, baseline, tolerance)
        assert low == 0
        assert 1000 <= high <= 1000 * (1 + FINE)
        assert len(masks.losses) < 25
