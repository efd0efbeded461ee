"""What is known about every value of a traced graph while it is being recognised."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from interbasis.models.traced.streams import Stream
from interbasis.models.traced.wires import Wire


@dataclass(frozen=True, eq=False)
class Known:
    """Does not depend on the input's numbers: a weight, a number, a shape."""

    value: Any
    sized: fx.Node | None = None
    """The node, where it depends on the input's shape."""


@dataclass(frozen=True, eq=False)
class Early:
    """Depends on the input and belongs to the prefix: tokens, embeddings, what the input was reshaped to."""

    node: fx.Node
    value: Tensor
    """On the example."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Queries times keys, on the way to attention: [..., queries, keys]."""

    query: Wire  # [..., T, h]
    key: Wire  # [..., T, h]
    shape: tuple[int, ...]
    """Of the traced tensor."""
    scale: float = 1.0
    causal: bool = False
    softmax: bool = False


@dataclass(frozen=True, eq=False)
class Integers:
    """Whole numbers or truth values computed from streams: which entries are the largest, a comparison.

    They have no derivative. Each operation that reads them computes them again, as a part of its own core.
    """

    streams: tuple[Stream, ...]
    function: Callable[[Sequence[Tensor]], Tensor]
    shape: tuple[int, ...]
    """Of the traced tensor."""


@dataclass(frozen=True, eq=False)
class Several:
    """A tuple or a list of values."""

    parts: tuple[Any, ...]


Value = Known | Early | Wire | Scores | Integers | Several
Keywords = dict[str, Value]
"""Arguments of an operation by name."""
