"""interbasis: the features a neural network computes with, and how they act on each other.

The public surface. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis.analysis import features
    from interbasis.analysis.ablation.controls import controls
    from interbasis.analysis.ablation.curves import sparsity_curves
    from interbasis.analysis.ablation.masked_pass import ablate_edges, ablate_nodes
    from interbasis.analysis.ablation.search import edges_required, nodes_required
    from interbasis.analysis.ablation.sparsity import interaction_sparsity
    from interbasis.analysis.compare import compare
    from interbasis.analysis.modules.modules import find_modules
    from interbasis.analysis.modules.vertex_cuts import vertex_cuts
    from interbasis.analysis.traces.records import Trace, TraceSettings
    from interbasis.analysis.traces.steering import Steering
    from interbasis.analysis.traces.targets import TargetRequest
    from interbasis.analysis.traces.trace import trace
    from interbasis.analysis.workspace import OpenedRun, open_run
    from interbasis.base.errors import InterbasisError
    from interbasis.graph.interaction_graph import InteractionGraph
    from interbasis.graph.layer_basis import LayerBasis
    from interbasis.graph.settings import BuildConfig
    from interbasis.graph.store import load
    from interbasis.graph.trust import trust
    from interbasis.lib.build import build
    from interbasis.lib.completeness import completeness
    from interbasis.lib.edges import edges, estimate_edges
    from interbasis.lib.execution import Execution
    from interbasis.models import mlp, modadd
    from interbasis.models.hf.load import from_hf
    from interbasis.models.module import from_torch
    from interbasis.network.cores import General
    from interbasis.network.network import Network, NodeLayer, Section
    from interbasis.numerics.random_signs import Sources
    from interbasis.show import figures
    from interbasis.show.report.page import write_figures, write_report

    __version__: str

_HOMES = {
    "from_torch": "models.module",
    "from_hf": "models.hf.load",
    "mlp": "models",
    "modadd": "models",
    "build": "lib.build",
    "edges": "lib.edges",
    "estimate_edges": "lib.edges",
    "completeness": "lib.completeness",
    "Sources": "numerics.random_signs",
    "load": "graph.store",
    "ablate_edges": "analysis.ablation.masked_pass",
    "ablate_nodes": "analysis.ablation.masked_pass",
    "edges_required": "analysis.ablation.search",
    "nodes_required": "analysis.ablation.search",
    "sparsity_curves": "analysis.ablation.curves",
    "interaction_sparsity": "analysis.ablation.sparsity",
    "controls": "analysis.ablation.controls",
    "find_modules": "analysis.modules.modules",
    "vertex_cuts": "analysis.modules.vertex_cuts",
    "InteractionGraph": "graph.interaction_graph",
    "BuildConfig": "graph.settings",
    "LayerBasis": "graph.layer_basis",
    "Network": "network.network",
    "NodeLayer": "network.network",
    "Section": "network.network",
    "General": "network.cores",
    "OpenedRun": "analysis.workspace",
    "open_run": "analysis.workspace",
    "trust": "graph.trust",
    "compare": "analysis.compare",
    "Execution": "lib.execution",
    "trace": "analysis.traces.trace",
    "Trace": "analysis.traces.records",
    "TraceSettings": "analysis.traces.records",
    "TargetRequest": "analysis.traces.targets",
    "Steering": "analysis.traces.steering",
    "features": "analysis",
    "figures": "show",
    "write_figures": "show.report.page",
    "write_report": "show.report.page",
    "InterbasisError": "base.errors",
}

__all__ = list(_HOMES)
_get, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("interbasis")
    return _get(name)
