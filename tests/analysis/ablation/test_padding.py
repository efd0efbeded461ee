"""Padded samples of networks that see all positions at once: what a sample alone would give."""

import pytest
import torch
from torch import Tensor, nn

import interbasis
from interbasis.analysis.ablation.controls import with_predicted_labels
from interbasis.analysis.ablation.curves import sparsity_curves
from interbasis.analysis.ablation.masked_pass import ablate_edges
from interbasis.analysis.ablation.search import edges_required
from interbasis.data.samples import IGNORED_LABEL, Samples
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis.run.run import open_run

SAMPLES, POSITIONS = 24, 7


class Encoder(nn.Module):
    """Bidirectional attention and an MLP, with an answer for every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.inner, self.outer, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(h + self.outer(torch.relu(self.inner(h))))


class Pooled(Encoder):
    """One answer for the whole sequence."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).mean(1)


@pytest.fixture(scope="module", params=[Encoder, Pooled])
def padded(request: pytest.FixtureRequest) -> tuple[Network, InteractionGraph, Samples]:
    """A network, its graph, and padded samples labelled with what it says to each of them alone."""
    torch.manual_seed(0)
    model = request.param().double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight))
        tokens = torch.randint(1, 20, (SAMPLES, POSITIONS))
        lengths = torch.randint(2, POSITIONS + 1, (SAMPLES,))
        answers = [model(tokens[k : k + 1, :length])[0].argmax(-1) for k, length in enumerate(lengths)]
    if answers[0].ndim:
        labels = torch.full((SAMPLES, POSITIONS), IGNORED_LABEL)
        for k, answer in enumerate(answers):
            labels[k, : len(answer)] = answer
    else:
        labels = torch.stack(answers)
    for k, length in enumerate(lengths):
        tokens[k, length:] = 0
    data = Samples(SAMPLES, lambda a, b: (tokens[a:b], labels[a:b]), "tokens", lengths=lengths)
    network = interbasis.from_torch(model, tokens[:3, :5])
    return network, interbasis.build(network, data, progress=False).graph, data


def test_the_baseline_is_that_of_samples_alone(padded: tuple[Network, InteractionGraph, Samples]) -> None:
    network, graph, data = padded
    curves = sparsity_curves(network, graph, data, fractions=(0.1, 1.0), progress=False)
    assert curves.baseline == 1.0
    assert curves.whole.values[-1] == 1.0  # all edges kept
    assert curves.whole.values[0] < 1.0


def test_ablations_are_those_of_samples_alone(padded: tuple[Network, InteractionGraph, Samples]) -> None:
    network, graph, data = padded
    found = edges_required(network, graph, data, tolerance=0.05, progress=False)[-1]
    right = answers = 0
    for k in range(SAMPLES):
        inputs, labels = data.read(k, k + 1)
        length = int(data.lengths[k])
        outputs = ablate_edges(network, graph, inputs[:, :length], {found.source: found.mask}).argmax(-1)
        expected = labels if labels.ndim == 1 else labels[:, :length]
        right, answers = right + int((outputs == expected).sum()), answers + expected.numel()
    assert found.value == pytest.approx(right / answers)


def test_robust_counts_take_samples_of_different_lengths(
    padded: tuple[Network, InteractionGraph, Samples],
) -> None:
    network, graph, data = padded
    opened = open_run(graph, network, data, progress=False)
    found = opened.ablate(sections=(graph.section_names[-1],), robust=True, tolerance=0.05)
    robust = found.sections[graph.section_names[-1]].robust
    assert robust.ascent_samples == SAMPLES
    assert robust.count >= robust.plain
    assert robust.worst_at_count >= found.limit


def test_a_networks_own_answers_are_those_to_samples_alone(
    padded: tuple[Network, InteractionGraph, Samples],
) -> None:
    network, _, data = padded
    own = with_predicted_labels(network, data)
    assert torch.equal(own.read(0, SAMPLES)[1], data.read(0, SAMPLES)[1])
