"""Graphs, tensor by tensor."""

from pathlib import Path

import torch
from torch import Tensor

import interbasis
from interbasis.graph.store import graph_entries, load

Graph = interbasis.InteractionGraph | Path
"""In memory, or the folder of a run."""


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    """All tensors of a graph, by the name they are stored under."""
    loaded = load(graph) if isinstance(graph, Path) else graph
    return {entry.name: entry.read().detach().cpu().contiguous().clone() for entry in graph_entries(loaded)}


def assert_same_graph(one: Graph, other: Graph) -> None:
    """Two graphs hold the same bits."""
    a, b = tensors_of(one), tensors_of(other)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
