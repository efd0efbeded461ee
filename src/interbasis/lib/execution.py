"""How a build is carried out."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from interbasis.base.errors import InterbasisError, first_problem
from interbasis.base.progress import Progress
from interbasis.compute.team import ALONE, Team
from interbasis.graph.settings import BuildRequest


class Execution(BaseModel):
    """How a build is carried out, and what is remembered; nothing here changes a number of the graph."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )

    model: str = ""
    """A name to remember the model by."""
    request: BuildRequest | None = None
    """What was asked for by name, stored with the graph."""
    progress: Progress | bool | None = None
    """Show progress: True, False, a function to be told of it, or None: bars on a terminal,
    lines elsewhere."""
    resume: Path | None = None
    """The folder the graph will be saved in. Work is stored there while it lasts: a build that was killed
    resumes when it is called again, and ends with the same graph bit for bit; other settings are refused."""
    restart: bool = False
    """Discard unfinished work that was begun with other settings instead of refusing it."""
    cache_gigabytes: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    """Disk space for activations between the blocks of a language model, so that not every pass runs through
    all blocks; 0 computes them again."""
    memory: int | None = Field(default=None, ge=1)
    """Bytes of memory that the process may hold. Chunks of data and blocks of attention fit into that, and
    sections that do not fit together are built one after the other; what cannot fit is refused at once. Sums
    in other chunks differ in their last digits. None is no limit."""
    device: str | None = None
    """Where the network computes: cpu, cuda, cuda:1, mps; default: where its weights are. Sums over the data
    are float64 there, or on the CPU if the device has no float64; decompositions are done on the CPU."""
    team: Team = ALONE
    """The processes that share the work, each with a part of the samples; all of them call `build`, and all
    receive the graph. `interbasis build` under torchrun does so."""


def make_execution(options: dict[str, Any]) -> Execution:
    try:
        return Execution(**options)
    except ValidationError as error:
        raise InterbasisError(f"cannot build: {first_problem(error)}") from error
