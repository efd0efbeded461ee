"""The bases of interbasis as methods: LIB, GIB, JIB, PCA, neurons and random directions."""

from dataclasses import dataclass, replace

import torch

from interbasis.analysis.yardstick.codes import (
    READ,
    CodedPlace,
    Codes,
    CoordinateCode,
    LinearCode,
    MethodInputs,
    all_places,
)
from interbasis.analysis.yardstick.metric_code import metric_code, principal_code, random_code
from interbasis.base.records import Basis
from interbasis.compute.executor import Clock
from interbasis.dictionaries.metrics import basis_gram
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.bases import BASES
from interbasis.lib.build import build


@dataclass(frozen=True)
class BasisMethod:
    """Features of a basis in its own order, which is Λ or the variance."""

    name: Basis

    def fit(self, inputs: MethodInputs) -> Codes:
        """Build the basis of every node layer, without edges.

        A basis that has to count all tokens is built on all of them.
        """
        config = inputs.config.model_copy(update={"basis": self.name})
        if BASES[self.name].needs_all_tokens:
            config = config.model_copy(update={"norm_limit": 0.0, "skip_positions": 0})
        executor = replace(inputs.executor, clock=Clock())
        layers = build(inputs.network, inputs.data, config, executor).layers
        codes = {}
        for place in all_places(inputs.network).values():
            if not place.name.endswith(READ):
                codes[place.name] = basis_code(place, layers[place.layer])
            elif self.name != "jib":  # its features are correlated
                codes[place.name] = self._part(place, layers[place.layer], (config.seed, place.layer))
        return codes

    def _part(
        self, place: CodedPlace, layer: LayerBasis, key: tuple[int, int]
    ) -> LinearCode | CoordinateCode:
        """The same kind of basis for a part of a node layer, from its covariance Σ and the metric CᵀC."""
        if layer.identity:
            return basis_code(place, layer)
        assert layer.mean is not None
        assert layer.eigenvalues is not None
        first, columns = layer.first_feature, place.columns
        back = layer.inverse[columns, first:]  # [w, r]
        mean, covariance = layer.mean[columns], back * layer.eigenvalues[first:] @ back.T
        if self.name == "pca":
            return principal_code(columns, mean, covariance)
        metric = basis_gram(layer, columns)
        if self.name == "random":
            return random_code(columns, mean, covariance, metric, key)
        return metric_code(columns, mean, covariance, metric)


def basis_code(place: CodedPlace, layer: LayerBasis) -> LinearCode | CoordinateCode:
    """Code of a layer's features; coordinates of a basis that is the identity are ranked by their
    variance."""
    assert layer.mean is not None
    columns, first = place.columns, layer.first_feature
    if layer.identity:
        assert layer.variances is not None
        order = layer.variances[columns].argsort(descending=True, stable=True)
        return CoordinateCode(columns, order, layer.mean[columns])
    return LinearCode(
        columns,
        layer.transform[first:, columns],
        layer.inverse[columns, first:],
        layer.mean[columns],
    )


def interaction_metrics(codes: Codes) -> dict[str, torch.Tensor]:
    """LIB's metric G = CᵀC at every place, [w, w], from LIB's codes."""
    return {
        name: code.encoder.T @ code.encoder for name, code in codes.items() if isinstance(code, LinearCode)
    }
