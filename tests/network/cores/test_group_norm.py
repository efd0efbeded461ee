"""Group norms and instance norms in closed form against automatic differentiation, in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import activations, as_general, normal
from interbasis import build, from_torch
from interbasis.network.cores import Counted, General, GroupNorm
from interbasis.network.network import NodeLayer, Section
from interbasis.numerics.integration import rule
from interbasis.run.run import Run
from network.cores.test_cores import check, check_signed
from reference import edges, relative_error

RULE = rule("quadrature", 3)


def group_norm_section(groups: int, size: int, last_only: bool = False, seed: int = 0) -> Section:
    d_in, d_out = 5, 6
    sizes = (d_out, d_in), (groups * size, d_in), (d_out, groups * size)
    skip, read, write = (normal(*shape, seed=seed + k) for k, shape in enumerate(sizes))
    nodes = NodeLayer("in", d_in), NodeLayer("out", d_out)
    return Section(*nodes, skip, read, write, GroupNorm(groups, 0.1), last_only)


@settings(max_examples=12)
@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 3),
    positions=st.integers(1, 4),
    last_only=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_group_norms(groups: int, size: int, positions: int, last_only: bool, seed: int) -> None:
    """Instance norms are groups of one channel."""
    section = group_norm_section(groups, size, last_only, seed)
    f = activations(section, 2, positions, seed=seed + 3)
    if groups * size * positions == groups:
        return  # a group of one number is always 0
    check(section, f)
    check_signed(section, f)


def test_tokens_that_count() -> None:
    section = group_norm_section(2, 2)
    f = activations(section, 3, 4)
    counted = Counted(*((normal(3, 4, seed=k) > 0).double() for k in (1, 2)))
    metric = normal(4, 4, seed=3)
    metric = metric @ metric.T
    arguments = section.read_outs(f), slice(0, 4), metric, None, counted
    cores: tuple[Any, Any] = section.core, as_general(section).core
    found, expected = (core.batch_sums(*arguments) for core in cores)
    for name, total in expected.items():
        assert relative_error(found[name], total) <= 1e-10


@pytest.fixture(scope="module")
def run() -> tuple[Run, nn.Sequential, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 2),
        nn.InstanceNorm2d(4, affine=True), nn.SiLU(), nn.Flatten(), nn.Linear(16, 3),
    ).double()  # fmt: skip
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    inputs = normal(12, 2, 4, 4)
    return (
        build(from_torch(module, inputs[:2]), inputs, edge_method="quadrature", edge_points=3),
        module,
        inputs,
    )


def test_edges_of_a_network_with_both(run: tuple[Run, nn.Sequential, Tensor]) -> None:
    run, module, inputs = run
    network = run.network
    assert sum(isinstance(section.core, GroupNorm) for section in network.sections) == 2
    assert not any(isinstance(section.core, General) for section in network.sections)
    assert relative_error(network(inputs), module(inputs)) <= 1e-12
    for k, (section, f) in enumerate(zip(network.sections, network.activations(inputs), strict=False)):
        if isinstance(section.core, GroupNorm):
            expected = edges(section, f, *run.graph.layers[k : k + 2], nodes=RULE.nodes, weights=RULE.weights)
            assert relative_error(run.graph.edges[k], expected) <= 1e-10


def test_masks_and_traces_of_a_network_with_both(run: tuple[Run, nn.Sequential, Tensor]) -> None:
    """A mask that keeps all edges changes nothing; one that drops some is the section fed with the others."""
    run, _, inputs = run
    graph, network = run.graph, run.network
    k = next(k for k, section in enumerate(network.sections) if isinstance(section.core, GroupNorm))
    source, target = graph.layers[k : k + 2]
    keep = torch.rand(graph.edges[k].shape, generator=torch.Generator().manual_seed(0)) > 0.5
    f = network.activations(inputs)[k]
    section = network.sections[k]
    features = f @ source.transform.T
    rows = [
        (section((features * row) @ source.inverse.T) @ target.transform.T)[..., i]
        for i, row in enumerate(keep)
    ]
    expected = torch.stack(rows, dim=-1) @ target.inverse.T
    for step in network.sections[k + 1 :]:
        expected = step(expected)
    found = run.masked_output(inputs, edges={network.layers[k]: keep})
    assert relative_error(found, expected[:, 0, 1:]) <= 1e-9
    assert run.trace(sample=0, checks=1, method="gradient").trace.nodes
