"""Notes that a person makes on a graph: features pinned, renamed, put into groups.

Several pages may write the notes of one run. Every set of notes has a version, the SHA-256 of its file; who
saves notes names the version that they replace, and is refused where it is no longer the newest.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, ValidationError

from interbasis.analysis.stored_results import Result, check_same_graph, load_result, save_result
from interbasis.base.errors import Explained, InterbasisError, first_problem
from interbasis.base.files import file_sha256, inside
from interbasis.base.records import Record
from interbasis.graph.store import load

Name = Annotated[str, Field(min_length=1, max_length=10_000)]
"""Fields of the page take 200 characters; texts that two pages gave to one feature are joined."""
NO_NOTES = ""
"""Version of the notes of a run that has none."""


class FeatureKey(Record):
    """A feature: the node layer's name and the index in it."""

    model_config = ConfigDict(strict=True)

    layer: Annotated[str, Field(max_length=500)]
    index: Annotated[int, Field(ge=0, lt=2**31)]


class FeatureName(FeatureKey):
    """A feature with the name that a person gave it."""

    name: Name


class FeatureGroup(Record):
    """Features that a person put together."""

    model_config = ConfigDict(strict=True)

    name: Name
    members: Annotated[list[FeatureKey], Field(max_length=10_000)]


class Notes(Result):
    """Notes on a run, stored as `notes.json`."""

    model_config = ConfigDict(strict=True)

    file: ClassVar[str] = "notes"
    command: ClassVar[str] = "view"

    pinned: list[FeatureKey] = Field(default_factory=list, max_length=10_000)
    names: list[FeatureName] = Field(default_factory=list, max_length=10_000)
    groups: list[FeatureGroup] = Field(default_factory=list, max_length=1_000)


def read_notes(value: object) -> Notes:
    """Notes from plain data; one sentence for the first thing that is wrong with them."""
    try:
        return Notes.model_validate(value)
    except ValidationError as error:
        raise InterbasisError(
            f"these are not notes on a graph: {first_problem(error)}; expected pinned, names and groups as "
            "the page writes them"
        ) from error


class StaleNotesError(InterbasisError):
    """Somebody else has saved notes since; nothing was written."""

    def __init__(self, notes: Notes, version: str) -> None:
        super().__init__("the notes were changed elsewhere since they were read; merge both and save again")
        self.notes, self.version = notes, version


def notes_version(run: Path) -> str:
    """The version of the notes that a run has now."""
    file = inside(run, f"{Notes.file}.json")
    with Explained(f"could not read {file}", OSError):
        return file_sha256(file) if file.is_file() else NO_NOTES


def save_notes(
    run: Path, value: object, version: str | None = None, graph: str | None = None
) -> tuple[Notes, str]:
    """Check notes against a run and save them beside its graph, atomically.

    Args:
        run: Folder of the run.
        value: The notes as plain data.
        version: The version that they replace; None replaces whatever is there.
        graph: Digest of the graph that they were made on; default: the one in the folder.

    Returns:
        The notes and their version.

    Raises:
        StaleNotesError: The run's notes are of another version.
        InterbasisError: These are no notes on the run, it was built again since, or they cannot be written.
    """
    notes = read_notes(value)
    if graph is not None:
        check_same_graph(run, graph)
    sizes = {layer.name: layer.features for layer in load(run).layers}
    features = [*notes.pinned, *notes.names, *(member for group in notes.groups for member in group.members)]
    for feature in features:
        if feature.index >= sizes.get(feature.layer, 0):
            raise InterbasisError(
                f"the notes name feature {feature.index} of {feature.layer!r}, which {run} does not have; "
                f"its node layers are {', '.join(sizes)}"
            )
    with _exclusive_writer(run):
        newest = notes_version(run)
        if version not in (None, newest):
            raise StaleNotesError(load_result(run, Notes) or Notes(), newest)
        save_result(run, notes, graph=graph)
        return notes, notes_version(run)


@contextmanager
def _exclusive_writer(run: Path) -> Iterator[None]:
    """Let one process at a time compare versions and write; the lock ends with the process."""
    folder = os.open(run, os.O_RDONLY)
    try:
        with suppress(OSError):  # of file systems without locks; pages of one server take turns there, too
            flock(folder, LOCK_EX)
        yield
    finally:
        os.close(folder)
