"""Traces against full per-sample Jacobians, and against interventions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import mlp, modular_addition
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis.numerics.integration import rule
from interbasis.traces.records import TARGET, Trace, error_name, node_name
from interbasis.traces.targets import TargetRequest
from reference import jacobians
from tiny_models import random_model, tokens

ALL = {"max_nodes": 10**6, "node_threshold": 1.0, "edge_threshold": 1.0}


@dataclass(frozen=True)
class Traced:
    """A network with a graph that drops directions, and one input."""

    network: Network
    graph: InteractionGraph
    sample: Tensor


def language_model(name: str) -> Traced:
    network = interbasis.from_hf(random_model(name)).double()
    data = tokens(samples=3, positions=5)  # fewer tokens than coordinates: directions are dropped
    return Traced(network, interbasis.build(network, data, dtype="float64"), data[0][:3])


def from_case(case) -> Traced:
    inputs = case.inputs[:5]
    return Traced(case.network, interbasis.build(case.network, inputs, dtype="float64"), case.inputs[7])


FAMILIES: dict[str, Callable[[], Traced]] = {
    "mlp": lambda: from_case(mlp(nn.GELU())),
    "modadd": lambda: from_case(modular_addition()),
    "gpt2": lambda: language_model("gpt2"),
    "llama": lambda: language_model("llama"),
    "gemma2": lambda: language_model("gemma2"),
}


@cache
def family(name: str) -> Traced:
    return FAMILIES[name]()


def traced(name: str, target: TargetRequest | None = None, **settings) -> Trace:
    case = family(name)
    chosen = interbasis.TraceSettings(**{"checks": 0, "effect_points": 0, **settings})
    return interbasis.trace(case.network, case.graph, case.sample, target, settings=chosen)


def naive_edges(case: Traced, method: str, points: int) -> dict[tuple[str, str], float]:
    """f̂_jt Σ_k w_k ∂f̂_is/∂z_jt at α_k f for all pairs, from full Jacobians; errors and constants too."""
    integral = rule(method, points)
    activations = case.network.activations(case.sample[None])
    positions, edges = activations[0].shape[1], {}
    for section, f, source, target in zip(
        case.network.sections, activations, case.graph.layers, case.graph.layers[1:], strict=False
    ):
        J = sum(
            w * jacobians(section, a * f)[0] for a, w in zip(integral.nodes, integral.weights, strict=True)
        )  # [S, d_out, T, d_in]
        rows = torch.einsum("io,sotj->sitj", target.transform, J)
        features = f[0] @ source.transform.T
        kept = torch.einsum("sitj,jr,tr->sitr", rows, source.inverse, features)
        dropped = torch.einsum("sitj,tj->sit", rows, f[0] - features @ source.inverse.T)
        after, before = positions - len(rows), positions - f.shape[1]
        for s in range(rows.shape[0]):
            for i in range(target.first_feature, target.features):
                end = node_name(target.name, i, s + after)
                edges["constant", end] = kept[s, i, :, 0].sum().item() if source.constant else 0.0
                for t in range(rows.shape[2]):
                    edges[error_name(source.name, t + before), end] = dropped[s, i, t].item()
                    for j in range(source.first_feature, source.features):
                        edges[node_name(source.name, j, t + before), end] = kept[s, i, t, j].item()
    return edges


@pytest.mark.parametrize("name", ["mlp", "modadd", "gpt2", "llama"])
def test_edges_are_those_of_full_jacobians(name):
    expected, trace = naive_edges(family(name), "gradient", 1), traced(name, method="gradient", **ALL)
    found = {(edge.source, edge.target): edge.weight for edge in trace.edges if edge.target != TARGET}
    assert len(found) > 30
    scale = max(map(abs, expected.values()))
    names = {node.name for node in trace.nodes}
    for pair, weight in expected.items():
        if pair[1] in names and pair[0] != "constant":  # an edge of 0 is not stored
            assert abs(found.get(pair, 0.0) - weight) <= 1e-10 * scale, pair
    for node in trace.nodes:
        assert abs(node.constant - expected.get(("constant", node.name), 0.0)) <= 1e-10 * scale


@pytest.mark.parametrize("name", FAMILIES)
def test_edges_into_a_node_add_up_to_it(name):
    trace = traced(name, method="exact", quadrature=40, **ALL)
    sums = {node.name: node.constant for node in trace.nodes}
    sums[TARGET] = trace.target.constant
    for edge in trace.edges:
        sums[edge.target] += edge.weight
    scale = max(abs(node.activation) for node in trace.nodes)
    first = trace.layers[0].name
    for node in trace.nodes:
        if node.layer != first:
            assert abs(sums[node.name] - node.activation) <= 1e-8 * scale
    assert abs(sums[TARGET] - trace.target.value) <= 1e-8 * max(1, abs(trace.target.value))


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_paths_through_attention_add_up(name):
    trace = traced(name, quadrature=8, **ALL)
    parted = [edge for edge in trace.edges if edge.paths is not None]
    assert {edge.source.split(":")[0] for edge in parted} >= {"attn_in.0", "attn_in.1"}
    for edge in parted:
        paths = edge.paths
        assert edge.weight == pytest.approx(paths.skip + paths.value + paths.key + paths.query, abs=1e-12)
        if edge.source.split("@")[1] != edge.target.split("@")[1]:  # from another position
            assert paths.skip == paths.query == 0


def test_value_key_and_query_paths_are_those_of_frozen_patterns():
    """With the pattern frozen only values remain; with keys frozen too, the rest is the query's."""
    case = family("gpt2")
    trace = traced("gpt2", method="gradient", **ALL)
    k = case.graph.layer_names.index("attn_in.0")
    section, f = case.network.sections[k], case.network.activations(case.sample[None])[k]
    source, target = case.graph.layers[k : k + 2]
    features, shape = (f @ source.transform.T)[0], section.core.shape
    width = shape.heads * shape.width

    def only(part: int, x: Tensor) -> Tensor:
        reads = section.read.split(width)
        changed = torch.cat([(x if n == part else f) @ reads[n].T for n in range(3)], dim=-1)
        return section.core(changed, slice(0, f.shape[1])) @ section.write.T

    for part, name in enumerate(("query", "key", "value")):
        J = jacobians(lambda x, part=part: only(part, x), f)[0]
        expected = torch.einsum("io,sotj,jr,tr->sitr", target.transform, J, source.inverse, features)
        for edge in trace.edges:
            if edge.source.startswith("attn_in.0:") and edge.paths is not None:
                (j, t), (i, s) = (
                    map(int, end.split(":")[1].split("@")) for end in (edge.source, edge.target)
                )
                assert getattr(edge.paths, name) == pytest.approx(expected[s, i, t, j].item(), abs=1e-10)


@pytest.mark.parametrize(
    ("name", "points"), [("mlp", 0), ("mlp", 24), ("modadd", 0), ("gpt2", 0), ("llama", 2)]
)
def test_effects_are_slopes_between_the_mean_and_the_activations(name, points):
    case = family(name)
    trace = traced(name, effect_points=points, **ALL)
    position, integral = trace.target.position, rule("quadrature", points) if points else rule("gradient")

    def value(layer: int, f: Tensor) -> Tensor:
        for step in (*case.network.sections[layer:], *case.network.tail):
            f = step(f)
        logits = f[0, -1, case.network.output_layer.first_coordinate :]
        return logits[trace.target.output] - logits.mean()

    for layer, f in enumerate(case.network.activations(case.sample[None])):
        basis, first = case.graph.layers[layer], position + 1 - f.shape[1]
        mean = basis.inverse[:, 0].expand_as(f) if basis.constant else torch.zeros_like(f)
        nodes = [node for node in trace.nodes if node.layer == basis.name]
        for t in range(f.shape[1]):  # all other positions stay as they are
            way = torch.zeros_like(f)
            way[0, t] = (f - mean)[0, t]
            gradient = sum(
                w * torch.func.jacrev(lambda x, layer=layer: value(layer, x))(f - (1 - a) * way)[0, t]
                for a, w in zip(integral.nodes, integral.weights, strict=True)
            )
            effects = (gradient @ basis.inverse) * (f[0, t] @ basis.transform.T)
            for node in nodes:
                if node.position - first == t:
                    assert node.effect == pytest.approx(effects[node.feature].item(), abs=1e-10)
            if points == 24:
                parts = [
                    one.effect
                    for one in (*nodes, *trace.errors)
                    if (one.layer, one.position) == (basis.name, t + first)
                ]
                assert sum(parts) == pytest.approx((value(layer, f) - value(layer, f - way)).item(), abs=1e-8)


def test_a_feature_or_a_difference_is_explained_as_a_logit_is():
    case = family("gpt2")
    layer = case.graph.layer_names.index("mlp_in.1")
    features = case.graph.layers[layer].features_of(case.network.activations(case.sample[None])[layer])
    request = TargetRequest(layer="mlp_in.1", feature=3, position=2)
    trace = traced("gpt2", request, method="exact", quadrature=40, **ALL)
    assert trace.target.value == pytest.approx(features[0, 2, 3].item())
    assert {node.position for node in trace.nodes} == {0, 1, 2}
    assert trace.layers[-1].name == case.graph.layer_names[layer - 1]
    into = sum(edge.weight for edge in trace.edges if edge.target == TARGET) + trace.target.constant
    assert into == pytest.approx(trace.target.value, abs=1e-8)
    difference = traced("gpt2", TargetRequest(output=4, minus=9), **ALL)
    logits = case.network(case.sample[None])[0, -1]
    assert difference.target.value == pytest.approx((logits[4] - logits[9]).item())
    assert difference.target.kind == "difference"


def test_influence_is_the_power_series_of_normalised_edges():
    trace = traced("gpt2", method="gradient", **ALL)
    names = [TARGET, *(node.name for node in trace.nodes), *(error.name for error in trace.errors)]
    index = {name: k for k, name in enumerate(names)}
    A = torch.zeros(len(names), len(names), dtype=torch.float64)
    for edge in trace.edges:
        A[index[edge.target], index[edge.source]] = abs(edge.weight)
    A = A / A.sum(1, keepdim=True).clamp_min(1e-300)
    influence, total = A[0], A[0].clone()
    while influence.any():
        influence = influence @ A
        total += influence
    for one in (*trace.nodes, *trace.errors):
        assert one.influence == pytest.approx(total[index[one.name]].item(), abs=1e-10)
    tokens_, errors = sum(token.influence for token in trace.tokens), sum(e.influence for e in trace.errors)
    assert tokens_ + errors == pytest.approx(1)
    assert trace.scores.replacement == pytest.approx(tokens_)
    error_columns = torch.tensor([name in {e.name for e in trace.errors} for name in names])
    through = 1 - A[:, error_columns].sum(1)
    inner = torch.tensor([name == TARGET or not name.startswith("ln1.0:") for name in names]) & ~error_columns
    weights = total + torch.eye(len(names), dtype=total.dtype)[0]
    expected = (weights * through)[inner].sum() / weights[inner].sum()
    assert trace.scores.completeness == pytest.approx(expected.item())


def test_pruning_keeps_the_largest_and_stays_connected():
    whole = traced("gpt2", **ALL)
    pruned = traced("gpt2", max_nodes=40, node_threshold=0.7, edge_threshold=0.9)
    assert len(pruned.nodes) < len(whole.nodes) / 3
    assert len(pruned.edges) < len(whole.edges) / 10
    known = {node.name for node in pruned.nodes} | {error.name for error in pruned.errors}
    assert {edge.source for edge in pruned.edges} == known
    assert {edge.target for edge in pruned.edges} <= known | {TARGET}
    assert {layer.name for layer in pruned.layers} == {node.layer for node in pruned.nodes}
    weights = {(edge.source, edge.target): edge.weight for edge in whole.edges}
    for edge in pruned.edges:
        assert edge.weight == pytest.approx(weights[edge.source, edge.target], abs=1e-12)
    assert pruned.scores.coverage < 1 == pytest.approx(whole.scores.coverage)


def test_checks_run_the_rest_of_the_network():
    case = family("llama")
    trace = traced("llama", checks=4)
    logits = case.network(case.sample[None])[0, -1]
    for check in trace.checks.nodes:
        layer, place = check.node.split(":")
        feature, position = map(int, place.split("@"))
        k = case.graph.layer_names.index(layer)
        basis, f = case.graph.layers[k], case.network.activations(case.sample[None])[k].clone()
        features = f @ basis.transform.T
        f[0, position] += basis.inverse[:, feature] * (check.set_to - features[0, position, feature])
        for step in (*case.network.sections[k:], *case.network.tail):
            f = step(f)
        change = f[0, -1] - logits
        expected = change[trace.target.output] - change.mean()
        assert check.set_to == 0
        assert check.measured == pytest.approx(expected.item(), abs=1e-10)
    nodes = {node.name: node for node in trace.nodes}
    assert all(check.predicted == -nodes[check.node].effect for check in trace.checks.nodes)
    assert len(trace.checks.edges) == 4


def test_small_changes_are_predicted_and_failures_are_said_first():
    trace = traced("gpt2", checks=10)
    small = [c for c in trace.checks.other_values if abs(c.set_to) < abs(_node(trace, c.node).activation)]
    assert len(small) == 10
    words = {True: "predictions hold", False: "predictions FAIL"}
    assert words[trace.trusted] in trace.summary
    assert traced("gpt2").summary.endswith("not checked by interventions.")


def _node(trace: Trace, name: str):
    return next(node for node in trace.nodes if node.name == name)


def test_what_cannot_be_traced_is_refused():
    with pytest.raises(interbasis.InterbasisError, match="expected a position from -3 to 2, received 9"):
        traced("gpt2", TargetRequest(position=9))
    with pytest.raises(interbasis.InterbasisError, match="one of 23 outputs"):
        traced("gpt2", TargetRequest(output=99))
    with pytest.raises(interbasis.InterbasisError, match="has features 0 to"):
        traced("gpt2", TargetRequest(layer="mlp_in.1", feature=999))
    with pytest.raises(interbasis.InterbasisError, match="named by its layer"):
        traced("gpt2", TargetRequest(layer="nowhere", feature=1))
    case = family("gpt2")
    with pytest.raises(interbasis.InterbasisError, match="expected one sample"):
        interbasis.trace(case.network, case.graph, case.sample[None])
