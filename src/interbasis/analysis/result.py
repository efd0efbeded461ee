"""What every stage's result shares."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from interbasis.base.errors import short_repr
from interbasis.base.records import Record

if TYPE_CHECKING:
    from interbasis.data.batches import Data
    from interbasis.graph.interaction_graph import InteractionGraph


class Result(Record):
    """What a stage returns."""

    file: ClassVar[str]
    """Name of the file it is stored in, without its suffix."""
    made_by: ClassVar[str]
    """The command that makes it."""

    def stem(self) -> str:
        """The file's path in the run, without its suffix; results that several of are kept have names."""
        return self.file

    def misfit(self, graph: "InteractionGraph") -> str:
        """The first thing that the result names and the graph does not have; empty where it fits."""
        return ""

    @classmethod
    def remedy(cls, run: str | Path) -> str:
        """What to do about a stored result that cannot be read."""
        return f"run 'interbasis {cls.made_by} {run}' again"


def unknown_layer(names: Iterable[str], known: Sequence[str]) -> str:
    """A sentence about the first name that is not among those of the graph; empty where all are."""
    other = next((name for name in names if name not in known), None)
    return "" if other is None else f"the graph has no layer {short_repr(other)}"


def unknown_feature(layer: str, features: Iterable[int], graph: "InteractionGraph") -> str:
    """A sentence about the first feature that a layer of the graph does not have; empty where it has all."""
    if problem := unknown_layer([layer], graph.layer_names):
        return problem
    size = graph.layers[graph.layer_names.index(layer)].features
    other = next((index for index in features if not 0 <= index < size), None)
    return "" if other is None else f"{short_repr(layer)} has no feature {other}"


class DataUsed(Record):
    """The data that a result was measured on."""

    spec: str
    """Their name; empty where data were given as tensors."""
    samples: int
    fingerprint: str
    """SHA-256 of the inputs."""
    labels: str = ""
    """SHA-256 of labels that were given as tensors; empty where they follow from the data's name."""

    @classmethod
    def from_data(cls, data: "Data") -> "DataUsed":
        """Count and fingerprint data."""
        from interbasis.data.batches import Batches

        batches = data if isinstance(data, Batches) else Batches(data)
        spec = getattr(data, "spec", "")
        return cls(
            spec=spec,
            samples=len(batches),
            fingerprint=batches.fingerprint(),
            labels=batches.labels_fingerprint(),
        )
