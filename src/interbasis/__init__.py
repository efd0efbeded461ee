"""interbasis: the features a neural network computes with, and how they act on each other.

The public surface. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from interbasis.base import version as _version
from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis import dictionaries
    from interbasis.analysis import features
    from interbasis.analysis.compare import compare
    from interbasis.analysis.yardstick.stage import yardstick
    from interbasis.base.errors import InterbasisError
    from interbasis.graph.interaction_graph import InteractionGraph
    from interbasis.graph.layer_basis import LayerBasis
    from interbasis.graph.settings import BuildConfig
    from interbasis.graph.trust import trust
    from interbasis.models import mlp, modadd
    from interbasis.models.hf.load import from_hf
    from interbasis.models.module import from_torch
    from interbasis.network.cores import General
    from interbasis.network.network import Network, NodeLayer, Section
    from interbasis.run.build import build
    from interbasis.run.diff import diff
    from interbasis.run.run import Run, open_run
    from interbasis.show import figures
    from interbasis.show.report.page import write_figures, write_report

_HOMES = {
    "from_torch": "models.module",
    "from_hf": "models.hf.load",
    "mlp": "models",
    "modadd": "models",
    "build": "run.build",
    "diff": "run.diff",
    "open_run": "run.run",
    "Run": "run.run",
    "trust": "graph.trust",
    "compare": "analysis.compare",
    "yardstick": "analysis.yardstick.stage",
    "InteractionGraph": "graph.interaction_graph",
    "LayerBasis": "graph.layer_basis",
    "BuildConfig": "graph.settings",
    "Network": "network.network",
    "NodeLayer": "network.network",
    "Section": "network.network",
    "General": "network.cores",
    "features": "analysis",
    "dictionaries": "dictionaries",
    "figures": "show",
    "write_figures": "show.report.page",
    "write_report": "show.report.page",
    "InterbasisError": "base.errors",
}

__version__ = _version.VERSION
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
