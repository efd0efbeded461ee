"""How a build is carried out."""

from dataclasses import dataclass, field
from pathlib import Path

from interbasis.base.progress import Progress
from interbasis.compute.resources import Resources
from interbasis.compute.team import ALONE, Team
from interbasis.graph.settings import BuildRequest


@dataclass(frozen=True)
class Execution:
    """How a build is carried out, and what is remembered; nothing here changes a number of the graph."""

    resources: Resources = field(default_factory=Resources)
    folder: Path | None = None
    """The folder the graph will be saved in, where unfinished work is stored; None: nowhere."""
    restart: bool = False
    """Discard unfinished work that was begun with other settings instead of refusing it."""
    progress: Progress | bool | None = None
    team: Team = ALONE
    """The processes that share the work, each with a part of the samples."""
    model: str = ""
    """A name to remember the model by."""
    request: BuildRequest | None = None
    """The request by name, stored with the graph."""
