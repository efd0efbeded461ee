"""What a graph in memory is kept with: the network and data it was built from, its folder, its results.

A graph stays a frozen value; in a notebook, `graph.label()` still has to know the network, and the graph to
show the labels. What is kept here lives as long as the graph does.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from interbasis.base.records import Record
from interbasis.data.batches import Data
from interbasis.network.network import Network

if TYPE_CHECKING:
    from interbasis.graph.interaction_graph import InteractionGraph


@dataclass
class Companion:
    """Everything that is known beside a graph; nothing of it is stored with it."""

    network: Network | None = None
    data: Data | None = None
    folder: Path | None = None
    """Where the graph was saved to or loaded from."""
    digest: str | None = None
    """SHA-256 of the graph's tensors, as they were saved or loaded there."""
    results: dict[str, Record] = field(default_factory=dict)
    """Results of a graph without a folder, by the file they would be stored as."""
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)


def companion(graph: "InteractionGraph") -> Companion:
    """What this graph is kept with; empty at first."""
    kept: Companion = graph.__dict__.setdefault("_companion", Companion())
    return kept
