"""Mean effects by random signs, against full Jacobians."""

from typing import Any

import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

import interbasis
from interbasis.analysis.features import effects
from interbasis.analysis.features.effects import MeanJacobian, mean_effect_records, mean_jacobians
from interbasis.data.samples import Samples
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network
from tiny_models import configs, random_model, tokens

POPULATION, POSITIONS = 60, 4


@pytest.fixture(scope="module")
def population() -> tuple[Network, InteractionGraph, Tensor, dict[int, Tensor]]:
    """A small model, its bases, and the exact Jacobians at the own position of every sample."""
    network = interbasis.from_hf(random_model("gpt2")).double()
    data = tokens(POPULATION, POSITIONS)
    graph = interbasis.build(network, data, dtype="float64", edge_method=None).graph
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


def estimated(
    population: tuple[Network, InteractionGraph, Tensor, dict[int, Tensor]],
    data: Tensor,
    seed: int = 0,
    sources: int = 1,
) -> list[MeanJacobian]:
    network, graph, _, _ = population
    features = [range(layer.features) for layer in graph.layers[:-1]]
    return mean_jacobians(network, graph.layers, data, features, sources, seed)


def test_estimates_are_unbiased_and_their_errors_calibrated(
    population: tuple[Network, InteractionGraph, Tensor, dict[int, Tensor]],
) -> None:
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


def test_many_signs_come_to_the_mean_jacobian(
    population: tuple[Network, InteractionGraph, Tensor, dict[int, Tensor]],
) -> None:
    _, _, data, exact = population
    found = estimated(population, data[:8], sources=60)
    for k, truth in exact.items():
        mean = truth[:8].mean(0)
        assert (found[k].groups.mean(0) - mean).norm() < 0.45 * mean.norm()


def test_outputs_are_named_with_errors(
    population: tuple[Network, InteractionGraph, Tensor, dict[int, Tensor]],
) -> None:
    network, graph, data, _ = population
    k = network.layers.index("attn_in.1")
    jacobian = estimated(population, data[:16])[k]
    records = mean_effect_records([jacobian], [f"t{i}" for i in range(23)])[jacobian.layer.name]
    assert len(records) == graph.layers[k].features
    last: Any = network.tail[0]
    weight = last.skip  # [outputs, width]
    moved = jacobian.groups.mean(0) @ weight.T
    moved = (moved - moved.mean(1, keepdim=True))[3] * graph.layers[k].deviation(3)
    best = int(moved.argmax())
    assert records[3].up[0].name == f"t{best}"
    assert records[3].up[0].value == pytest.approx(moved[best].item())
    assert records[3].up[0].error > 0
    assert records[3].down[0].value == pytest.approx(moved.min().item())
    means, errors = jacobian.effects()
    squares = means.square() - errors.square()
    clear = [k for k, record in enumerate(records) if record.share > 0]
    assert 0 < len(clear) < len(records)
    for k in clear:
        ends = means[k].argmax(), means[k].argmin()
        share = (sum(squares[k][end] for end in ends) / squares[k].sum()).clamp(0, 1)
        assert records[k].share == pytest.approx(share.item())
        assert all(abs(means[k][end]) > 2 * errors[k][end] for end in ends)


def capped_model(cap: float) -> nn.Module:
    """A Gemma 2 whose logits reach far into the bend of its cap."""
    import transformers

    config = configs()["gemma2"]
    config.final_logit_softcapping = cap
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    model.load_state_dict(random_model("gemma2").state_dict())
    return model


def ragged(inputs: torch.Tensor, lengths: list[int]) -> Samples:
    """The first positions of each sample, as documents of different lengths are read."""
    read = lambda first, last: (inputs[first:last], inputs[first:last])  # noqa: E731
    return Samples(len(inputs), read, kind="tokens", lengths=torch.tensor(lengths))


def exact_effects(
    network: Network, layer: LayerBasis, samples: Tensor | list[Any], features: list[Any]
) -> Tensor:
    """E[∂y/∂f̂] over all positions alike, by autograd through the whole model: [features, outputs]."""
    k = network.layers.index(layer.name)
    total, count = torch.zeros(()), 0
    for length in {len(sample) for sample in samples}:
        inputs = torch.stack([sample for sample in samples if len(sample) == length])
        f = network.activations(inputs)[k].detach().requires_grad_()
        y = f
        for step in (*network.sections[k:], *network.tail):
            y = step(y)
        y = y[..., network.output_layer.first_coordinate :]
        for s in range(length):
            ones = torch.eye(y.shape[2]).double()
            (gradients,) = torch.autograd.grad(
                y[:, s].sum(0), f, ones, retain_graph=True, is_grads_batched=True
            )
            total = total + gradients[:, :, s].sum(1) @ layer.inverse[:, features]  # [outputs, features]
        count += inputs.numel()
    mean = (total / count).T
    return mean - mean.mean(1, keepdim=True)


def all_signs(key: int, first: int, samples: int, per_sample: int, most: int | None = None) -> Tensor:
    """Rows of a Hadamard matrix: over all of them φ_a φ_b averages to exactly 1 for a = b and 0 otherwise."""
    return torch.from_numpy(hadamard(SIGNS)[key[2], :per_sample]).double()[None]


SIGNS = 64
CASES = {
    "whole": lambda: interbasis.from_hf(random_model("gpt2")),
    "cut": lambda: interbasis.from_hf(random_model("gpt2"), blocks="0"),
    "capped": lambda: interbasis.from_hf(capped_model(0.5)),
    "capped and cut": lambda: interbasis.from_hf(capped_model(0.5), blocks="0"),
    "capped logits": lambda: interbasis.from_hf(capped_model(0.5), output=True),
}


@pytest.mark.parametrize("lengths", [None, [2, 1, 1]])
@pytest.mark.parametrize("case", CASES)
def test_with_all_signs_effects_are_exact(
    case: str, lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through all blocks, with the slope of the cap at each token; positions of all samples count alike."""
    network, inputs = CASES[case]().double(), tokens(3, 2)
    data = inputs if lengths is None else ragged(inputs, lengths)
    samples = inputs if lengths is None else [x[:n] for x, n in zip(inputs, lengths, strict=True)]
    graph = interbasis.build(network, data, dtype="float64", edge_method=None).graph
    chosen = [list(range(1, min(4, layer.features))) for layer in graph.layers[:-1]]
    monkeypatch.setattr(effects, "random_signs", all_signs)
    found = mean_jacobians(network, graph.layers, data, chosen, sources=SIGNS)
    for layer, features, jacobian in list(zip(graph.layers, chosen, found, strict=False))[::5]:
        expected = exact_effects(network, layer, samples, features)
        assert (jacobian.effects()[0] - expected).abs().max() <= 1e-10 * expected.abs().max(), layer.name


def z_scores(network: Network, data: Tensor | Samples, samples: Any) -> torch.Tensor:
    """z of all mean effects that `features` stores of some layers."""
    graph = interbasis.build(network, data, dtype="float64", edge_method=None).graph
    found = interbasis.open_run(graph, network, data).features(top=6)
    z = []
    for layer in graph.layers[:-1:5]:
        features = found.layers[layer.name].features
        truth = exact_effects(network, layer, samples, [one.index for one in features])
        for one, exact in zip(features, truth, strict=True):
            for push in (*one.mean_effects.up, *one.mean_effects.down):
                expected = exact[int(push.name)].item() * layer.deviation(one.index)
                z.append((push.value - expected) / push.error)
    return torch.tensor(z)


@pytest.mark.parametrize("case", ["cut", "capped"])
def test_stored_effects_are_within_their_errors(case: str) -> None:
    network, data = CASES[case]().double(), tokens(64, 6)
    z = z_scores(network, data, data)
    assert z.square().mean().sqrt() < 1.5
    assert (z.abs() < 1.96).double().mean() > 0.85


def test_documents_of_different_lengths_give_effects_within_their_errors() -> None:
    network, inputs = CASES["whole"]().double(), tokens(64, 10)
    lengths = [10 if k % 4 == 0 else 2 for k in range(64)]
    samples = [x[:n] for x, n in zip(inputs, lengths, strict=True)]
    z = z_scores(network, ragged(inputs, lengths), samples)
    assert z.square().mean().sqrt() < 1.5
    assert (z.abs() < 1.96).double().mean() > 0.85
