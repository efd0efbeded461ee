"""Sections whose matrices are read from a file when they are used, one block of a model at a time.

A network of them computes what it would compute in memory. Shapes, cores and node layers are known without
reading anything; matrices are read with the first use of a block and released with the first use of another.
"""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from interbasis.base.memory import release_memory
from interbasis.network.cores import Sums
from interbasis.network.network import Section
from interbasis.numerics.integration import Rule

MAX_CORE_ELEMENTS = 2**16
"""Elements of a core's own weights up to which they are kept; experts are loaded with their block."""


class StoredBlocks:
    """The blocks of a model, of which one is in memory."""

    def __init__(self, load: Callable[[int], tuple[Section, ...]]):
        self._load = load
        self._held: tuple[int, tuple[Section, ...]] | None = None
        self._converted: dict[str, StoredBlocks] = {}

    def sections(self, block: int) -> tuple[Section, ...]:
        """Return the sections of one block; those of another are released first."""
        if self._held is None or self._held[0] != block:
            self.release()
            self._held = block, self._load(block)
        return self._held[1]

    def release(self) -> None:
        """Free the block that is in memory."""
        if self._held is not None:
            self._held = None
            release_memory()

    def to(self, *args: Any, **kwargs: Any) -> "StoredBlocks":
        """Return the blocks in another dtype or on another device, converted as they are read."""

        def load(block: int) -> tuple[Section, ...]:
            waiting = list(reversed(self.sections(block)))
            self.release()
            converted = []
            while waiting:  # what was read of each is let go of once it is converted
                converted.append(waiting.pop().to(*args, **kwargs))
            return tuple(converted)

        return self._converted.setdefault(f"{args} {kwargs}", StoredBlocks(load))


class StoredSection(Section):
    """A section whose matrices are in a file."""

    def __init__(self, like: Section, blocks: StoredBlocks, block: int, place: int):
        """``like`` is the section, loaded: what is small of it is kept."""
        names = ("source", "target", "last_only", "shapes", "columns_read")
        self.__dict__.update({name: getattr(like, name) for name in names})
        large = sum(tensor.numel() for tensor in like.core.tensors()) > MAX_CORE_ELEMENTS
        self.__dict__["core"] = like.core.to("meta") if large else like.core
        self.__dict__.update(like=like.like.clone(), _at=(blocks, block, place), stored_block=block)

    def __deepcopy__(self, memo: object) -> "StoredSection":
        return self  # nothing in it changes

    @property
    def loaded(self) -> Section:
        """The section in memory."""
        blocks, block, place = self.__dict__["_at"]
        return blocks.sections(block)[place]

    def __getattr__(self, name: str) -> Tensor:
        if name in ("skip", "read", "write"):
            return getattr(self.loaded, name)
        raise AttributeError(name)

    def read_outs(self, f: Tensor) -> Tensor:  # [n, T, d_in] -> [n, T, c_in]
        return self.loaded.read_outs(f)

    def from_read_outs(self, f: Tensor, u: Tensor) -> Tensor:  # -> [n, S, d_out]
        return self.loaded.from_read_outs(f, u)

    def at(self, f: Tensor, positions: Tensor) -> Tensor:
        return self.loaded.at(f, positions)

    def pull_back(self, f: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        return self.loaded.pull_back(f, cotangents, rule)

    def push_forward(self, f: Tensor, tangents: Tensor, rule: Rule) -> Tensor:
        return self.loaded.push_forward(f, tangents, rule)

    def batch_sums(self, *args: Any) -> Sums:
        return self.loaded.batch_sums(*args)

    def tensors(self) -> list[Tensor]:
        return self.loaded.tensors()

    def in_basis(self, inverse: Tensor | None, transform: Tensor | None) -> Section:
        return self.loaded.in_basis(inverse, transform)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        blocks, block, place = self.__dict__["_at"]
        moved = type(self)(self, blocks.to(*args, **kwargs), block, place)
        moved.__dict__.update(core=self.core.to(*args, **kwargs), like=self.like.to(*args, **kwargs))
        return moved
