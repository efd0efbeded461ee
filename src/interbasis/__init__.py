"""interbasis: the features a neural network computes with, and how they act on each other.

The public surface. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from interbasis.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis import features, figures
    from interbasis.ablation.controls import controls
    from interbasis.ablation.curves import sparsity_curves
    from interbasis.ablation.masked_pass import ablate_edges, ablate_nodes
    from interbasis.ablation.search import edges_required, nodes_required
    from interbasis.ablation.sparsity import interaction_sparsity
    from interbasis.communities.modules import find_modules
    from interbasis.communities.vertex_cuts import vertex_cuts
    from interbasis.fit.build import build
    from interbasis.fit.completeness import completeness
    from interbasis.fit.edges import edges, estimate_edges
    from interbasis.fit.execution import Execution
    from interbasis.graph.interaction_graph import InteractionGraph
    from interbasis.graph.layer_basis import LayerBasis
    from interbasis.graph.settings import BuildConfig
    from interbasis.graph.store import load
    from interbasis.models import mlp, modadd
    from interbasis.models.hf.load import from_hf
    from interbasis.models.module import from_torch
    from interbasis.network.cores import General
    from interbasis.network.network import Network, NodeLayer, Section
    from interbasis.numerics.random_signs import Sources
    from interbasis.report.writing import write_figures, write_report
    from interbasis.run.compare import compare
    from interbasis.run.opened import OpenedRun, open_run
    from interbasis.run.trust import trust
    from interbasis.runtime.errors import InterbasisError
    from interbasis.traces.records import Trace, TraceSettings
    from interbasis.traces.steering import Steering
    from interbasis.traces.targets import TargetRequest
    from interbasis.traces.trace import trace

    __version__: str

_HOMES = {
    "from_torch": "models.module",
    "from_hf": "models.hf.load",
    "mlp": "models",
    "modadd": "models",
    "build": "fit.build",
    "edges": "fit.edges",
    "estimate_edges": "fit.edges",
    "completeness": "fit.completeness",
    "Sources": "numerics.random_signs",
    "load": "graph.store",
    "ablate_edges": "ablation.masked_pass",
    "ablate_nodes": "ablation.masked_pass",
    "edges_required": "ablation.search",
    "nodes_required": "ablation.search",
    "sparsity_curves": "ablation.curves",
    "interaction_sparsity": "ablation.sparsity",
    "controls": "ablation.controls",
    "find_modules": "communities.modules",
    "vertex_cuts": "communities.vertex_cuts",
    "InteractionGraph": "graph.interaction_graph",
    "BuildConfig": "graph.settings",
    "LayerBasis": "graph.layer_basis",
    "Network": "network.network",
    "NodeLayer": "network.network",
    "Section": "network.network",
    "General": "network.cores",
    "OpenedRun": "run.opened",
    "open_run": "run.opened",
    "trust": "run.trust",
    "compare": "run.compare",
    "Execution": "fit.execution",
    "trace": "traces.trace",
    "Trace": "traces.records",
    "TraceSettings": "traces.records",
    "TargetRequest": "traces.targets",
    "Steering": "traces.steering",
    "features": "features",
    "figures": "figures",
    "write_figures": "report.writing",
    "write_report": "report.writing",
    "InterbasisError": "runtime.errors",
}

__all__ = list(_HOMES)
_get, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("interbasis")
    return _get(name)
