"""interbasis: the features a neural network computes with, and how they act on each other.

The public surface. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interbasis.ablation import ablate_edges, ablate_nodes
    from interbasis.attribution import Sources, completeness, edges, estimate_edges
    from interbasis.basis import LayerBasis
    from interbasis.config import BuildConfig
    from interbasis.errors import InterbasisError
    from interbasis.graph import InteractionGraph, load
    from interbasis.models import mlp, modadd
    from interbasis.models.hf.load import from_hf
    from interbasis.models.sequential import from_torch
    from interbasis.network import Network, NodeLayer, Section
    from interbasis.pipeline import build
    from interbasis.required import edges_required, nodes_required

_HOMES = {
    "from_torch": "models.sequential",
    "from_hf": "models.hf.load",
    "mlp": "models",
    "modadd": "models",
    "build": "pipeline",
    "edges": "attribution",
    "estimate_edges": "attribution",
    "completeness": "attribution",
    "Sources": "attribution",
    "load": "graph",
    "ablate_edges": "ablation",
    "ablate_nodes": "ablation",
    "edges_required": "required",
    "nodes_required": "required",
    "InteractionGraph": "graph",
    "BuildConfig": "config",
    "LayerBasis": "basis",
    "Network": "network",
    "NodeLayer": "network",
    "Section": "network",
    "InterbasisError": "errors",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'interbasis' has no attribute {name!r}")
    value = getattr(import_module(f"interbasis.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
