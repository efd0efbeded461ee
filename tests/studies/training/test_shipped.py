"""The model that comes with interbasis: real, trained, and enough to show everything without other data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import interbasis
from cases import plain_transformer
from interbasis import modadd
from interbasis.base.records import Basis
from interbasis.graph.named_models import SHIPPED
from interbasis.graph.store import load
from interbasis.lib.edges import edges as measure_edges
from interbasis.network.network import Network
from reference import edges as reference_edges
from reference import jacobian_gram, relative_error


@pytest.fixture(scope="module")
def network() -> Network:
    return modadd.load(SHIPPED).double()


@pytest.fixture(scope="module")
def graphs(shipped_run: Callable[[Basis], Path]) -> dict[Any, Any]:
    return {basis: load(shipped_run(basis)) for basis in ("lib", "pca")}


def test_it_is_the_transformer_its_weights_describe(network: Network) -> None:
    weights = {name: w.double() for name, w in load_file(SHIPPED).items()}
    tokens = modadd.pairs().inputs[::37]
    assert relative_error(network(tokens), plain_transformer(weights, 1, tokens)[:, -1]) <= 1e-12


def test_it_solves_its_task_and_says_how_it_was_trained(network: Network) -> None:
    _, test = modadd.split()
    accuracy = (network(test.inputs).argmax(-1) == test.labels).double().mean().item()
    with safe_open(SHIPPED, "pt") as file:
        recipe = json.loads(file.metadata()["training"])
    assert accuracy >= 0.999
    assert accuracy == pytest.approx(recipe["test_accuracy"], abs=2e-4)
    assert recipe["seed"] == 0
    assert SHIPPED.stat().st_size < 2**20


def test_its_jacobian_gram_is_one_in_lib_coordinates(network: Network, graphs: dict[Any, Any]) -> None:
    """On the real model, closed forms against per-sample Jacobians: a subset of the data, all layers."""
    tokens = modadd.split()[0].inputs[:40]
    layers = interbasis.build(network, tokens, edge_method=None, relative_threshold=1e-9).graph.layers
    activations = network.activations(tokens)
    for k, layer in enumerate(layers[:-1]):
        M = jacobian_gram(network.sections[k], activations[k], layers[k + 1].transform)
        M = layer.inverse[:, 1:].T @ M @ layer.inverse[:, 1:]
        assert (M - torch.eye(len(M))).abs().max() <= 1e-8


@pytest.mark.parametrize("basis", ["lib", "pca"])
def test_its_edges_are_what_the_definition_says(network: Network, graphs: dict[Any, Any], basis: str) -> None:
    tokens, layers = modadd.split()[0].inputs[:6], graphs[basis].layers
    found = measure_edges(network, layers, tokens)
    activations = network.activations(tokens)
    for k, section in enumerate(network.sections):
        expected = reference_edges(section, activations[k], *layers[k : k + 2])
        assert relative_error(found[k], expected) <= 1e-10


def test_lib_concentrates_its_edges_and_drops_what_is_not_used(graphs: dict[Any, Any]) -> None:
    """What the demo shows: a few dozen of thousands of edges carry nearly all of Ê²."""
    lib = graphs["lib"]
    for edges in lib.edges[:2]:
        squares = edges[1:, 1:].square().flatten().sort(descending=True).values
        assert squares[:200].sum() > 0.95 * squares.sum()
    assert lib.layers[2].features < graphs["pca"].layers[2].features
