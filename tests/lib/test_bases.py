"""A basis is an object: what there is to know about one, and how another is added."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from cases import CASES, Case
from interbasis import InteractionGraph, build
from interbasis.base.records import Basis
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import BASIS_KINDS, BasisKind
from interbasis.graph.store import load
from interbasis.lib.bases import BASES, FeatureBasis, FitInputs
from interbasis.lib.bases.lib import LocalInteractionBasis
from interbasis.lib.bases.principal import unrotated
from interbasis.lib.covariance import Covariance
from interbasis.lib.edges import edges as measure_edges
from interbasis.lib.jacobians import Jacobians
from interbasis.lib.statistics import Wanted, collect
from interbasis.network.network import NodeLayer
from reference import relative_error


def test_every_word_has_a_record_and_a_basis() -> None:
    assert tuple(BASIS_KINDS) == tuple(BASES) == get_args(Basis)
    for name, basis in BASES.items():
        assert basis.kind is BASIS_KINDS[name]
        assert basis.kind.description in repr(basis)


@pytest.mark.parametrize("name", BASES)
def test_a_basis_asks_for_no_more_than_it_says(name: Basis) -> None:
    """Jacobians that raise serve a basis that needs none; diagonals serve one that needs no Grams."""
    case, basis = CASES["gelu"](), BASES[name]
    wanted = Wanted(grams=basis.needs_grams, cores=basis.needs_jacobians)
    layers = fitted(basis, case, wanted)
    expected = build(case.network, case.inputs, basis=name, edge_method=None).graph.layers
    for mine, theirs in zip(layers, expected, strict=True):
        assert torch.equal(mine.transform, theirs.transform)
    inner = expected[0]
    by_variance = torch.equal(inner.eigenvalues, inner.variances)
    assert by_variance == (basis.kind.ranked_by == "variance")
    assert inner.identity != basis.kind.rotated


class Standardized(FeatureBasis):
    """f̂_j = (f_j − mean_j) / σ_j: what a new basis has to write."""

    kind = BasisKind("standardized", "standardized", "coordinates in standard deviations", "variance")  # type: ignore[arg-type]
    needs_grams = False

    def fit(self, inputs: FitInputs) -> list[LayerBasis]:
        return [self.layer(*pair) for pair in zip(inputs.nodes, inputs.covariances, strict=True)]

    def layer(self, node: NodeLayer, covariance: Covariance) -> LayerBasis:
        plain = unrotated(node, covariance)
        deviation = plain.variances.sqrt()
        transform = torch.diag(1 / deviation)
        inverse = torch.diag(deviation)
        if node.constant:
            transform[1:, 0] = -(covariance.mean / deviation[1:])
            inverse[1:, 0] = covariance.mean
        return LayerBasis(
            node.name, transform, inverse, plain.mean, torch.ones_like(deviation), plain.variances
        )


class LogitsAsTheyAre(LocalInteractionBasis):
    """LIB with the last layer left alone whatever the settings say: a change of one step."""

    kind = BasisKind("logits", "logits", "LIB with the logits as they are", "lambda")  # type: ignore[arg-type]

    def fit(self, inputs: FitInputs) -> list[LayerBasis]:
        return super().fit(replace(inputs, rotate_last=False))


def test_a_basis_of_ones_own_is_fitted_saved_and_loaded(tmp_path: Path) -> None:
    """Registered it is by the tuple in fit/bases/__init__.py; any object with a `fit` does the same work."""
    case = CASES["gelu"]()
    layers = fitted(Standardized(), case, Wanted(grams=False, cores=False))
    for f, layer in zip(case.network.activations(case.inputs), layers, strict=True):
        values = layer.to_features(f).flatten(0, 1)
        assert values[:, 1:].mean(0).abs().max() <= 1e-12
        assert (values[:, 1:].square().mean(0) - 1).abs().max() <= 1e-12
        assert relative_error(layer.from_features(layer.to_features(f)), f) <= 1e-12
    edges = measure_edges(case.network, layers, case.inputs)
    graph = build(case.network, case.inputs, basis="neuron").graph
    mine = InteractionGraph(layers, edges, graph.config, graph.provenance)
    read = load(mine.save(tmp_path / "run"))
    for layer, again in zip(layers, read.layers, strict=True):
        assert torch.equal(layer.transform, again.transform)
    for before, after in zip(edges, read.edges, strict=True):
        assert torch.equal(before, after)


def test_a_basis_that_changes_one_step_inherits_the_others() -> None:
    case = CASES["gelu"]()
    layers = fitted(LogitsAsTheyAre(), case, Wanted())
    expected = build(case.network, case.inputs, basis="lib", rotate_last=False, edge_method=None).graph.layers
    for mine, theirs in zip(layers, expected, strict=True):
        assert torch.equal(mine.transform, theirs.transform)


def fitted(basis: FeatureBasis | Standardized | LogitsAsTheyAre, case: Case, wanted: Wanted) -> list[Any]:
    network, batches = case.network, Batches(case.inputs)
    statistics = collect(network, batches, wanted)
    jacobians: Any = Unwanted()
    if basis.needs_jacobians:
        jacobians = Jacobians(Executor(network), statistics, batches)
    config = build(network, case.inputs, basis="neuron", edge_method=None).graph.config
    return basis.fit(FitInputs(network.nodes, statistics.layers, jacobians, config))


class Unwanted:
    def __getattr__(self, name: str) -> None:
        raise AssertionError("a basis that needs no Jacobians asked for them")
