"""Tokens that a graph leaves out are not masked: against a loop over output features in the network's own
coordinates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from cases import CASES, normal, seeded
from command_line import run_command
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.masked_pass import ablate_edges, ablate_nodes
from interbasis.analysis.ablation.robust import Attack, RobustSearch
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import load_result
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network
from reference import relative_error
from tiny_models import random_model

LEFT_OUT: dict[str, Any] = {"skip_positions": 1, "norm_limit": 1.15}


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def left_out(request: pytest.FixtureRequest) -> tuple[Network, InteractionGraph, Tensor]:
    """A language model, its graph with tokens left out, and tokens."""
    case = CASES[request.param]()
    graph = interbasis.build(case.network, case.inputs, **LEFT_OUT).graph
    return case.network, graph, case.inputs[:3]


def counts_at(network: Network, graph: InteractionGraph, k: int, f: Tensor) -> Tensor:  # [n, T]
    return CountedTokens.from_layers(network, graph.layers).at(k, network.nodes[k], f)


def looped(network: Network, graph: InteractionGraph, inputs: Tensor, masks: dict[int, Tensor]) -> Tensor:
    """Sections with masks one output feature at a time, the inputs in the network's own coordinates."""
    untouched = network.activations(inputs)
    f = untouched[0]
    for k, section in enumerate(network.sections):
        whole = section(f)
        if k in masks:
            source, target = graph.layers[k : k + 2]
            seen, told = (counts_at(network, graph, j, untouched[j])[..., None] for j in (k, k + 1))
            features = []
            for i, row in enumerate(masks[k]):
                masked = source.from_features(source.to_features(f) * row)
                features.append(target.to_features(section(torch.where(seen, masked, f)))[..., i])
            f = torch.where(told, target.from_features(torch.stack(features, dim=-1)), whole)
        else:
            f = whole
    return network.output_from(f, inputs)


def random_masks(graph: InteractionGraph, sections: list[int], density: float) -> dict[int, Tensor]:
    masks = {k: torch.rand(graph.edges[k].shape, generator=seeded(k)) < density for k in sections}
    for mask in masks.values():
        mask[:, 0] = True
    return masks


@pytest.mark.parametrize("density", [0.1, 0.8])
def test_one_section_and_several(left_out: tuple[Network, InteractionGraph, Tensor], density: float) -> None:
    network, graph, inputs = left_out
    for chosen in ([0], [1], [2], [1, 3], list(range(len(graph.edges)))):
        masks = random_masks(graph, chosen, density)
        expected = looped(network, graph, inputs, masks)
        assert relative_error(ablate_edges(network, graph, inputs, masks), expected) <= 1e-10


def test_tokens_are_left_out_and_others_are_not(left_out: tuple[Network, InteractionGraph, Tensor]) -> None:
    network, graph, inputs = left_out
    counted = [counts_at(network, graph, k, f) for k, f in enumerate(network.activations(inputs))]
    assert all(not counts[:, 0].any() for counts in counted)  # skip_positions
    assert any(not counts[:, 1:].all() for counts in counted)  # norm_limit
    assert all(counts.any() for counts in counted)


def test_nodes(left_out: tuple[Network, InteractionGraph, Tensor]) -> None:
    network, graph, inputs = left_out
    for k in range(len(graph.layers) - 1):
        f = network.activations(inputs)[k]
        basis, counts = graph.layers[k], counts_at(network, graph, k, f)[..., None]
        kept = torch.arange(basis.features) < basis.features // 2
        expected = torch.where(counts, basis.from_features(basis.to_features(f) * kept), f)
        for section in network.sections[k:]:
            expected = section(expected)
        found = ablate_nodes(network, graph, inputs, {k: basis.features // 2})
        assert relative_error(found, network.output_from(expected, inputs)) <= 1e-10


def test_nothing_but_whole_tokens_changes_nothing() -> None:
    case = CASES["gpt2"]()
    graph = interbasis.build(case.network, case.inputs, skip_positions=3).graph
    first = case.inputs[:2, :3]  # no token that counts
    masks = {k: torch.zeros(edges.shape, dtype=torch.bool) for k, edges in enumerate(graph.edges)}
    assert relative_error(ablate_edges(case.network, graph, first, masks), case.network(first)) <= 1e-12


def test_an_attack_with_a_mask_of_zeros_and_ones_is_the_ablation(
    left_out: tuple[Network, InteractionGraph, Tensor],
) -> None:
    network, graph, inputs = left_out
    labelled = (inputs[:, :-1], inputs[:, 1:])
    for k in (1, 3):
        evaluation = Evaluation(network, graph, labelled, "cross_entropy")
        mask = random_masks(graph, [k], 0.5)[k]
        search = RobustSearch(evaluation, k, limit=100.0, attack=Attack(steps=1, starts=1))
        found = search._value(mask, torch.zeros(mask.shape, dtype=torch.float64))
        assert found == pytest.approx(evaluation.edges({k: mask}).value, rel=1e-10)


def test_all_tokens_masks_them_too(left_out: tuple[Network, InteractionGraph, Tensor]) -> None:
    network, graph, inputs = left_out
    labelled = (inputs[:, :-1], inputs[:, 1:])
    masks = random_masks(graph, [1], 0.2)
    some, all_of_them = (
        Evaluation(network, graph, labelled, "cross_entropy", all_tokens) for all_tokens in (False, True)
    )
    assert not some.all_tokens
    assert all_of_them.all_tokens
    assert some.edges(masks).value != all_of_them.edges(masks).value
    assert some.baseline.value == all_of_them.baseline.value


def test_the_command_says_which_tokens_were_masked_and_measures_again(tmp_path: Path) -> None:
    random_model("llama").save_pretrained(tmp_path / "model")
    tokens = (normal(400).abs() * 8).long().clamp_max(22).to(torch.uint16)
    (tmp_path / "tokens.uint16").write_bytes(tokens.numpy().tobytes())
    data = f"tokens:{tmp_path}/tokens.uint16,context=8,part=all,samples=8"
    run = tmp_path / "run"
    built = run_command(
        "build", f"hf:{tmp_path}/model", "--data", data, "--skip-positions", 1, 
        "--layers", "ln1.0,ln1_out.0,attn_in.0,ln2.0", "--out", run,
    )  # fmt: skip
    assert built.code == 0, built.err
    options = ("--data", data, "--tolerance", 0.001, "--sections", "attn_in.0")
    first = run_command("ablate", run, *options)
    assert first.code == 0, first.err
    assert "left out are not masked" in " ".join(first.out.split())
    result = load_result(run, AblationResult)
    assert result is not None
    assert not result.all_tokens
    second = run_command("ablate", run, *options, "--all-tokens")
    assert second.code == 0, second.err
    assert "not masked" not in second.out
    assert load_result(run, AblationResult).all_tokens
