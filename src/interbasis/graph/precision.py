"""Errors of a graph as one number per layer and section: the medians that a build's goal is about.

They are standard errors of what was sampled against the exact value on the same data; exact parts have none.

- A section: the median relative error of Ê over the largest edges that together carry 90 % of ΣÊ².
- A layer: the median relative error of Λ over the largest features that together carry 90 % of ΣΛ. Each of
  these errors is itself an estimate, with few degrees of freedom ν, and its median is smaller than what it
  estimates by that of χ_ν/√ν, which is divided out.
"""

import math

from pydantic import Field
from torch import Tensor

from interbasis.base.records import Record
from interbasis.graph.layer_basis import LayerBasis

CARRIED = 0.9
"""Share of ΣÊ², or of ΣΛ, that the edges and features looked at carry."""


class Precision(Record):
    """Precision that was asked for, the scheme that a pilot chose for it, and the precision reached."""

    error: float | None = None
    """Relative error asked for; None where a time was, or where nothing was."""
    time: float | None = None
    """Seconds asked for."""
    expected_seconds: float | None = None
    """Wall time that the pilot expected of the whole build; None without a pilot."""
    layers: dict[str, float] = Field(default_factory=dict)
    """Relative error of Λ reached, by node layer; 0 where it is exact."""
    sections: dict[str, float] = Field(default_factory=dict)
    """Relative error of Ê reached, by the section's source layer; 0 where it is exact."""

    @property
    def reached(self) -> float:
        """The largest error of all layers and sections."""
        return max([0.0, *self.layers.values(), *self.sections.values()])


def edge_error(edges: Tensor, errors: Tensor, source: LayerBasis, target: LayerBasis) -> float:
    """Median relative error of a section's edges that carry `CARRIED` of ΣÊ², the constant's left out."""
    inner = slice(target.first_feature, None), slice(source.first_feature, None)
    edges, errors = edges[inner].flatten().double(), errors[inner].flatten().double()
    return _median_error(edges, errors, edges.square())


def eigenvalue_error(layer: LayerBasis, degrees: int) -> float | None:
    """Median relative error of the Λ that carry `CARRIED` of ΣΛ; None where nothing was sampled.

    ``degrees`` is the number of degrees of freedom of each error.
    """
    if layer.eigenvalue_errors is None or layer.eigenvalues is None:
        return None
    first = layer.first_feature
    Λ, errors = layer.eigenvalues[first:], layer.eigenvalue_errors[first:]
    return _median_error(Λ, errors, Λ) / _median_of_chi(degrees)


def _median_error(values: Tensor, errors: Tensor, weights: Tensor) -> float:
    order = weights.sort(descending=True)
    total = order.values.sum()
    if not total > 0:
        return 0.0
    before = order.values.cumsum(0) - order.values
    leading = order.indices[before < CARRIED * total]
    return float((errors[leading] / values[leading]).median())


def _median_of_chi(degrees: int) -> float:
    """Median of χ_ν/√ν."""
    from scipy.stats import chi2

    return math.sqrt(chi2.median(degrees) / degrees)
