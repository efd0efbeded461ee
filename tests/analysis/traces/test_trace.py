"""Traces against full per-sample Jacobians, and against interventions."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from cases import mlp
from interbasis.analysis.traces import checks
from interbasis.analysis.traces.records import TARGET, Trace, TraceSettings, error_name, node_name
from interbasis.analysis.traces.targets import TargetRequest
from interbasis.analysis.traces.trace import Tracing, trace
from interbasis.analysis.traces.trace import trace as trace_inputs
from interbasis.base.records import Method
from interbasis.numerics.integration import rule
from reference import jacobians
from tiny_models import random_model, tokens
from traced_models import ALL, FAMILIES, Traced, family, traced


def naive_edges(case: Traced, method: Method, points: int) -> dict[tuple[str, str], float]:
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
        features[: case.left_out] = torch.eye(source.features)[0]  # the constant: all others at their mean
        kept = torch.einsum("sitj,jr,tr->sitr", rows, source.inverse, features)
        dropped = torch.einsum("sitj,tj->sit", rows, f[0] - features @ source.inverse.T)
        # layers on a grid have positions of their own
        after, before = (
            0 if node.grid is not None else positions - count
            for node, count in ((section.target, len(rows)), (section.source, f.shape[1]))
        )
        for s in range(rows.shape[0]):
            for i in range(target.first_feature, target.features):
                end = node_name(target.name, i, s + after)
                edges["constant", end] = kept[s, i, :, 0].sum().item() if source.constant else 0.0
                for t in range(rows.shape[2]):
                    edges[error_name(source.name, t + before), end] = dropped[s, i, t].item()
                    for j in range(source.first_feature, source.features):
                        edges[node_name(source.name, j, t + before), end] = kept[s, i, t, j].item()
    return edges


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma2"])
def test_edges_are_those_of_full_jacobians(name: str) -> None:
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


def test_massive_tokens_are_whole_nodes() -> None:
    """In the layers where the norm exceeds the build's limit, and in no others."""
    model, data = random_model("llama"), tokens(samples=8, positions=6)
    data[data == data[0, 1]] += 1
    data[0, 1] = massive = data[0, 1] - 1
    with torch.no_grad():
        model.get_input_embeddings().weight[massive] *= 50
    network = interbasis.from_hf(model).double()
    graph = interbasis.build(network, data, dtype="float64", norm_limit=3.0, edge_method=None).graph
    trace = trace_inputs(network, graph, data[0], settings=TraceSettings(checks=0, **ALL))
    expected = set()
    for node, f in zip(network.nodes, network.activations(data[:1]), strict=True):
        limit = graph.provenance.largest_directions[node.name].norm_limit
        sizes = f[0, :, node.first_coordinate + node.isolated :].norm(dim=1)
        expected |= {error_name(node.name, t) for t in (sizes > limit).nonzero()[:, 0].tolist()}
    whole = {error.name for error in trace.errors if error.whole}
    assert "attn_in.0:error@1" in whole <= expected  # nothing leads on to those before it
    assert not {node.name for node in trace.nodes} & {
        node_name(name.split(":")[0], j, int(name.split("@")[1])) for name in expected for j in range(99)
    }
    share = sum(error.influence for error in trace.errors if error.whole)
    assert trace.scores.whole_share == pytest.approx(share)
    assert 0 < share <= trace.scores.error_share


@pytest.mark.parametrize("name", FAMILIES)
def test_edges_into_a_node_add_up_to_it(name: str) -> None:
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
def test_paths_through_attention_add_up(name: str) -> None:
    trace = traced(name, quadrature=8, **ALL)
    parted = [edge for edge in trace.edges if edge.paths is not None]
    assert {edge.source.split(":")[0] for edge in parted} >= {"attn_in.0", "attn_in.1"}
    for edge in parted:
        paths = edge.paths
        assert edge.weight == pytest.approx(paths.skip + paths.value + paths.key + paths.query, abs=1e-12)
        if edge.source.split("@")[1] != edge.target.split("@")[1]:  # from another position
            assert paths.skip == paths.query == 0


def test_value_key_and_query_paths_are_those_of_frozen_patterns() -> None:
    """With the pattern frozen only values remain; with keys frozen too, the rest is the query's."""
    case = family("gpt2")
    trace = traced("gpt2", method="gradient", **ALL)
    k = case.graph.layer_names.index("attn_in.0")
    section: Any = case.network.sections[k]
    f = case.network.activations(case.sample[None])[k]
    source, target = case.graph.layers[k : k + 2]
    features, shape = (f @ source.transform.T)[0], section.core.shape
    width = shape.heads * shape.width

    def only(part: int, x: Tensor) -> Tensor:
        reads = section.read.split(width)
        changed = torch.cat([(x if n == part else f) @ reads[n].T for n in range(3)], dim=-1)
        return section.core(changed, slice(0, f.shape[1])) @ section.write.T

    for part, name in enumerate(("query", "key", "value")):
        J = jacobians(partial(only, part), f)[0]
        expected = torch.einsum("io,sotj,jr,tr->sitr", target.transform, J, source.inverse, features)
        for edge in trace.edges:
            if edge.source.startswith("attn_in.0:") and edge.paths is not None:
                (j, t), (i, s) = (
                    map(int, end.split(":")[1].split("@")) for end in (edge.source, edge.target)
                )
                assert getattr(edge.paths, name) == pytest.approx(expected[s, i, t, j].item(), abs=1e-10)


def value_from(case: Traced, layer: int, trace: Trace, f: Tensor) -> Tensor:  # [1, T, width]
    """The target from the activations of a layer: a logit less the mean of all."""
    for step in (*case.network.sections[layer:], *case.network.tail):
        f = step(f)
    logits = f[0, -1, case.network.output_layer.first_coordinate :]
    return logits[trace.target.output] - logits.mean()


@pytest.mark.parametrize("name", ["mlp", "modadd", "gpt2", "llama", "convolution", "lstm"])
def test_effects_are_activations_times_gradients(name: str) -> None:
    case, trace = family(name), traced(name, **ALL)
    for layer, f in enumerate(case.network.activations(case.sample[None])):
        basis, first = case.graph.layers[layer], trace.target.position + 1 - f.shape[1]
        first = 0 if case.network.nodes[layer].grid is not None else first
        gradient = torch.func.jacrev(lambda x, layer=layer: value_from(case, layer, trace, x))(f)[0]
        features = f[0] @ basis.transform.T
        effects = (gradient @ basis.inverse) * features
        dropped = (gradient * (f[0] - features @ basis.inverse.T)).sum(1)
        for node in (node for node in trace.nodes if node.layer == basis.name):
            expected = effects[node.position - first, node.feature].item()
            assert node.effect == pytest.approx(expected, abs=1e-10)
        for error in (error for error in trace.errors if error.layer == basis.name):
            assert error.effect == pytest.approx(dropped[error.position - first].item(), abs=1e-10)


@pytest.mark.parametrize("name", ["mlp", "llama"])
def test_averaged_slopes_are_those_between_the_mean_and_the_activations(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a Jacobian at every point; with many points they add up to what the position is worth."""
    monkeypatch.setattr(checks, "MAX_HELD_POSITIONS", {"mlp": 256, "llama": 1}[name])
    case, trace = family(name), traced(name)
    tracing = Tracing(case.network, case.graph, case.sample)
    layer, points = 1, {"mlp": 24, "llama": 4}[name]
    state, basis = tracing.states[layer], case.graph.layers[layer]
    found = checks.averaged_slopes(case.network, tracing.target, (layer, state), [0], points)[0]
    f, way, integral = state.f[None], torch.zeros_like(state.f[None]), rule("quadrature", points)
    way[0, 0] = (state.f - basis.inverse[:, 0])[0]
    expected = sum(
        w * torch.func.jacrev(lambda x: value_from(case, layer, trace, x))(f - (1 - a) * way)[0, 0]
        for a, w in zip(integral.nodes, integral.weights, strict=True)
    )
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    if points == 24:
        worth = value_from(case, layer, trace, f) - value_from(case, layer, trace, f - way)
        assert (found * way[0, 0]).sum().item() == pytest.approx(worth.item(), abs=1e-8)


def test_a_feature_or_a_difference_is_explained_as_a_logit_is() -> None:
    case = family("gpt2")
    layer = case.graph.layer_names.index("mlp_in.1")
    features = case.graph.layers[layer].to_features(case.network.activations(case.sample[None])[layer])
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


def test_few_features_of_each_layer_can_be_followed() -> None:
    few, whole = traced("gpt2", max_nodes=10), traced("gpt2", **ALL)
    assert all(layer.selected == 10 for layer in few.layers)
    assert few.scores.coverage < 1 == pytest.approx(whole.scores.coverage)


def test_checks_run_the_rest_of_the_network() -> None:
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
    assert [abs(nodes[check.node].effect) for check in trace.checks.nodes] == sorted(
        (abs(node.effect) for node in trace.nodes), reverse=True
    )[:4]
    assert trace.checks.gradient_agreement == trace.checks.node_agreement  # no slopes were averaged
    assert len(trace.checks.spread) == len(trace.checks.edges) == 4
    assert len(trace.checks.other_values) == 8


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_small_changes_are_as_predicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of a per cent of the activation: the gradient must say how far the target moves, sign and
    size, for nodes of all layers and sizes."""
    monkeypatch.setattr(checks, "OTHER_VALUES", (1 - 1e-4, 1 + 1e-4))
    trace = traced(name, checks=60)
    largest = max(abs(check.measured) for check in trace.checks.other_values)
    assert len(trace.checks.other_values) == 120
    for check in trace.checks.other_values:
        assert check.measured == pytest.approx(check.predicted, rel=0.02, abs=1e-5 * largest)
    assert trace.checks.other_agreement.sign_agreement == 1


def test_a_node_set_to_its_mean_is_predicted_by_averaged_slopes() -> None:
    """In a layer from which the target is linear they are exact."""
    trace = traced("gpt2", checks=50, effect_points=3)
    last = [check for check in trace.checks.nodes if check.node.startswith("unembed:")]
    assert last
    for check in last:
        assert check.predicted == pytest.approx(check.measured, abs=1e-10)
    effects = {node.name: node.effect for node in trace.nodes}
    other = [
        check for check in trace.checks.nodes if not check.node.startswith(("unembed:", "ln_final_out:"))
    ]
    assert any(check.predicted != pytest.approx(-effects[check.node], rel=1e-3) for check in other)


def test_neurons_are_set_to_their_mean_and_predicted_so() -> None:
    case = mlp(torch.nn.GELU(), widths=(4, 5, 3), samples=200)
    inputs = case.inputs + torch.tensor([3.0, -2.0, 1.0, 2.0])
    network = case.network
    graph = interbasis.build(network, inputs, basis="neuron", edge_method=None).graph
    settings = TraceSettings(max_nodes=99, node_threshold=1, edge_threshold=1, checks=50, effect_points=40)
    found = trace(network, graph, inputs[0], TargetRequest(output=0, minus=1), settings=settings)

    def target(sample: Tensor) -> float:
        output = network(sample[None])[0]
        return (output[0] - output[1]).item()

    checks = {check.node: check for check in found.checks.nodes if check.node.startswith("linear.0:")}
    assert len(checks) == 4
    for node in found.nodes:
        if node.layer == "linear.0":
            changed = inputs[0].clone()
            changed[node.feature - 1] = inputs[:, node.feature - 1].mean()
            assert checks[node.name].measured == pytest.approx(target(changed) - target(inputs[0]), abs=1e-12)
    total = sum(check.predicted for check in checks.values())
    assert total == pytest.approx(target(inputs.mean(0)) - target(inputs[0]), abs=1e-9)


def test_whether_predictions_hold_is_said_first() -> None:
    trace = traced("gpt2", checks=10, effect_points=2)
    words = {True: "predictions hold", False: "predictions FAIL"}
    assert words[trace.trusted] in trace.summary
    assert f"{trace.checks.node_agreement.sign_agreement:.0%} of the 10 strongest" in trace.summary
    assert traced("gpt2").summary.endswith("not checked by interventions.")


def test_an_image_is_traced_where_the_network_flattens_it() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(9, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    flat, square = torch.nn.Sequential(*layers), torch.nn.Sequential(torch.nn.Flatten(), *layers)
    images = torch.rand(30, 3, 3)
    traces = []
    for module, inputs in ((flat, images.flatten(1)), (square, images)):
        network = interbasis.from_torch(module)
        traces.append(trace_inputs(network, interbasis.build(network, inputs).graph, inputs[0]))
    assert traces[0].nodes == traces[1].nodes


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(interbasis.InterbasisError, match="expected a position from -3 to 2, received 9"):
        traced("gpt2", TargetRequest(position=9))
    with pytest.raises(interbasis.InterbasisError, match="expected output from 0 to 22"):
        traced("gpt2", TargetRequest(output=99))
    with pytest.raises(interbasis.InterbasisError, match="has features 0 to"):
        traced("gpt2", TargetRequest(layer="mlp_in.1", feature=999))
    with pytest.raises(interbasis.InterbasisError, match="no path from the inputs"):
        traced("gpt2", node_threshold=0.01)
    with pytest.raises(interbasis.InterbasisError, match="named by its layer"):
        traced("gpt2", TargetRequest(layer="nowhere", feature=1))
    case = family("gpt2")
    with pytest.raises(interbasis.InterbasisError, match="expected one sample"):
        trace_inputs(case.network, case.graph, case.sample[None])


def test_a_traced_picture_is_shown_with_the_part_that_a_node_depends_on() -> None:
    case = family("convolution")
    images = torch.rand(9, 3, 8, 8, dtype=torch.float64)
    torch.manual_seed(3)
    layers = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(4)
    module = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(16, 3)).double()
    run = interbasis.build(interbasis.from_torch(module, example=images[:2]), images, edge_method=None)
    found = run.trace(sample=2).trace
    assert found.picture.startswith("data:image/png;base64,")
    grids = {layer.name: layer.grid for layer in found.layers}
    assert list(grids.values()) == [(8, 8), (8, 8), (2, 2), ()]
    fields = {node.name: node.field for node in found.nodes}
    first, pooled = found.layers[0].name, found.layers[2].name
    for node in found.nodes:
        row, column = divmod(node.position, 8)
        if node.layer == first:
            assert node.field == (column / 8, row / 8, (column + 1) / 8, (row + 1) / 8)
        if node.layer == pooled:  # four pixels and one around them, as far as the picture goes
            down, right = divmod(node.position, 2)
            ends = ((0, 5), (3, 8))
            expected = [ends[right][0], ends[down][0], ends[right][1], ends[down][1]]
            assert node.field == tuple(end / 8 for end in expected)
    assert any(fields[node.name] for node in found.nodes if node.layer == pooled)
    text = {token.position: token.text for token in found.tokens}
    assert text[11] == "1, 3"
    assert " at position" not in found.summary.split(":")[0]
    assert trace_inputs(case.network, case.graph, case.sample).picture is None
