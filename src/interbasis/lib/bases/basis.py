"""Interface of a basis: the statistics it needs of the data, and the features of every node layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from interbasis.compute.executor import Executor
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import BasisKind
from interbasis.lib.covariance import Covariance
from interbasis.lib.slices import SlicedSection
from interbasis.network.jacobian_gram import JacobianGram
from interbasis.network.network import Network, NodeLayer
from interbasis.numerics.linalg import Floor


@dataclass(frozen=True)
class JacobianSource:
    """Functions that compute Grams of Jacobians."""

    to_next: Callable[[int, Tensor | None, Tensor | None], JacobianGram]
    """to_next(k, C, E): from node layer k to the features C of the one after it, whose Gram CᵀC may be off by
    CᵀEC. C may be None, the identity, and E None, not off at all."""
    to_end: Callable[[Tensor], list[JacobianGram]]
    """to_end(C): from every node layer to the features C of the last one."""
    on_slices: Callable[[Sequence[LayerBasis]], list[SlicedSection]]
    """on_slices(layers): of every section, between the features of its layers, on slices of the data."""


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit: where spectra are cut, and how the last layer is treated."""

    variance_floor: Floor = field(default_factory=Floor)
    jacobian_floor: Floor = field(default_factory=Floor)
    rotate_last: bool = True
    """Whether the last layer is rotated (PCA, nothing cut off) or left as it is."""
    seed: int = 0
    isolate_largest: bool = False
    """Whether the direction of largest variance stands alone in every layer but the last."""
    end: LayerBasis | None = None
    """The last layer's features where they are known already."""
    first: int = 0
    """The number of the first of these layers in the network, for whatever is random."""
    executor: Executor | None = None
    """Decompositions are done once, by one of its processes; None is this process alone."""


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
    def needs_all_sections(self) -> bool:
        """Whether all sections have to be in memory together."""
        return self.jacobians_to_end or self.needs_slices

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind.description})"

    def require(self, network: Network, all_tokens: bool) -> None:  # noqa: B027 (most refuse nothing)
        """Refuse a network, or leaving out tokens, before any work is done."""

    @abstractmethod
    def fit(
        self,
        nodes: Sequence[NodeLayer],
        covariances: Sequence[Covariance],
        jacobians: JacobianSource,
        settings: FitSettings,
    ) -> list[LayerBasis]:
        """Return the features of all node layers, in the network's order, from a covariance for each."""
