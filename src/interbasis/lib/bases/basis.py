"""Interface of a basis: the statistics it needs of the data, and the features of every node layer."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import BasisKind, BuildConfig
from interbasis.lib.covariance import Covariance
from interbasis.lib.jacobians import Jacobians
from interbasis.network.network import Network, NodeLayer


@dataclass(frozen=True)
class FitInputs:
    """Inputs of a fit: the node layers, a covariance for each, Grams of Jacobians, and settings."""

    nodes: Sequence[NodeLayer]
    covariances: Sequence[Covariance]
    jacobians: Jacobians
    config: BuildConfig
    rotate_last: bool = True
    """Whether the last layer is rotated (PCA, nothing cut off) or left as it is."""
    end: LayerBasis | None = None
    """The last layer's features where they are known already."""


class FeatureBasis(ABC):
    """A way to choose the features of every node layer."""

    kind: BasisKind
    """Name and description of the basis."""
    needs_grams: bool = True
    """Whether the covariances must be full Grams; else their diagonals do."""
    needs_jacobians: bool = False
    """Whether it asks for Grams of Jacobians, which take the cores' sums over the data."""
    needs_all_tokens: bool = False
    """Whether no token can be left out of its sums."""
    jacobians_to_end: bool = False
    """Whether Jacobians run to the last node layer, and not to the next one."""
    needs_slices: bool = False
    """Whether it asks for Jacobians on slices of the data."""

    @property
    def has_errors(self) -> bool:
        """Whether samples may be drawn for it: Λ then comes with errors."""
        return self.needs_jacobians and not self.jacobians_to_end and not self.needs_slices

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind.description})"

    def require(self, network: Network, all_tokens: bool) -> None:  # noqa: B027 (most refuse nothing)
        """Refuse a network, or leaving out tokens, before any work is done."""

    @abstractmethod
    def fit(self, inputs: FitInputs) -> list[LayerBasis]:
        """Return the features of all node layers, in the network's order."""
