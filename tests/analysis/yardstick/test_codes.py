"""Codes of the yardstick against the formulas of the papers that they are from, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import modular_addition, normal
from interbasis import InterbasisError
from interbasis.analysis.yardstick.codes import (
    LinearCode,
    MethodInputs,
    all_places,
    chosen_places,
    dump_codes,
    load_codes,
)
from interbasis.analysis.yardstick.methods import METHODS, chosen_methods
from interbasis.analysis.yardstick.rank import leading
from interbasis.compute.executor import Executor
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.counted_tokens import ALL_TOKENS
from interbasis.network.network import Network
from interbasis.network.replacement import replaced_output
from reference import relative_error

EXACT = 1e-10


def fit(name: str, network: Network, data: Tensor) -> dict[str, Any]:
    config = with_network_defaults(network, BuildConfig(edge_method=None, norm_limit=0.0, dtype="float64"))
    network = network.to(torch.float64)
    inputs = MethodInputs(network, BuildData.from_data(data), config, ALL_TOKENS, Executor(network))
    return dict(METHODS[name].fit(inputs))


@pytest.fixture(scope="module")
def classifier() -> tuple[Network, nn.Sequential, Tensor]:
    """A random MLP, the module, and correlated inputs whose mean is not 0."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(9, 7), nn.GELU(), nn.Linear(7, 5)).double()
    return interbasis.from_torch(module), module, normal(400, 9, seed=1) @ normal(9, 9, seed=2) + 0.7


@pytest.fixture(scope="module")
def language_model() -> tuple[Network, Tensor]:
    pytest.importorskip("transformers")
    from tiny_models import random_model, tokens

    return interbasis.from_hf(random_model("gpt2")).to(torch.float64), tokens(40, 12)


def read_through(module: Any, code: LinearCode, x: Tensor, rank: int) -> Tensor:
    """Outputs of a linear map of the reconstructed inputs, without its bias."""
    f = torch.cat([torch.ones_like(x[:, :1]), x], 1)
    return code.reconstruct(f, leading(code.directions, 0, rank))[:, 1:] @ module.weight.T


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_weight_svd_is_the_nearest_matrix_of_a_rank(
    classifier: tuple[Network, nn.Sequential, Tensor], rank: int
) -> None:
    network, module, x = classifier
    code = fit("weight-svd", network, x)[network.layers[0]]
    U, S, Vh = torch.linalg.svd(module[0].weight, full_matrices=False)
    nearest = U[:, :rank] * S[:rank] @ Vh[:rank]
    expected = (x - x.mean(0)) @ nearest.T + x.mean(0) @ module[0].weight.T
    assert relative_error(read_through(module[0], code, x, rank), expected) < EXACT


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_activation_svd_is_the_formula_of_its_paper(
    classifier: tuple[Network, nn.Sequential, Tensor], rank: int
) -> None:
    network, module, x = classifier
    code = fit("activation-svd", network, x)[network.layers[0]]
    centred = x - x.mean(0)
    S = torch.linalg.cholesky(centred.T @ centred / len(x))
    U, T, Vh = torch.linalg.svd(module[0].weight @ S, full_matrices=False)
    truncated = U[:, :rank] * T[:rank] @ Vh[:rank] @ torch.linalg.inv(S)
    expected = centred @ truncated.T + x.mean(0) @ module[0].weight.T
    assert relative_error(read_through(module[0], code, x, rank), expected) < EXACT
    worse = fit("weight-svd", network, x)[network.layers[0]]
    original = x @ module[0].weight.T
    errors = [(read_through(module[0], c, x, rank) - original).square().sum() for c in (code, worse)]
    assert errors[0] < errors[1]


def test_lib_before_a_linear_end_is_activation_svd(classifier: tuple[Network, nn.Sequential, Tensor]) -> None:
    network, module, x = classifier
    layer = network.layers[1]
    hidden = torch.cat([torch.ones(len(x), 1).double(), module[1](module[0](x)).detach()], 1)
    codes = [fit(name, network, x)[layer] for name in ("lib", "activation-svd")]
    for rank in range(6):  # of rank 5 at most
        kept = [code.reconstruct(hidden, leading(code.directions, 0, rank)) for code in codes]
        outputs = [(f[:, 1:] @ module[2].weight.T).detach() for f in kept]
        assert relative_error(*outputs) < 1e-8, rank


@pytest.mark.parametrize("rank", [0, 2, 5])
def test_codes_of_bases_are_node_ablations(
    classifier: tuple[Network, nn.Sequential, Tensor], rank: int
) -> None:
    network, _, x = classifier
    run = interbasis.build(network, x, progress=False)
    code = fit("lib", network, x)[network.layers[0]]
    f = network.activations_at(0, x)
    keep = leading(code.directions, 0, rank)
    found = replaced_output(network, 0, f, x, {0: lambda f: code.reconstruct(f, keep)})
    assert relative_error(found, run.masked_output(x, nodes={0: rank + 1})) < EXACT


def test_slicing_is_the_formula_of_its_paper(language_model: tuple[Network, Tensor]) -> None:
    network, tokens = language_model
    codes = fit("slicing", network, tokens)
    assert all(name.startswith("ln") and "out" not in name for name in codes)
    index = network.layers.index("ln2.0")
    x = network.activations_at(index, tokens)[..., 1:]
    section: Any = network.sections[index + 1]
    normalised = nn.functional.layer_norm(x, x.shape[-1:], eps=section.core.epsilon)
    X = normalised.flatten(0, 1)
    Q = torch.linalg.eigh(X.T @ X).eigenvectors.flip(1)
    f = network.activations_at(index, tokens)
    for rank in (3, x.shape[-1] // 2):
        kept = codes["ln2.0"].reconstruct(f, leading(x.shape[-1], 0, rank))[..., 1:]
        assert relative_error(kept, x @ Q[:, :rank] @ Q[:, :rank].T) < EXACT


def test_methods_for_weights_leave_the_residual_stream_alone(language_model: tuple[Network, Tensor]) -> None:
    network, tokens = language_model
    codes = fit("activation-svd", network, tokens)
    assert set(codes) == {name for name in all_places(network) if name.endswith(":read")}
    code = codes["mlp_in.0:read"]
    place = all_places(network)["mlp_in.0:read"]
    f = network.activations_at(place.layer, tokens)
    changed = code.reconstruct(f, leading(code.directions, 0, 2)) != f
    assert changed[..., place.columns].any()
    assert not changed[..., place.columns.stop :].any()
    assert not changed[..., : place.columns.start].any()


@pytest.mark.parametrize("name", ["lib", "pca", "random", "neuron"])
def test_a_part_of_a_layer_has_the_same_kind_of_basis(
    language_model: tuple[Network, Tensor], name: str
) -> None:
    network, tokens = language_model
    place = all_places(network)["mlp_in.0:read"]
    code = fit(name, network, tokens)[place.name]
    f = network.activations_at(place.layer, tokens)
    whole = code.reconstruct(f, leading(code.directions, 0, code.directions))
    assert relative_error(whole, f) < 1e-7  # the normalised stream has a direction without variance
    x = f[..., place.columns].flatten(0, 1)
    x = x - x.mean(0)
    if name == "pca":
        best = torch.linalg.svdvals(x)[4:].square().sum()
        kept = code.reconstruct(f, leading(code.directions, 0, 4))
        assert relative_error((f - kept).square().sum(), best) < 1e-8
    if name == "lib":
        z = x @ code.encoder.T
        covariance = z.T @ z / len(z)
        assert relative_error(covariance, torch.eye(len(covariance)).double()) < 1e-6
        settings: dict[str, Any] = {
            "edge_method": None,
            "norm_limit": 0.0,
            "dtype": "float64",
            "progress": False,
        }
        run = interbasis.build(network, tokens, **settings)
        C = run.layers[place.layer].transform[1:, place.columns]
        matters = (C @ code.decoder).square().sum(0)
        assert (matters.diff() <= 1e-9 * matters[0]).all()


def test_a_skip_beside_the_weights_rules_weights_out() -> None:
    network = modular_addition().network
    assert [name for name in all_places(network) if name.endswith(":read")] == []
    assert set(fit("weight-svd", network, modular_addition().inputs)) == {"unembed"}


def test_codes_are_stored_as_they_are(classifier: tuple[Network, nn.Sequential, Tensor]) -> None:
    network, _, x = classifier
    f = network.activations_at(0, x)
    for name in ("lib", "neuron"):
        codes = fit(name, network, x)
        again = load_codes(dump_codes(codes))
        for place, code in codes.items():
            if code.columns.stop <= f.shape[-1]:
                keep = leading(code.directions, 1, 4)
                assert torch.equal(code.reconstruct(f, keep), again[place].reconstruct(f, keep))


def test_unknown_names_are_refused(classifier: tuple[Network, nn.Sequential, Tensor]) -> None:
    network = classifier[0]
    with pytest.raises(InterbasisError, match=r"node layer before the last.*'output'"):
        chosen_places(network, ("output",))
    with pytest.raises(InterbasisError, match=r"received 'linear.0:read'"):
        chosen_places(network, ("linear.0:read",))
    with pytest.raises(InterbasisError, match=r"methods of lib, gib.*'svd'"):
        chosen_methods(["svd"])
    with pytest.raises(InterbasisError, match="once, received lib, lib"):
        chosen_methods(["lib", "lib"])
