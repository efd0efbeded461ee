"""Edges and nodes required, on networks small enough to try everything."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import CASES, mlp
from interbasis.analysis.ablation.bootstrap import required_counts
from interbasis.analysis.ablation.curves import sparsity_curves
from interbasis.analysis.ablation.evaluation import Evaluation, Score, passes, worst_allowed
from interbasis.analysis.ablation.masked_pass import ablate_edges, ablate_nodes, top_edges
from interbasis.analysis.ablation.search import edges_required, logarithmic, nodes_required
from interbasis.base.records import Metric
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.models import modadd
from interbasis.network.network import Network
from small_runs import control_rows


@pytest.fixture(scope="module")
def solved() -> tuple[Network, InteractionGraph, tuple[Tensor, Tensor]]:
    """A network with labels it gets right: its own answers, some of them turned wrong."""
    case = CASES["modadd"]()
    logits = case.network(case.inputs)  # their mean is taken away, for answers that differ
    network = modadd.from_weights(
        case.weights | {"unembed.b_U": case.weights["unembed.b_U"] - logits.mean(0)}
    )
    graph = interbasis.build(network, case.inputs).graph
    labels = network(case.inputs).argmax(-1)
    labels[:2] = (labels[:2] + 1) % 8
    return network, graph, (case.inputs, labels)


def leaving_few(graph: InteractionGraph) -> float:
    """A threshold that all but a few directions of the network lie below."""
    return (
        max(
            min(layer.eigenvalues[layer.first_feature :].max(), layer.variances[layer.first_feature :].max())
            for layer in graph.layers[:-1]
        ).item()
        * 0.9
    )


def accuracy(
    network: Network, graph: InteractionGraph, data: tuple[Tensor, Tensor], masks: dict[Any, Any]
) -> float:
    outputs = ablate_edges(network, graph, data[0], masks)
    return (outputs.argmax(-1) == data[1]).double().mean().item()


def cross_entropy(network: Network, graph: InteractionGraph, data: Any, masks: Any) -> float:
    outputs = ablate_edges(network, graph, data[0], masks)
    return torch.nn.functional.cross_entropy(outputs, data[1]).item()


@pytest.mark.parametrize(("metric", "tolerance"), [("accuracy", 0.2), ("cross_entropy", 0.05)])
def test_the_bisection_takes_the_papers_path(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]], metric: Metric, tolerance: float
) -> None:
    network, graph, data = solved
    measure = {"accuracy": accuracy, "cross_entropy": cross_entropy}[metric]
    base = measure(network, graph, data, {})
    found = edges_required(network, graph, data, metric, tolerance)
    assert [(r.source, r.target) for r in found] == [
        ("attn_in.0", "mlp_in.0"), ("mlp_in.0", "unembed"), ("unembed", "output"),
    ]  # fmt: skip
    for k, result in enumerate(found):
        edges = graph.edges[k]

        def ok(kept: int, k: int = k, edges: Tensor = edges) -> bool:
            value = measure(network, graph, data, {k: top_edges(edges, kept)})
            return value >= base - tolerance if metric == "accuracy" else value <= base + tolerance

        whole = graph.provenance.widths[k] * graph.provenance.widths[k + 1]
        low, high = 0, whole
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ok(whole - middle) else (low, middle)
        assert result.count == whole - low
        assert result.possible == (edges.shape[0] - graph.layers[k + 1].constant) * (edges.shape[1] - 1)
        assert torch.equal(result.mask, top_edges(edges, result.count))
        assert result.epsilon == edges[:, 1:].flatten().sort(descending=True).values[result.count - 1]
        assert result.value == pytest.approx(measure(network, graph, data, {k: result.mask}), abs=1e-12)
        assert result.kept_fraction == result.count / result.possible
        # every larger count on the grid passes, the next smaller one does not
        grid = list(logarithmic(edges[:, 1:].numel(), result.count))
        assert all(ok(kept) for kept in grid if kept >= result.stable_count)
        smaller = [kept for kept in grid if kept < result.stable_count]
        assert not smaller or not ok(smaller[0])
        assert {visited.kept for visited in result.trials} >= {result.count, result.stable_count}


def test_no_edge_at_all_is_tried_where_one_is_enough(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]],
) -> None:
    network, graph, data = solved
    base = accuracy(network, graph, data, {})
    for k in range(3):
        mask = top_edges(graph.edges[k], 0)
        lost = base - accuracy(network, graph, data, {k: mask})
        assert lost > 0.2  # the edges do something
        for tolerance, few in ((lost + 1e-9, True), (lost - 1e-9, False)):
            found = edges_required(network, graph, data, tolerance=tolerance, sections=[k], intervals=True)[0]
            assert (found.count == 0) is few
            if few:
                assert found.stable_count == 0
                assert found.interval[0] == 0
                assert torch.equal(found.mask, mask)
                assert found.value == pytest.approx(base - lost, abs=1e-12)
                assert found.kept_fraction == 0
                # no edge lies above ε, which modules and idle features are measured from
                assert found.epsilon == graph.edges[k][:, 1:].max() > 0


def test_passes_stop_early_and_the_bound_is_one(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]], small_chunks: None
) -> None:
    network, graph, data = solved
    evaluation = Evaluation(network, graph, data)
    mask = {0: top_edges(graph.edges[0], 0)}
    whole = evaluation.edges(mask)
    stopped = evaluation.edges(mask, limit=evaluation.baseline.value)
    assert whole.complete
    assert not stopped.complete
    assert evaluation.baseline.value > stopped.value > whole.value


def test_nodes_required_by_a_full_scan(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]],
) -> None:
    network, graph, data = solved
    base = accuracy(network, graph, data, {})
    found = nodes_required(network, graph, data, tolerance=0.1)
    assert [result.layer for result in found] == network.layers[:-1]
    for k, result in enumerate(found):
        values = []
        for kept in range(1, graph.layers[k].features + 1):
            outputs = ablate_nodes(network, graph, data[0], {k: kept})
            values.append((outputs.argmax(-1) == data[1]).double().mean().item())
        assert [visited.value for visited in result.trials] == pytest.approx(values)
        assert result.count == 1 + next(i for i, value in enumerate(values) if value >= base - 0.1)


def test_a_layer_without_a_constant_may_need_no_node(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]],
) -> None:
    network, graph, data = solved
    last = len(graph.layers) - 1
    assert not graph.layers[last].constant
    found = nodes_required(network, graph, data, tolerance=1.0, layers=[0, last])
    assert [result.count for result in found] == [1, 0]  # the constant counts, where there is one
    assert [result.trials[0].kept for result in found] == [1, 0]


def test_a_hopeless_limit_is_told_with_the_whole_metric(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]], small_chunks: None
) -> None:
    """Even with all edges the bases may leave out too much; by how much is measured on all samples."""
    network, graph, data = solved
    lowered = interbasis.build(network, data[0], threshold=leaving_few(graph), relative_threshold=0).graph
    value = accuracy(network, lowered, data, {0: torch.ones_like(lowered.edges[0], dtype=torch.bool)})
    with pytest.raises(interbasis.InterbasisError, match=rf"attn_in.0 → mlp_in.0 \({value:.6g}\)"):
        edges_required(network, lowered, data)


def test_labels_at_every_position_and_ignored_ones() -> None:
    case = CASES["positionwise"]()
    graph = interbasis.build(case.network, case.inputs).graph
    outputs = case.network(case.inputs)  # [9, 4, 3]
    labels = outputs.argmax(-1)
    labels[0] = (labels[0] + 1) % 3
    labels[1:3] = -100
    evaluation = Evaluation(case.network, graph, (case.inputs, labels))
    assert evaluation.baseline.value == pytest.approx(1 - 4 / 28)
    entropy = Evaluation(case.network, graph, (case.inputs, labels), "cross_entropy").baseline
    expected = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())
    assert entropy.value == pytest.approx(expected.item(), rel=1e-12)


def test_bad_requests_get_a_sentence(solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]]) -> None:
    network, graph, data = solved
    lowered = interbasis.build(network, data[0], threshold=leaving_few(graph), relative_threshold=0).graph
    bare = interbasis.build(network, data[0], edge_method=None).graph
    for call, reason in (
        (lambda: edges_required(network, graph, data[0]), "labels are required"),
        (
            lambda: edges_required(network, graph, (data[0], data[1] + 9)),
            "labels lie between 0 and 7",
        ),
        (lambda: edges_required(network, graph, (data[0], data[1] * 1.0)), "integer labels"),
        (lambda: edges_required(network, graph, data, "speed"), "accuracy or cross_entropy"),  # type: ignore[arg-type]
        (lambda: edges_required(network, graph, data, tolerance=-1), "must be at least 0"),
        (lambda: edges_required(network, lowered, data), "even with all edges"),
        (lambda: edges_required(network, bare, data), "no edges to ablate"),
        (lambda: nodes_required(network, graph, data, counts=[0]), "counts from 1"),
    ):
        with pytest.raises(interbasis.InterbasisError, match=reason):
            call()


@pytest.mark.parametrize(("metric", "tolerance"), [("accuracy", 0.2), ("cross_entropy", 0.05)])
def test_draws_change_nothing_and_are_counts_on_resampled_samples(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]], metric: Metric, tolerance: float
) -> None:
    network, graph, data = solved
    plain = edges_required(network, graph, data, metric, tolerance, stable=False)
    found = edges_required(network, graph, data, metric, tolerance, stable=False, intervals=True)
    for k, (one, other) in enumerate(zip(found, plain, strict=True)):
        assert (one.count, one.value) == (other.count, other.value)
        assert other.draws is None
        assert other.interval is None
        low, high = one.interval
        assert 0 <= low <= high <= graph.edges[k][:, 1:].numel()
        # on the tenth draw's samples, masks of more edges than its count pass and one of fewer does not
        generator = torch.Generator().manual_seed(0)
        samples = torch.randint(len(data[1]), (100, len(data[1])), generator=generator)[9]
        again = data[0][samples], data[1][samples]
        measure = {"accuracy": accuracy, "cross_entropy": cross_entropy}[metric]
        base, count = measure(network, graph, again, {}), one.draws[9].item()
        tried = sorted({visited.kept for visited in one.trials if visited.complete})
        for kept in tried:
            value = measure(network, graph, again, {k: top_edges(graph.edges[k], kept)})
            worse = base - value if metric == "accuracy" else value - base
            if kept > count + 1e-9:
                assert worse <= tolerance + 1e-12
        failing = [kept for kept in tried if kept < count - 1e-9]
        if failing:
            value = measure(network, graph, again, {k: top_edges(graph.edges[k], failing[-1])})
            assert (base - value if metric == "accuracy" else value - base) > tolerance


def test_counts_lie_where_the_metric_crosses_the_limit() -> None:
    counts = torch.ones(3, dtype=torch.float64)
    losses = {0: [9.0, 9, 9], 3: [3.0, 3, 3], 7: [1.0, 1, 1], 15: [0.5, 0.5, 0.5]}
    scores = [Score("cross_entropy", torch.tensor(row).double(), counts) for row in losses.values()]
    baseline = Score("cross_entropy", torch.zeros(3).double(), counts)
    # log2(1 + kept) is 0, 2, 3, 4 and the loss falls from 3 to 1 between 2 and 3: it is 2 at 2.5
    draws = required_counts(list(losses), scores, baseline, tolerance=2.0)
    assert draws.tolist() == pytest.approx([2**2.5 - 1] * len(draws))
    assert set(required_counts(list(losses), scores, baseline, tolerance=9.0).tolist()) == {0}
    assert set(required_counts(list(losses), scores, baseline, tolerance=0.1).tolist()) == {15}
    assert set(required_counts([7], scores[2:3], baseline, tolerance=0.1).tolist()) == {7}


@pytest.fixture(scope="module")
def language() -> tuple[Network, InteractionGraph, Tensor]:
    """A language model's network and graph, with tokens."""
    pytest.importorskip("transformers")
    from tiny_models import random_model, tokens

    network = interbasis.from_hf(random_model("gpt2"), 0)
    inputs = tokens(12, 9)
    return network, interbasis.build(network, inputs).graph, inputs


def test_labels_of_a_language_model_are_the_tokens_that_follow(
    language: tuple[Network, InteractionGraph, Tensor],
) -> None:
    network, graph, tokens = language
    with torch.no_grad():
        logits = network(tokens)[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()).item()
    cut = (tokens[:, :-1], tokens[:, 1:])
    data: Any
    for data in (
        tokens,
        list(tokens.split(5)),
        cut,
        [tuple(part[:5] for part in cut), tuple(part[5:] for part in cut)],
    ):
        baseline = Evaluation(network, graph, data).baseline
        assert baseline.metric == "cross_entropy"
        assert baseline.counts.tolist() == [8] * 12
        assert baseline.value == pytest.approx(expected, rel=1e-12)
    right = (logits.argmax(-1) == tokens[:, 1:].flatten()).double().mean().item()
    assert Evaluation(network, graph, tokens, "accuracy").baseline.value == pytest.approx(right, abs=1e-12)
    found = edges_required(network, graph, tokens, sections=[2])
    named = edges_required(network, graph, cut, "cross_entropy", 0.1, sections=[2])
    assert found[0].count == named[0].count
    assert found[0].value == pytest.approx(named[0].value, rel=1e-12)


def test_tokens_alone_are_labelled_as_the_command_line_does(
    language: tuple[Network, InteractionGraph, Tensor], tmp_path: Path
) -> None:
    """Windows of T + 1 tokens, from a file and as a tensor."""
    from interbasis.graph.named_models import open_data

    network, graph, tokens = language
    tokens.numpy().astype("uint16").tofile(tmp_path / "all.uint16")
    samples = open_data(f"tokens:{tmp_path / 'all.uint16'},context=8,part=all")
    named, alone = (Evaluation(network, graph, data).baseline for data in (samples, tokens))
    assert torch.equal(named.counts, alone.counts)
    assert torch.allclose(named.losses, alone.losses, rtol=1e-12)


def test_tokens_as_their_own_labels_are_refused(language: tuple[Network, InteractionGraph, Tensor]) -> None:
    network, graph, tokens = language
    padded = tokens.clone()
    padded[:, 6:] = -100
    for labels in (tokens, padded, tokens.int()):
        for call in (
            lambda data: edges_required(network, graph, data, "cross_entropy"),
            lambda data: nodes_required(network, graph, data),
            lambda data: sparsity_curves(network, graph, [data]),
            lambda data: control_rows(network, tokens, data),
            lambda data: interbasis.features.intervene(network, graph.layers[0], data, 1, 0.0),
        ):
            with pytest.raises(interbasis.InterbasisError, match=r"labels are the tokens.*alone"):
                call((tokens, labels))
    same = torch.full((3, 5), 7)  # what follows a token is the token
    assert Evaluation(network, graph, (same, same)).baseline.counts.tolist() == [5] * 3


def test_a_network_that_repeats_its_input_is_still_measured_against_its_own_answers(
    language: tuple[Network, InteractionGraph, Tensor],
) -> None:
    from interbasis.analysis.ablation.controls import with_predicted_labels
    from interbasis.data.samples import Samples

    network, graph, tokens = language
    own = with_predicted_labels(network, tokens)
    repeated = Samples(len(tokens), lambda a, b: (tokens[a:b], tokens[a:b]))
    for data in (own, repeated):
        assert Evaluation(network, graph, data).baseline.counts.tolist() == [9] * 12


def test_python_and_the_command_line_choose_the_same_metric(
    language: tuple[Network, InteractionGraph, Tensor],
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]],
) -> None:
    from interbasis.analysis.ablation.evaluation import default_metric

    assert default_metric(language[0]) == "cross_entropy"
    assert default_metric(language[0].to(torch.float32).between(language[0].layers[1:3])) == "cross_entropy"
    assert default_metric(solved[0]) == "accuracy"
    assert default_metric(CASES["relu"]().network) == "accuracy"


@pytest.mark.parametrize(("samples", "tolerance"), [(1000, 0.001), (350, 0.02), (10_000, 0.003)])
def test_an_accuracy_may_fall_by_exactly_the_tolerance(samples: int, tolerance: float) -> None:
    allowed = round(tolerance * samples)
    counts = torch.ones(samples, dtype=torch.float64)
    for wrong in range(samples - allowed):
        scores = [
            Score("accuracy", (torch.arange(samples) < missed).double(), counts)
            for missed in (wrong, wrong + allowed, wrong + allowed + 1)
        ]
        limit = worst_allowed(scores[0], tolerance)
        assert [passes("accuracy", score.value, limit) for score in scores] == [True, True, False]


@pytest.mark.parametrize("wrong", [59, 67, 172])  # 1 − 0.067 − 0.001 > 1 − 0.068 in float64, and so on
def test_ties_do_not_move_a_count(wrong: int) -> None:
    case = mlp(nn.ReLU(), widths=(6, 9, 4), samples=1000)
    with torch.no_grad():  # answers that differ
        case.original[-1].bias -= case.original(case.inputs).mean(0)
    network = interbasis.from_torch(case.original)
    graph = interbasis.build(network, case.inputs, progress=False).graph
    labels = network(case.inputs).argmax(-1)
    labels[:wrong] = (labels[:wrong] + 1) % 4
    data = (case.inputs, labels)
    exact = edges_required(network, graph, data, tolerance=0.001, progress=False)
    forgiving = edges_required(network, graph, data, tolerance=0.001 + 1e-9, progress=False)
    assert [edges.count for edges in exact] == [edges.count for edges in forgiving]
    assert [edges.stable_count for edges in exact] == [edges.stable_count for edges in forgiving]
