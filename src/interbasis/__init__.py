"""interbasis: the features a neural network computes with, and how they act on each other.

The public surface. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interbasis import features, figures
    from interbasis.ablation import ablate_edges, ablate_nodes
    from interbasis.attribution import Sources, completeness, edges, estimate_edges
    from interbasis.basis import LayerBasis
    from interbasis.config import BuildConfig
    from interbasis.curves import sparsity_curves
    from interbasis.errors import InterbasisError
    from interbasis.evidence import controls
    from interbasis.graph import InteractionGraph, load
    from interbasis.models import mlp, modadd
    from interbasis.models.hf.load import from_hf
    from interbasis.models.sequential import from_torch
    from interbasis.modules import find_modules
    from interbasis.network import Network, NodeLayer, Section
    from interbasis.pipeline import build
    from interbasis.required import edges_required, nodes_required
    from interbasis.separation import vertex_cuts
    from interbasis.sparsity import interaction_sparsity

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
    "sparsity_curves": "curves",
    "interaction_sparsity": "sparsity",
    "controls": "evidence",
    "find_modules": "modules",
    "vertex_cuts": "separation",
    "InteractionGraph": "graph",
    "BuildConfig": "config",
    "LayerBasis": "basis",
    "Network": "network",
    "NodeLayer": "network",
    "Section": "network",
    "InterbasisError": "errors",
}

_PACKAGES = ("features", "figures")

__all__ = [*_HOMES, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"interbasis.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'interbasis' has no attribute {name!r}")
    value = getattr(import_module(f"interbasis.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
