"""A window of sections that are built together, and what is built of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from interbasis.compute.executor import Executor
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.precision import edge_error
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build_data import BuildData
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.edges import EdgeSums
from interbasis.network.network import Network


@dataclass(frozen=True, eq=False)
class Window:
    """Neighbouring sections that are built together, usually all of them."""

    executor: Executor
    """Runs passes over the data; its network has these sections."""
    data: BuildData
    counted: CountedTokens
    first: int = 0
    """Number of the first section in the whole network."""
    end: LayerBasis | None = None
    """Features of the last node layer, where they are known."""

    @property
    def network(self) -> Network:
        return self.executor.network


@dataclass(frozen=True, eq=False)
class BuiltWindow:
    """Bases of the node layers of a window, and the edges between them with their errors."""

    layers: list[LayerBasis]
    config: BuildConfig
    """Settings with the numbers of samples that were drawn in the end."""
    edges: Sequence[Tensor] = field(default_factory=list)
    errors: Sequence[Tensor] = field(default_factory=list)
    changed_choices: dict[str, float] = field(default_factory=dict)
    """Shares of tokens that visit other experts on the line from 0 than at its end, by section."""

    @classmethod
    def from_sums(
        cls, layers: list[LayerBasis], config: BuildConfig, sums: Sequence[EdgeSums]
    ) -> "BuiltWindow":
        """The edges that follow from sums over the data."""
        edges = [section.edges for section in sums]
        errors = [section.error for section in edges if section.error is not None]
        changed = {
            layer.name: section.changed_choices
            for layer, section in zip(layers, sums, strict=False)
            if section.changed_choices is not None
        }
        return cls(layers, config, [section.rms for section in edges], errors, changed)

    @property
    def edge_error(self) -> float:
        """The largest error of all sections."""
        pairs = zip(self.edges, self.errors, pairwise(self.layers), strict=True)
        return max(edge_error(edges, errors, *ends) for edges, errors, ends in pairs)
