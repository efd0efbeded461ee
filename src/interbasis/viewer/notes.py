"""Notes that a person makes on a graph: features pinned, renamed, put into groups."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, ValidationError

from interbasis.graph.store import load
from interbasis.run.results import Result, save_result
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.records import Record

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Place(Record):
    """A feature: the node layer's name and the index in it."""

    model_config = ConfigDict(strict=True)

    layer: Annotated[str, Field(max_length=500)]
    index: Annotated[int, Field(ge=0, lt=2**31)]


class Renamed(Place):
    """A feature with the name that a person gave it."""

    name: Name


class FeatureGroup(Record):
    """Features that a person put together."""

    model_config = ConfigDict(strict=True)

    name: Name
    members: Annotated[list[Place], Field(max_length=10_000)]


class Notes(Result):
    """Notes on a run, stored as `notes.json`."""

    model_config = ConfigDict(strict=True)

    file: ClassVar[str] = "notes"
    made_by: ClassVar[str] = "view"

    pinned: list[Place] = Field(default_factory=list, max_length=10_000)
    names: list[Renamed] = Field(default_factory=list, max_length=10_000)
    groups: list[FeatureGroup] = Field(default_factory=list, max_length=1_000)


def read_notes(value: object) -> Notes:
    """Notes from plain data; one sentence for the first thing that is wrong with them."""
    try:
        return Notes.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "notes"
        raise InterbasisError(
            f"these are not notes on a graph: {place}: {first['msg'][0].lower()}{first['msg'][1:]}; "
            "expected pinned, names and groups as the page writes them"
        ) from error


def save_notes(run: Path, value: object) -> Notes:
    """Check notes against a run and save them beside its graph, atomically."""
    notes = read_notes(value)
    sizes = {layer.name: layer.features for layer in load(run).layers}
    places = [*notes.pinned, *notes.names, *(member for group in notes.groups for member in group.members)]
    for place in places:
        if place.index >= sizes.get(place.layer, 0):
            raise InterbasisError(
                f"the notes name feature {place.index} of {place.layer!r}, which {run} does not have; "
                f"its node layers are {', '.join(sizes)}"
            )
    save_result(run, notes)
    return notes
