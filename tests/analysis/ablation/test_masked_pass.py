"""Ablated forward passes against a double loop over output features and tokens."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import interbasis
from cases import CASES, activations, as_general, attention_section, mlp, normal, seeded
from interbasis.analysis.ablation.masked_pass import (
    Table,
    ablate_edges,
    ablate_nodes,
    ablated,
    tabulate,
    top_edges,
)
from interbasis.base.records import Basis
from interbasis.lib.coordinates import sections_in_bases
from interbasis.network.cores import Attention, AttentionShape
from interbasis.network.network import Section

SMALL = ["relu", "sigmoid", "no-bias", "linear", "positionwise", "modadd", "modadd-2-blocks", "general"]


def looped(section: Section, f: Tensor, mask: Tensor) -> Tensor:
    """One full pass of the section per sample and output feature, with the inputs it may not see at 0."""
    samples = []
    for one in f:
        columns = [section((one * mask[i])[None])[0, :, i] for i in range(len(mask))]
        samples.append(torch.stack(columns, dim=-1))
    return torch.stack(samples)


def random_mask(shape: Sequence[int], density: float, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=seeded(seed)) < density


def close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= 1e-10 * expected.abs().max().clamp_min(1e-300))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("density", [0.0, 0.3, 0.9])
def test_sections_of_networks(name: str, density: float) -> None:
    case = CASES[name]()
    graph = interbasis.build(case.network, case.inputs, edge_method=None).graph
    sections = sections_in_bases(case.network, graph.layers)
    f = case.network.activations(case.inputs[:6])
    for k, section in enumerate(sections):
        features = f[k] @ graph.layers[k].transform.T
        mask = random_mask(section.skip.shape, density, seed=k)
        assert close(ablated(section, features, mask), looped(section, features, mask))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("last_only", [True, False])
def test_attention_its_table_and_the_general_path(causal: bool, last_only: bool) -> None:
    section = attention_section(AttentionShape(2, 3, causal), last_only)
    tokens = activations(section, 4, 5).flatten(0, 1)[:7]
    f = tokens[torch.randint(7, (30, 5), generator=seeded(1))]
    table = tabulate(f)
    assert table is not None
    assert len(table.rows) == 7
    mask = random_mask(section.skip.shape, 0.5)
    expected = looped(section, f, mask)
    for which, given in (
        (section, f),
        (section, table),
        (as_general(section), f),
        (as_general(section), table),
    ):
        assert close(ablated(which, given, mask), expected)


@pytest.mark.parametrize(
    "core",
    [
        Attention(AttentionShape(2, 5, causal=True)),
        Attention(AttentionShape(2, 5, causal=False)),
        Attention(AttentionShape(2, 5, scale=1.0, window=2)),
        Attention(AttentionShape(2, 5, cap=0.7)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("last_only", [True, False])
def test_attention_on_few_features(core: Attention, last_only: bool) -> None:
    """Fewer kept features than a head is wide: read and write are folded into scores and values."""
    section = replace(attention_section(AttentionShape(2, 5, core.shape.causal), last_only), core=core)
    f = activations(section, 4, 6)
    for density in (0.2, 0.6, 1.0):
        mask = random_mask(section.skip.shape, density, seed=3)
        assert close(ablated(section, f, mask), looped(section, f, mask))


def test_a_table_holds_what_repeats_and_nothing_else() -> None:
    rows = normal(3, 4)
    f = rows[torch.randint(3, (20, 2), generator=seeded(2))]
    table = tabulate(f)
    assert isinstance(table, Table)
    assert torch.equal(table.rows[table.index], f)
    assert tabulate(normal(20, 2, 4)) is None
    assert torch.equal((single := tabulate(f.float())).rows[single.index], f.float())


@pytest.mark.parametrize("basis", ["pca", "neuron"])
@pytest.mark.parametrize("name", SMALL)
def test_ablating_nothing_and_everything(name: str, basis: Basis) -> None:
    case = CASES[name]()
    graph = interbasis.build(case.network, case.inputs, basis=basis, rotate_last=False).graph
    whole = [torch.ones_like(edges, dtype=torch.bool) for edges in graph.edges]
    expected = case.network(case.inputs)
    assert close(ablate_edges(case.network, graph, case.inputs, whole), expected)
    # nothing but the constant's edges in all sections: the same output for every sample
    nothing = [top_edges(edges, 0) for edges in graph.edges]
    output = ablate_edges(case.network, graph, case.inputs, nothing)
    assert close(output, output[:1].expand_as(output))
    # in the last section alone, which is linear: the mean output
    if name in ("relu", "modadd", "modadd-2-blocks"):
        last = len(graph.edges) - 1
        output = ablate_edges(case.network, graph, case.inputs, {last: nothing[last]})
        assert close(output, expected.mean(0).expand_as(output))


def test_a_neuron_that_is_ablated_is_at_its_mean() -> None:
    case = mlp(torch.nn.GELU(), widths=(4, 5, 3), samples=50)
    inputs = case.inputs + 3
    graph = interbasis.build(case.network, inputs, basis="neuron", rotate_last=False).graph
    changed = inputs.clone()
    changed[:, 2] = inputs[:, 2].mean()
    kept = torch.ones(5, dtype=torch.bool)
    kept[3] = False  # feature 0 is the constant
    expected = case.network(changed)
    assert close(ablate_nodes(case.network, graph, inputs, {0: kept}), expected)
    mask = kept.expand(graph.edges[0].shape)
    assert close(ablate_edges(case.network, graph, inputs, {0: mask}), expected)


def test_nodes_are_kept_from_the_front_or_by_name() -> None:
    case = CASES["modadd"]()
    network = case.network
    graph = interbasis.build(network, case.inputs).graph
    layer = graph.layers[1]
    f = network.activations_at(1, case.inputs)
    expected = f @ (layer.inverse[:, :3] @ layer.transform[:3]).T
    for section in network.sections[1:]:
        expected = section(expected)
    for keep in ({1: 3}, {"mlp_in.0": torch.arange(3)}, {1: torch.arange(layer.features) < 3}):
        assert close(ablate_nodes(network, graph, case.inputs, keep), expected[:, -1])
    full = {k: layer.features for k, layer in enumerate(graph.layers[:-1])}
    assert close(ablate_nodes(network, graph, case.inputs, full), network(case.inputs))


def test_the_largest_edges_are_kept_and_the_constants_are_free() -> None:
    edges = torch.tensor([[9.0, 1, 5], [0, 3, 4]])
    assert top_edges(edges, 2).tolist() == [[True, False, True], [True, False, True]]
    assert top_edges(edges, 2, constant=False).tolist() == [[True, False, True], [False, False, False]]
    assert top_edges(edges, 0).sum() == 2
    assert top_edges(edges, 99).all()


def test_masks_that_do_not_fit_are_refused() -> None:
    case = CASES["relu"]()
    graph = interbasis.build(case.network, case.inputs).graph
    for masks, reason in (
        ({0: torch.ones(2, 2, dtype=torch.bool)}, "boolean of shape"),
        ({0: torch.ones_like(graph.edges[0])}, "boolean of shape"),
        ({"linear.9": torch.ones(1)}, r"linear\.9"),
        ({3: torch.ones(1)}, "received 3"),
        ([None], "each of the 3 sections"),
    ):
        with pytest.raises(interbasis.InterbasisError, match=reason):
            ablate_edges(case.network, graph, case.inputs, masks)
