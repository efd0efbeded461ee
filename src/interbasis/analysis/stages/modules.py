"""Modules: groups of features that interact among themselves. Stored as `modules.json`."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import Result, unknown_feature
from interbasis.base.errors import short_repr
from interbasis.base.records import Record

if TYPE_CHECKING:
    from interbasis.analysis.workspace import Workspace
    from interbasis.graph.interaction_graph import InteractionGraph


class ModulesRequest(Record):
    """Request for a partition of the features and tests of it."""

    resolution: float = Field(1.0, gt=0, allow_inf_nan=False)
    """γ: larger values give more and smaller modules."""
    seed: int = Field(0, ge=0)
    """Seed of the partition."""
    null_graphs: int = Field(50, ge=0)
    """Rewired graphs of the null model; 0 for none."""
    cross_check: bool = False
    """Compare with the partition of leidenalg, which must be installed."""
    cuts: bool = True
    """Find the fewest features that separate each pair of modules; slow if there are many modules."""


class ResolutionAgreement(Record):
    """The partition at another resolution, compared with the result's."""

    resolution: float
    modules: int
    agreement: float
    """Adjusted mutual information."""


MIN_MODULARITY_Z = 2.0
"""Standard deviations above rewired graphs from which a graph is more modular than chance."""


class NullModularity(Record):
    """Modularity of rewired graphs with the same degrees and weights."""

    mean: float
    deviation: float
    z: float
    """Standard deviations that the graph's own modularity lies above their mean."""
    graphs: int


class CrossCheck(Record):
    """Partition that leidenalg found on the same graph."""

    modularity: float
    agreement: float
    """Adjusted mutual information."""


class VertexCut(Record):
    """The fewest features whose removal separates two modules."""

    modules: tuple[int, int]
    features: tuple[tuple[str, int], ...]
    """(layer, feature) of each."""


class ModulesResult(Result):
    """A partition of all features, and how far it can be trusted."""

    file: ClassVar[str] = "modules"
    command: ClassVar[str] = "modules"

    resolution: float
    seed: int
    modularity: float
    sizes: tuple[int, ...]
    """Features in each module, the largest first."""
    epsilons: dict[str, float]
    """The smallest edge that counts, by section."""
    epsilons_from_ablation: bool
    """Whether they are the smallest edges required, or those that carry 99 % of Ê²."""
    layers: dict[str, tuple[int, ...]]
    """The module of every feature of a layer; −1 for those in none, the constant among them."""
    agreement_over_seeds: float | None
    """Mean adjusted mutual information between partitions with different seeds."""
    agreement_over_resolutions: tuple[ResolutionAgreement, ...]
    null: NullModularity | None
    leidenalg: CrossCheck | None
    cuts: tuple[VertexCut, ...] = ()

    @property
    def modules(self) -> int:
        return len(self.sizes)

    @property
    def assignment(self) -> list[np.ndarray]:
        """The module of every feature [features], layer by layer."""
        return [np.array(members, dtype=np.int64) for members in self.layers.values()]

    def misfit(self, graph: "InteractionGraph") -> str:
        for name, members in self.layers.items():
            if problem := unknown_feature(name, (), graph):
                return problem
            size = graph.layers[graph.layer_names.index(name)].features
            if len(members) != size or not all(-1 <= module < self.modules for module in members):
                return f"the modules of {short_repr(name)} are not those of its {size} features"
        return ""

    def find_module(self, layer: str, feature: int) -> int | None:
        """Return the module of a feature; None for those in none."""
        members = self.layers.get(layer, ())
        module = members[feature] if feature < len(members) else -1
        return None if module < 0 else module


def run(workspace: "Workspace", request: ModulesRequest) -> ModulesResult:
    """Group the features of all layers into modules.

    An edge weighs log(Ê/ε), ε being the smallest edge required where all sections have been ablated; without
    that, the edges that carry 99 % of Ê² count.

    Args:
        workspace: A graph, saved or not; neither its network nor its data are used.
        request: Resolution, seed and tests.

    Returns:
        The result, which is stored in the run's folder, if it has one.

    Raises:
        InterbasisError: The graph has no edges, or leidenalg is asked for and not installed.
    """
    from interbasis.analysis.modules.modules import find_modules
    from interbasis.analysis.modules.vertex_cuts import vertex_cuts

    with workspace.working("modules"):
        graph, ablation = workspace.graph, workspace.stored(AblationResult)
        epsilons = None
        if ablation is not None and all(name in ablation.sections for name in graph.section_names):
            epsilons = [ablation.sections[name].epsilon for name in graph.section_names]
        result = find_modules(
            graph, epsilons, request.resolution, request.seed,
            null_graphs=request.null_graphs, cross_check=request.cross_check,
        )  # fmt: skip
        if request.cuts:
            result = result.model_copy(update={"cuts": vertex_cuts(graph, result)})
        return workspace.store(result)
