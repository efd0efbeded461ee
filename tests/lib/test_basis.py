"""The invariants that any correct implementation of the bases shows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import CASES, LANGUAGE, Case, normal
from interbasis import build
from interbasis.base.records import Basis
from interbasis.graph.layer_basis import LayerBasis
from reference import jacobian_gram, relative_error

KINDS = ["lib", "gib", "pca", "neuron", "random"]
CENTRED = ["lib", "gib", "pca", "random"]


def fitted(name: str, kind: Basis, **settings: Any) -> tuple[Case, list[LayerBasis]]:
    case = CASES[name]()
    return case, build(case.network, case.inputs, basis=kind, edge_method=None, **settings).graph.layers


def features(case: Case, layers: list[LayerBasis]) -> list[Any]:
    activations = case.network.activations(case.inputs)
    return [f.flatten(0, 1) @ layer.transform.T for f, layer in zip(activations, layers, strict=True)]


@pytest.mark.parametrize("kind", CENTRED)
@pytest.mark.parametrize("name", CASES)
def test_centred_bases_keep_the_constant_apart(name: str, kind: Basis) -> None:
    case, layers = fitted(name, kind)
    activations = case.network.activations(case.inputs)
    for f, layer, values in zip(activations, layers, features(case, layers), strict=True):
        if not layer.constant:
            continue
        mean = f.flatten(0, 1).mean(0)
        assert relative_error(layer.inverse[:, 0], mean) <= 1e-10
        assert relative_error(layer.mean, mean) <= 1e-10
        assert torch.equal(layer.inverse[0, 1:], torch.zeros_like(layer.inverse[0, 1:]))
        assert torch.equal(values[:, 0], torch.ones_like(values[:, 0]))
        scale = values[:, 1:].square().mean(0).sqrt()
        assert (values[:, 1:].mean(0).abs() <= 1e-10 * scale + 1e-13).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str, kind: Basis) -> None:
    """C C⁺ = I on the features kept, and C⁺C projects onto the directions kept."""
    _, layers = fitted(name, kind)
    for layer in layers:
        assert layer.eigenvalues.shape == (layer.features,)
        identity = torch.eye(layer.features, dtype=torch.float64)
        assert relative_error(layer.transform @ layer.inverse, identity) <= 1e-8
        projection = layer.inverse @ layer.transform
        assert relative_error(projection @ projection, projection) <= 1e-7


@pytest.mark.parametrize("name", CASES)
def test_in_lib_coordinates_covariance_is_lambda_and_the_jacobian_gram_is_one(name: str) -> None:
    case, layers = fitted(name, "lib")
    activations = case.network.activations(case.inputs)
    for k, values in enumerate(features(case, layers)[:-1]):
        layer, target = layers[k : k + 2]
        covariance = values[:, 1:].T @ values[:, 1:] / len(values)
        within = not_across(layer)
        assert relative_error(within * covariance, torch.diag(layer.eigenvalues[1:])) <= 1e-8
        M = jacobian_gram(case.network.sections[k], activations[k], target.transform)
        M = layer.inverse[:, 1:].T @ M @ layer.inverse[:, 1:]
        assert (within * M - torch.eye(len(M))).abs().max() <= 1e-8
        assert layer.eigenvalues[0] == 1
        assert (layer.eigenvalues[1 + layer.isolated :].diff() <= 0).all()


def not_across(layer: LayerBasis) -> Tensor:
    """1 for pairs of features of which both or none are isolated; an isolated one may go with the others."""
    alone = torch.arange(layer.features - 1) < layer.isolated
    return (alone[:, None] == alone).double()


@pytest.mark.parametrize("name", CASES)
def test_gib_is_the_gram_of_the_jacobian_to_the_end(name: str) -> None:
    case, layers = fitted(name, "gib")
    sections, activations = case.network.sections, case.network.activations(case.inputs)
    for k, layer in enumerate(layers[:-1]):

        def to_the_end(f: Tensor, k: int = k) -> Tensor:
            for section in sections[k:]:
                f = section(f)
            return f

        M = jacobian_gram(to_the_end, activations[k], layers[-1].transform)
        M = layer.inverse[:, 1:].T @ M @ layer.inverse[:, 1:]
        assert (not_across(layer) * M - torch.eye(len(M))).abs().max() <= 1e-8


@pytest.mark.parametrize("kind", CENTRED)
@pytest.mark.parametrize("name", LANGUAGE)
def test_an_isolated_variance_is_a_feature_of_its_own(name: str, kind: Basis) -> None:
    case, layers = fitted(name, kind)
    seen = 0
    for node, layer in zip(case.network.nodes, layers, strict=True):
        assert layer.isolated == node.isolated
        if not node.isolated:
            continue
        seen += 1
        for matrix in (layer.transform, layer.inverse.T):  # [features, width]
            scale = matrix[1:, 1:].abs().max()
            assert matrix[1, 2:].abs().max() <= 1e-12 * scale
            assert matrix[2:, 1].abs().max() <= 1e-12 * scale
            assert matrix[1, 1].abs() > 0
    assert seen == 2


def test_without_isolation_the_variance_is_a_coordinate_like_others() -> None:
    case, layers = fitted("gpt2", "lib", isolate=False)
    activations = case.network.activations(case.inputs)
    layer = layers[1]
    assert layer.isolated == 0
    assert (layer.transform[1:, 1].abs() > 1e-9).sum() > 3
    M = jacobian_gram(case.network.sections[1], activations[1], layers[2].transform)
    M = layer.inverse[:, 1:].T @ M @ layer.inverse[:, 1:]
    assert (M - torch.eye(len(M))).abs().max() <= 1e-8


@pytest.mark.parametrize("name", ["gelu", "modadd", "modadd-2-blocks"])
def test_gib_equals_lib_at_the_last_two_layers_and_differs_before(name: str) -> None:
    _, lib = fitted(name, "lib")
    _, gib = fitted(name, "gib")
    for k in (-1, -2):
        assert relative_error(gib[k].transform, lib[k].transform) <= 1e-9
    # a linear last section leaves the metric as it is, so the layer before it agrees too; the first does not
    assert relative_error(gib[0].eigenvalues[1:4], lib[0].eigenvalues[1:4]) > 1e-3


@pytest.mark.parametrize("name", ["gelu", "modadd-2-blocks", "gpt2"])
@pytest.mark.parametrize("kind", ["lib", "gib"])
def test_results_depend_neither_on_batches_nor_on_the_order_of_the_data(
    name: str, kind: Basis, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]()
    order = torch.randperm(len(case.inputs), generator=torch.Generator().manual_seed(1))
    reference = build(case.network, case.inputs, basis=kind).graph
    request.getfixturevalue("small_chunks")
    for data in (list(case.inputs.split(3)), case.inputs[order]):
        other = build(case.network, data, basis=kind).graph
        for mine, theirs in zip(other.layers, reference.layers, strict=True):
            assert relative_error(mine.eigenvalues, theirs.eigenvalues) <= 1e-10
            assert relative_error(mine.transform, theirs.transform) <= 1e-10
        for mine, theirs in zip(other.edges, reference.edges, strict=True):
            assert relative_error(mine, theirs) <= 1e-10


@pytest.mark.parametrize("kind", ["lib", "gib", "pca", "random"])
@pytest.mark.parametrize("name", ["gelu", "modadd"])
def test_rotating_the_last_layer_or_not_changes_nothing_before_it(name: str, kind: Basis) -> None:
    case = CASES[name]()
    rotated = build(case.network, case.inputs, basis=kind, rotate_last=True).graph
    left = build(case.network, case.inputs, basis=kind, rotate_last=False).graph
    assert relative_error(rotated.layers[-1].transform, left.layers[-1].transform) > 0.1
    for mine, theirs in zip(rotated.layers[:-1], left.layers[:-1], strict=True):
        assert relative_error(mine.transform, theirs.transform) <= 1e-8
    for mine, theirs in zip(rotated.edges[:-1], left.edges[:-1], strict=True):
        assert relative_error(mine, theirs) <= 1e-9


def test_the_last_layer_is_pca_without_rescaling_or_left_alone() -> None:
    case, layers = fitted("gelu", "lib")
    x = case.original(case.inputs)
    centred = x - x.mean(0)
    values = torch.linalg.eigvalsh(centred.T @ centred / len(x)).flip(0)
    rotation = layers[-1].transform[1:, 1:]
    assert relative_error(rotation @ rotation.T, torch.eye(4, dtype=torch.float64)) <= 1e-12
    assert relative_error(layers[-1].eigenvalues[1:], values) <= 1e-12
    _, left = fitted("modadd", "lib")
    assert torch.equal(left[-1].transform, torch.eye(8, dtype=torch.float64))
    assert not left[-1].constant


def test_pca_and_neuron_bases_are_what_they_say() -> None:
    case, pca = fitted("gelu", "pca")
    _, neuron = fitted("gelu", "neuron")
    for f, layer, identity in zip(case.network.activations(case.inputs), pca, neuron, strict=True):
        x = f[:, 0, 1:] - f[:, 0, 1:].mean(0)
        values = torch.linalg.eigvalsh(x.T @ x / len(x)).flip(0)
        assert relative_error(layer.variances[1:], values[: layer.features - 1]) <= 1e-10
        assert torch.equal(layer.variances, layer.eigenvalues)
        assert torch.equal(identity.transform, torch.eye(f.shape[2], dtype=torch.float64))
        assert relative_error(identity.eigenvalues[1:], x.square().mean(0)) <= 1e-12


def test_the_random_control_differs_from_lib_in_the_rotation_alone() -> None:
    """Whitened directions turned at random, each scaled to have (VMVᵀ)_jj as its variance."""
    case, layers = fitted("gelu", "random", seed=4)
    activations = case.network.activations(case.inputs)
    for k, values in enumerate(features(case, layers)[:-1]):
        layer = layers[k]
        covariance = values[:, 1:].T @ values[:, 1:] / len(values)
        assert relative_error(covariance, torch.diag(layer.eigenvalues[1:])) <= 1e-8
        M = jacobian_gram(case.network.sections[k], activations[k], layers[k + 1].transform)
        M = layer.inverse[:, 1:].T @ M @ layer.inverse[:, 1:]
        assert (M.diagonal() - 1).abs().max() <= 1e-8
        assert (M - torch.diag(M.diagonal())).abs().max() > 0.05
    again, other = fitted("gelu", "random", seed=4)[1], fitted("gelu", "random", seed=5)[1]
    assert torch.equal(layers[0].transform, again[0].transform)
    assert not torch.equal(layers[0].transform, other[0].transform)


def test_a_direction_with_variance_but_no_use_is_in_pca_and_not_in_lib() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    module[0].weight.data[:, 2] = 0
    inputs = normal(200, 5)
    inputs[:, 2] *= 100
    network = interbasis.from_torch(module)
    pca = build(network, inputs, basis="pca", edge_method=None).graph.layers[0]
    lib = build(network, inputs, basis="lib", edge_method=None).graph.layers[0]
    unused = torch.eye(6, dtype=torch.float64)[3]
    assert (pca.transform[1] @ unused).abs() > 0.99
    assert pca.features == 6
    assert lib.features == 5
    # LIB cannot tell how large it is: no feature's pattern needs it beyond what the data correlate
    clean = inputs.clone()
    clean[:, 2] = 0
    without = build(network, clean, basis="lib", edge_method=None).graph.layers[0]
    assert relative_error(without.eigenvalues, lib.eigenvalues) <= 1e-10


def test_a_linear_network_has_diagonal_edges_in_lib() -> None:
    case = CASES["linear"]()
    graph = build(case.network, case.inputs).graph
    for edges in graph.edges:
        inner = edges[1:, 1:]
        off = inner - torch.diag_embed(inner.diagonal(), dim1=0, dim2=1)[: len(inner), : inner.shape[1]]
        assert off.abs().max() <= 1e-7 * inner.max()


def test_separate_blocks_have_no_edges_between_them() -> None:
    """A full product design of inputs, so that sample cross-covariances vanish exactly."""
    torch.manual_seed(2)
    first = nn.Sequential(nn.Linear(2, 5), nn.GELU(), nn.Linear(5, 3), nn.GELU(), nn.Linear(3, 2)).double()
    second = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)).double()
    joined = nn.Sequential()
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        if isinstance(a, nn.Linear) and isinstance(b, nn.Linear):
            layer = nn.Linear(a.in_features + b.in_features, a.out_features + b.out_features).double()
            layer.weight.data = torch.block_diag(a.weight.data, b.weight.data)
            layer.bias.data = torch.cat([a.bias.data, b.bias.data])
            joined.add_module(str(k), layer)
        else:
            joined.add_module(str(k), a)
    x, y = normal(12, 2, seed=3), 1.7 * normal(15, 3, seed=4)
    inputs = torch.cat([x.repeat_interleave(15, 0), y.repeat(12, 1)], dim=1)
    graph = build(interbasis.from_torch(joined), inputs).graph
    widths = [2, 5, 3, 2]
    for k, edges in enumerate(graph.edges):
        source, target = graph.layers[k : k + 2]
        of_source = source.transform[1:, 1 : 1 + widths[k]].abs().amax(1) > 1e-6 * source.transform[
            1:, 1:
        ].abs().amax(1)
        of_target = target.transform[1:, 1 : 1 + widths[k + 1]].abs().amax(1) > 1e-6 * target.transform[
            1:, 1:
        ].abs().amax(1)
        assert 0 < of_source.sum() < len(of_source)
        across = of_target[:, None] != of_source[None, :]
        assert edges[1:, 1:][across].max() <= 1e-10 * edges[1:, 1:].max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_layer_leaves_the_constant_alone(kind: Basis) -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    module[0].bias.data[:] = -100
    graph = build(interbasis.from_torch(module), normal(50, 4), basis=kind).graph
    assert graph.layers[1].features == (6 if kind == "neuron" else 1)
    assert all(edges.isfinite().all() for edges in graph.edges)
    assert relative_error(graph.layers[1].inverse[:, 0], torch.eye(6, dtype=torch.float64)[0]) == 0
