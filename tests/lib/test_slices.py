"""Jacobians on slices of the data against full per-sample Jacobians, and the basis that is made of them."""

from typing import Any

import pytest
import torch

import reference
from cases import CASES
from interbasis import InterbasisError, build, from_torch
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.lib.jacobians import Jacobians
from interbasis.lib.slices import SLICES, _planes, jacobians_on_slices
from interbasis.lib.statistics import collect
from reference import relative_error


@pytest.mark.parametrize("name", ["gelu", "linear", "positionwise", "modadd", "modadd-2-blocks", "general"])
def test_jacobians_of_slices(name: str) -> None:
    case = CASES[name]()
    network, layers = (
        case.network,
        build(case.network, case.inputs, basis="lib", edge_method=None).graph.layers,
    )
    batches = Batches(case.inputs)
    found = jacobians_on_slices(Jacobians(Executor(network), collect(network, batches), batches), layers)
    activations = network.activations(case.inputs)
    side = activations[0].mean(1) @ _planes(layers[0], 0).T > 0
    slices = [torch.ones(len(side), dtype=torch.bool), *side.T]
    slices = [member for member in slices if member.any()]
    for k, section in enumerate(network.sections):
        source, target = layers[k : k + 2]
        first, out = source.first_feature, target.first_feature
        assert len(found[k].grams) == len(slices) <= SLICES + 1
        f = activations[k]
        J = reference.jacobians(section, f)  # [n, S, d_out, T, d_in]
        J = torch.einsum("ro,nsotj,jq->nsrtq", target.transform, J, source.inverse)[:, :, out:, :, first:]
        positions = range(f.shape[1])[section.outputs(f)]
        for number, member in enumerate(slices):
            M = torch.einsum("nsrtj,nsrtk->jk", J[member], J[member]) / (int(member.sum()) * f.shape[1])
            assert relative_error(found[k].grams[number], M) <= 1e-10
            J̄ = torch.stack([J[member, s, :, t] for s, t in enumerate(positions)]).mean((0, 1))
            assert relative_error(found[k].means[number], J̄) <= 1e-10


@pytest.mark.parametrize("name", ["gelu", "modadd", "gpt2"])
def test_joint_basis_is_lib_up_to_a_rotation(name: str) -> None:
    """The same metric CᵀC, so that the layer before does not notice; back and forth loses nothing."""
    case = CASES[name]()
    lib, jib = (
        build(case.network, case.inputs, basis=basis, edge_method=None, norm_limit=0).graph.layers
        for basis in ("lib", "jib")
    )
    for mine, theirs in zip(jib, lib, strict=True):
        assert (
            relative_error(mine.transform.T @ mine.transform, theirs.transform.T @ theirs.transform) <= 1e-9
        )
        identity = torch.eye(mine.features, dtype=torch.float64)
        assert (mine.transform @ mine.inverse - identity).abs().max() <= 1e-6
        assert mine.isolated == theirs.isolated
        alone = mine.first_feature + mine.isolated
        assert torch.equal(mine.transform[:alone], theirs.transform[:alone])
    for f, layer in zip(case.network.activations(case.inputs)[:-1], jib, strict=False):
        features = layer.to_features(f.double()).flatten(0, 1)[:, layer.first_feature :]
        variances = features.var(0, unbiased=False)
        assert relative_error(variances, layer.eigenvalues[layer.first_feature :]) <= 1e-6


def test_a_linear_network_has_nothing_to_turn_by() -> None:
    case = CASES["linear"]()
    lib, jib = (build(case.network, case.inputs, basis=basis).graph.layers for basis in ("lib", "jib"))
    for mine, theirs in zip(jib, lib, strict=True):
        assert torch.equal(mine.transform, theirs.transform)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({}, "unsupported for convolutions"), ({"skip_positions": 1}, "counts every token")],
)
def test_joint_basis_refuses_before_any_work(settings: dict[str, Any], message: str) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.ReLU(), torch.nn.Conv1d(3, 2, 3))
    images = torch.randn(4, 2, 9)
    case = CASES["gpt2"]()
    network, inputs = (case.network, case.inputs) if settings else (from_torch(module, images), images)
    steps = []
    with pytest.raises(InterbasisError, match=message):
        build(network, inputs, basis="jib", progress=lambda *step: steps.append(step), **settings)
    assert not steps
