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
from interbasis.lib.build import build_window
from interbasis.lib.counted_tokens import ALL_TOKENS
from interbasis.lib.window import Window


@dataclass(frozen=True)
class BasisMethod:
    """Features of a basis in its own order, which is Λ or the variance."""

    name: Basis

    def fit(self, inputs: MethodInputs) -> Codes:
        """Build the basis of every node layer, without edges.

        A basis that has to count all tokens is built on all of them.
        """
        config = inputs.config.model_copy(update={"basis": self.name})
        counted = ALL_TOKENS if BASES[self.name].needs_all_tokens else inputs.counted
        executor = replace(inputs.executor, clock=Clock())
        layers = build_window(Window(executor, inputs.data, counted), config).layers
        codes = {}
        for place in all_places(inputs.network).values():
            if not place.name.endswith(READ):
                codes[place.name] = basis_code(place, layers[place.layer])
            elif self.name != "jib":  # its features are correlated
                codes[place.name] = self._part(place, layers[place.layer], (config.seed, place.layer))
        return codes

    def _part(self, place: CodedPlace, layer: LayerBasis, key: tuple[int, int]) -> LinearCode:
        """The same kind of basis for a part of a node layer, from its covariance Σ and the metric CᵀC."""
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


class Neurons:
    """Coordinates in the order of their variances."""

    name = "neuron"

    def fit(self, inputs: MethodInputs) -> Codes:
        covariances, codes = inputs.covariances(), {}
        for place in all_places(inputs.network).values():
            first = inputs.network.nodes[place.layer].first_coordinate
            here = slice(place.columns.start - first, place.columns.stop - first)
            covariance = covariances[place.layer]
            order = covariance.variances[here].argsort(descending=True, stable=True)
            codes[place.name] = CoordinateCode(place.columns, order.cpu(), covariance.mean[here].cpu())
        return codes


def basis_code(place: CodedPlace, layer: LayerBasis) -> LinearCode:
    """Code of a layer's features."""
    assert layer.mean is not None
    columns, first = place.columns, layer.first_feature
    return LinearCode(
        columns, layer.transform[first:, columns], layer.inverse[columns, first:], layer.mean[columns]
    )


def interaction_metrics(codes: Codes) -> dict[str, torch.Tensor]:
    """LIB's metric G = CᵀC at every place, [w, w], from LIB's codes."""
    return {
        name: code.encoder.T @ code.encoder for name, code in codes.items() if isinstance(code, LinearCode)
    }
