"""Mean effects by random signs, against full Jacobians."""

import pytest
import torch

import interbasis
from interbasis.features.mean_effects import mean_jacobians, records_of
from tiny_models import random_model, tokens

POPULATION, POSITIONS = 60, 4


@pytest.fixture(scope="module")
def population():
    """A small model, its bases, and the exact Jacobians at the own position of every sample."""
    network = interbasis.from_hf(random_model("gpt2")).double()
    data = tokens(POPULATION, POSITIONS)
    graph = interbasis.build(network, data, dtype="float64", edge_method=None)
    layers = [network.layers.index(name) for name in ("mlp_in.0", "attn_in.1")]
    exact = {}
    for k in layers:
        f = network.activations(data)[k].detach().requires_grad_()
        h = f
        for section in network.sections[k:]:
            h = section(h)
        rows = [
            [torch.autograd.grad(h[:, s, i].sum(), f, retain_graph=True)[0][:, s] for i in range(h.shape[2])]
            for s in range(POSITIONS)
        ]
        jacobian = torch.stack([torch.stack(row, 1) for row in rows], 1)  # [n, S, h, width]
        exact[k] = torch.einsum("nshw,wj->njh", jacobian, graph.layers[k].inverse) / POSITIONS
    return network, graph, data, exact


def estimated(population, data, seed: int = 0, sources: int = 1):
    network, graph, _, _ = population
    features = [range(layer.features) for layer in graph.layers[:-1]]
    return mean_jacobians(network, graph.layers, data, features, sources, seed)


def test_estimates_are_unbiased_and_their_errors_calibrated(population):
    """Samples drawn from the population with replacement: z-scores of all entries have variance about 1."""
    _, _, data, exact = population
    scores = []
    for seed in range(4):
        drawn = torch.randint(0, POPULATION, (64,), generator=torch.Generator().manual_seed(seed))
        found = estimated(population, data[drawn], seed)
        for k, truth in exact.items():
            groups = found[k].groups[:, 1:, 1:]  # the constant moves nothing and is not moved
            error = groups.std(0) / len(groups) ** 0.5
            scores.append(((groups.mean(0) - truth.mean(0)[1:, 1:]) / error).flatten())
    z = torch.cat(scores)
    assert abs(z.mean()) < 0.15
    assert 0.85 < z.std() < 1.2
    assert 0.91 < (z.abs() < 1.96).double().mean() < 0.985


def test_many_signs_come_to_the_mean_jacobian(population):
    _, _, data, exact = population
    found = estimated(population, data[:8], sources=60)
    for k, truth in exact.items():
        mean = truth[:8].mean(0)
        assert (found[k].groups.mean(0) - mean).norm() < 0.45 * mean.norm()


def test_outputs_are_named_with_errors(population):
    network, graph, data, _ = population
    k = network.layers.index("attn_in.1")
    jacobian = estimated(population, data[:16])[k]
    records = records_of(jacobian, network, graph.layers[-1], [f"t{i}" for i in range(23)])
    assert len(records) == graph.layers[k].features
    weight = network.tail[0].skip  # [outputs, width]
    moved = jacobian.groups.mean(0) @ weight.T
    moved = (moved - moved.mean(1, keepdim=True))[3] * graph.layers[k].deviation(3)
    best = int(moved.argmax())
    assert records[3].up[0].name == f"t{best}"
    assert records[3].up[0].value == pytest.approx(moved[best].item())
    assert records[3].up[0].error > 0
    assert records[3].down[0].value == pytest.approx(moved.min().item())
    means, errors = jacobian.effects(network, graph.layers[-1])
    squares = means.square() - errors.square()
    clear = [k for k, record in enumerate(records) if record.share > 0]
    assert 0 < len(clear) < len(records)
    for k in clear:
        ends = means[k].argmax(), means[k].argmin()
        share = (sum(squares[k][end] for end in ends) / squares[k].sum()).clamp(0, 1)
        assert records[k].share == pytest.approx(share.item())
        assert all(abs(means[k][end]) > 2 * errors[k][end] for end in ends)
