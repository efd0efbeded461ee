"""interbasis: the features a neural network computes with, and how they act on each other.

The public surface. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from interbasis.base import version as _version
from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis import dictionaries as dictionaries
    from interbasis.analysis import features as features
    from interbasis.analysis.compare import compare as compare
    from interbasis.analysis.yardstick.stage import yardstick as yardstick
    from interbasis.base.errors import InterbasisError as InterbasisError
    from interbasis.graph.interaction_graph import InteractionGraph as InteractionGraph
    from interbasis.graph.layer_basis import LayerBasis as LayerBasis
    from interbasis.graph.settings import BuildConfig as BuildConfig
    from interbasis.graph.trust import trust as trust
    from interbasis.models import mlp as mlp
    from interbasis.models import modadd as modadd
    from interbasis.models.hf.load import from_hf as from_hf
    from interbasis.models.module import from_torch as from_torch
    from interbasis.network.cores import General as General
    from interbasis.network.network import Network as Network
    from interbasis.network.network import NodeLayer as NodeLayer
    from interbasis.network.network import Section as Section
    from interbasis.run.build import build as build
    from interbasis.run.diff import diff as diff
    from interbasis.run.run import Run as Run
    from interbasis.run.run import open_run as open_run
    from interbasis.show import figures as figures
    from interbasis.show.report.page import write_figures as write_figures
    from interbasis.show.report.page import write_report as write_report

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
