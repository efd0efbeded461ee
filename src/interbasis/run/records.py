"""What every stage's result shares."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from interbasis.runtime.records import Record

if TYPE_CHECKING:
    from interbasis.data.batches import Data


class Result(Record):
    """What a stage returns."""

    file: ClassVar[str]
    """Name of the file it is stored in, without its suffix."""
    made_by: ClassVar[str]
    """The command that makes it."""

    def stem(self) -> str:
        """The file's path in the run, without its suffix; results that several of are kept have names."""
        return self.file

    @classmethod
    def remedy(cls, run: str | Path) -> str:
        """What to do about a stored result that cannot be read."""
        return f"run 'interbasis {cls.made_by} {run}' again"


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
