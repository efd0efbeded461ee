"""Descriptions and traces of dictionary features."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from interbasis.analysis.dictionaries.checks import check_edges
from interbasis.analysis.dictionaries.descriptions import FeatureTokensPass, describe, description_text
from interbasis.analysis.dictionaries.trace import trace_dictionaries
from interbasis.base.errors import InterbasisError
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.layers import DictionaryLayer, place_dictionaries
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.network.network import Network
from placed_dictionaries import dictionary
from tiny_models import random_model


def embedding_dictionary(network: Network, token: int) -> Dictionary:
    """Feature 0 is active at one token alone, feature 1 everywhere, the others nowhere."""
    vocabulary = torch.arange(23)[:, None]
    embedded = network.prefix(vocabulary)[:, 0, 1:]
    others = embedded[torch.arange(23) != token]
    direction = torch.linalg.lstsq(
        torch.cat([embedded, torch.ones(23, 1, dtype=embedded.dtype)], 1),
        (torch.arange(23) == token).to(embedded.dtype)[:, None],
    ).solution[:, 0]
    scores = others @ direction[:-1] + direction[-1]
    own = embedded[token] @ direction[:-1] + direction[-1]
    assert own > scores.max()
    encoder = torch.zeros(4, 12, dtype=torch.float64)
    encoder[0] = direction[:-1]
    bias = torch.tensor([direction[-1] - (own + scores.max()) / 2, 1.0, -1.0, -1.0], dtype=torch.float64)
    return Dictionary(
        encoder, bias, torch.randn(4, 12, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    )


@pytest.fixture
def network() -> Network:
    return interbasis.from_hf(random_model("llama")).to(torch.float64)  # no positions in its embedding


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, 23, (40, 9), generator=torch.Generator().manual_seed(1))


def test_a_feature_of_one_token_is_described_by_it(network: Network, tokens: Tensor) -> None:
    layer = DictionaryLayer.from_network(network, "ln1.0", embedding_dictionary(network, 7))
    state = Executor(network, blocks=4).run(FeatureTokensPass(network, [layer]), Batches(tokens))
    first, second, third, _ = describe(0, 4, state, range(4))
    assert first.description is not None
    assert first.description.relation == "token"
    assert first.description.tokens == (7,)
    assert first.description.precision == first.description.recall == 1
    assert description_text(first.description, {7: "w7"}) == "'w7'"
    assert all(example.tokens[example.place] == 7 for example in first.examples)
    assert second.description is not None
    assert second.description.size == 23  # active everywhere: all tokens of a small vocabulary
    assert third.description is None
    assert third.examples == ()


def test_states_in_blocks_are_those_of_all_data(network: Network, tokens: Tensor) -> None:
    layer = DictionaryLayer.from_network(network, "ln1.1", dictionary(12, 20, "topk", 3))
    pass_ = FeatureTokensPass(network, [layer])
    whole, blocks = (Executor(network, blocks=n).run(pass_, Batches(tokens)) for n in (1, 5))
    one, many = (describe(0, 20, pass_.load(pass_.dump(state)), range(20)) for state in (whole, blocks))
    assert one == many


def test_a_trace_measures_effects_and_states_gradients(network: Network, tokens: Tensor) -> None:
    places = {"ln1.0": dictionary(12, 40, "topk", 1), "ln1.1": dictionary(12, 40, "topk", 2)}
    layers = place_dictionaries(network, places)
    trace = trace_dictionaries(network, layers, tokens[0])
    assert [layer.place for layer in trace.layers] == ["ln1.0", "ln1.1"]
    assert all(layer.active == 45 for layer in trace.layers)
    with torch.enable_grad():
        f = network.activations_at(0, tokens[:1]).requires_grad_()
        value = f
        for section in network.sections:
            value = section(value)
        logits = network.output_from(value, tokens[:1])[0, -1]
        (slope,) = torch.autograd.grad(logits[trace.target] - logits.mean(), f)
    assert sum(trace.layers[0].gradients.values()) == pytest.approx((slope * f).sum().item(), rel=1e-10)
    lowered = [torch.full((40,), 0.25), torch.zeros(40)]
    from_mean = trace_dictionaries(network, layers, tokens[0], baselines=lowered)
    assert sum(from_mean.layers[0].gradients.values()) == pytest.approx((slope * f).sum().item(), rel=1e-10)
    same = from_mean.layers[0].nodes[0]
    direction = slope[0, same.position, 1:] @ places["ln1.0"].decoder[same.feature]
    assert same.gradient == pytest.approx(((same.value - 0.25) * direction).item(), rel=1e-9)
    node = trace.layers[0].nodes[0]
    vector = places["ln1.0"].decoder[node.feature] * node.value
    assert node.gradient == pytest.approx((slope[0, node.position, 1:] @ vector).item(), rel=1e-10)
    changed = f.detach().clone()
    changed[0, node.position, 1:] -= vector
    for section in network.sections:
        changed = section(changed)
    after = network.output_from(changed, tokens[:1])[0, -1]
    assert node.effect == pytest.approx(trace.value - (after[trace.target] - after.mean()).item(), rel=1e-9)
    effects = [abs(node.effect) for node in trace.layers[0].nodes]
    assert effects == sorted(effects, reverse=True)
    with pytest.raises(InterbasisError, match="token ids"):
        trace_dictionaries(network, layers, tokens)


def test_tokens_that_do_not_count_are_left_to_the_error(network: Network, tokens: Tensor) -> None:
    """As tokens of massive norm are; here the first two, and those of a norm above a limit."""
    layers = place_dictionaries(network, {"ln1.0": dictionary(12, 40, "topk", 1)})
    norms = network.activations_at(layers[0].index, tokens[:1])[0, :, 1:].norm(dim=-1)
    limit = norms[2:].median().item()
    for counted, left_out in (
        (CountedTokens(skip_positions=2), torch.arange(len(norms)) < 2),
        (CountedTokens(limits=(limit,) * len(network.nodes)), norms > limit),
    ):
        whole, part = (
            trace_dictionaries(network, layers, tokens[0], counted=c).layers[0] for c in (ALL_TOKENS, counted)
        )
        assert not left_out[[node.position for node in part.nodes]].any()
        assert left_out[[node.position for node in whole.nodes]].any()
        assert part.active == whole.active - 5 * int(left_out.sum())
        totals = [sum(layer.gradients.values()) for layer in (whole, part)]
        assert totals[0] == pytest.approx(totals[1], rel=1e-10)
        assert whole.gradients["error"] != pytest.approx(part.gradients["error"])
    pass_ = FeatureTokensPass(network, layers, CountedTokens(skip_positions=2))
    state = Executor(network).run(pass_, Batches(tokens[:1]))
    places = [e.place for feature in describe(0, 40, state, range(40)) for e in feature.examples]
    assert len(places) == 5 * (tokens.shape[1] - 2)


def test_edges_of_a_trace_are_those_of_autograd(network: Network, tokens: Tensor) -> None:
    places = {"ln1.0": dictionary(12, 40, "topk", 1), "ln1.1": dictionary(12, 40, "topk", 2)}
    layers = place_dictionaries(network, places)
    trace = trace_dictionaries(network, layers, tokens[1])
    sources, targets = trace.layers[0].nodes, trace.layers[1].nodes
    edge = trace.layers[1].edges[0]
    source, target = sources[edge.source], targets[edge.target]
    with torch.enable_grad():
        f = network.activations_at(0, tokens[1:2]).requires_grad_()
        g = f
        for section in network.sections[: layers[1].index]:
            g = section(g)
        u = g[0, target.position, 1:] @ places["ln1.1"].encoder[target.feature]
        (slope,) = torch.autograd.grad(u, f)
    vector = places["ln1.0"].decoder[source.feature] * source.value
    assert edge.value == pytest.approx((slope[0, source.position, 1:] @ vector).item(), rel=1e-9)
    assert edge.paths is not None
    assert sum(edge.paths.values()) == pytest.approx(edge.value, rel=1e-9)
    strongest = max(trace.layers[1].edges, key=lambda edge: abs(edge.value))
    source, target = sources[strongest.source], targets[strongest.target]
    changed = f.detach().clone()
    changed[0, source.position, 1:] -= places["ln1.0"].decoder[source.feature] * source.value
    for section in network.sections[: layers[1].index]:
        changed = section(changed)
    lost = (g - changed)[0, target.position, 1:] @ places["ln1.1"].encoder[target.feature]
    assert strongest.measured == pytest.approx(lost.item(), rel=1e-9)


@pytest.mark.parametrize(("source", "target"), [("ln1.0", "ln1.1"), ("mlp_in.0", "ln1.1")])
def test_checks_of_edges_agree_where_changes_are_small(
    network: Network, tokens: Tensor, source: str, target: str
) -> None:
    """With decoders scaled down, predictions to first order are what interventions measure."""
    small = dictionary(12, 40, "topk", 1)
    places = {source: replace(small, decoder=1e-5 * small.decoder), target: dictionary(12, 40, "topk", 2)}
    run: Any = interbasis.build(network, tokens[:20], dictionaries=places, norm_limit=0, progress=False)
    layers = place_dictionaries(network, places)
    checks = check_edges(network, layers, run.graph.edges[0], tokens[20:], count=30)
    assert checks.edges >= 20
    assert checks.attributions.sign_agreement == 1
    assert checks.attributions.correlation > 0.999
    assert checks.weights.correlation < checks.attributions.correlation
