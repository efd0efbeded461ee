"""Records: what travels between stages, frozen, complete, and refusing what they do not know."""

import json
import math
from collections.abc import Iterable, Sequence, Sized
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from interbasis.base.errors import InterbasisError, first_problem
from interbasis.base.lazy import notebook_html

Basis = Literal["lib", "gib", "jib", "pca", "neuron", "random"]
Method = Literal["gradient", "exact", "quadrature", "trapezoid"]
Group = int | Literal["positions"]
Dtype = Literal["float64", "float32"]
Metric = Literal["accuracy", "cross_entropy"]


MAX_SHOWN = 200
"""Characters of a value that a message shows."""
MAX_FIELD_SHOWN = 72
"""Characters of a field that the text of a record shows; longer ones are counted."""
MAX_ENTRIES_SHOWN = 8
"""Entries of a field up to which they may be shown."""


class Record(BaseModel):
    """A frozen record; the docstrings of its fields are their descriptions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )

    def to_json(self, indent: int | None = None) -> str:
        """JSON in ASCII, with null for NaN; text may hold half a surrogate pair, which has no UTF-8."""
        try:
            values = self.model_dump(mode="json", by_alias=True, serialize_as_any=True)
        except UnicodeEncodeError:  # pydantic cannot write such text where it is a key
            values = self.model_dump(by_alias=True, serialize_as_any=True)
        separators = (",", ":") if indent is None else None
        return json.dumps(
            _null_for_nan(values), allow_nan=False, indent=indent, separators=separators, default=str
        )

    def __repr_args__(self) -> "Iterable[tuple[str | None, object]]":
        return [(name, ShortText(value)) for name, value in super().__repr_args__()]

    def _repr_html_(self) -> str:
        """The record as tables inside a notebook."""
        return notebook_html(self)

    @classmethod
    def validated(cls, **values: Any) -> Self:
        """Validate, with one sentence for the first thing that is wrong.

        Raises:
            InterbasisError: A name is unknown or a value is out of range.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else cls.__name__
            if first["type"] == "extra_forbidden":
                known = ", ".join(cls.model_fields)
                raise InterbasisError(f"there is no setting {name!r}; the settings are {known}") from error
            reason = first["msg"][0].lower() + first["msg"][1:]
            received = repr(first["input"])
            if len(received) > MAX_SHOWN:  # a tensor, say
                received = f"what was given, of type {type(first['input']).__name__}"
            raise InterbasisError(f"the setting {name} cannot be {received}: {reason}") from error


R = TypeVar("R", bound=Record)


class ShortText:
    """Text of a field: the value itself where it is short, else how many entries it has."""

    def __init__(self, value: object):
        self.value = value

    def __repr__(self) -> str:
        value, kind = self.value, type(self.value).__name__
        if isinstance(value, Sized) and not isinstance(value, str) and len(value) > MAX_ENTRIES_SHOWN:
            return f"<{kind} of {len(value):,}>"
        text = repr(value)
        if len(text) <= MAX_FIELD_SHOWN:
            return text
        if isinstance(value, str):
            return repr(value[: MAX_FIELD_SHOWN - 1] + "…")
        return f"<{kind} of {len(value):,}>" if isinstance(value, Sized) else f"<{kind}>"


def read_record(kind: type[R], values: object, file: object, remedy: str) -> R:
    """Validate what a file holds, with one sentence for the first thing that is wrong.

    Raises:
        InterbasisError: The values are not those of such a record.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InterbasisError(f"{file} is damaged: {first_problem(error)}; {remedy}") from error


def require(fits: bool, reason: str) -> None:
    """Refuse a record whose fields do not fit together; called by validators."""
    if not fits:
        raise PydanticCustomError("inconsistent", "{reason}", {"reason": reason})


def _null_for_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _null_for_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_null_for_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _nan_for_null(value: object) -> object:
    return math.nan if value is None else value


def _split_at_commas(value: object) -> object:
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        return value
    return tuple(name for part in parts for name in part.split(",") if name)


def _split_to_non_empty(value: object) -> object:
    names = _split_at_commas(value)
    if names == ():
        raise ValueError("expected names separated by commas, or no such option for all of them")
    return names


Measured = Annotated[float, BeforeValidator(_nan_for_null)]
"""A number that may be undefined: NaN in Python, null in JSON."""
Names = Annotated[tuple[str, ...], BeforeValidator(_split_at_commas)]
"""Names; text is split at commas."""
NonEmptyNames = Annotated[tuple[str, ...], BeforeValidator(_split_to_non_empty)]
"""Names where none stands for all: empty text names none, and is refused."""
