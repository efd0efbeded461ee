"""Sums over data in blocks, merged along a fixed binary tree: the same bits whoever computes which block."""

from collections.abc import Callable
from dataclasses import dataclass

from interbasis.compute.checkpoints import State


@dataclass(frozen=True)
class BlockSum:
    """A sum over data in blocks: how a block is summed, and how two sums become one.

    Sums are merged along a binary tree that the number of blocks alone decides, so that it does not matter
    who computes which blocks. The left half of a node is the largest power of two below its size.
    """

    name: str
    blocks: int
    compute: Callable[[int], State]
    merge: Callable[[State, State], State]

    def node_sum(self, first: int, last: int, parts: dict[tuple[int, int], State] | None = None) -> State:
        """Return the sum of blocks first … last − 1, which are a node of the tree.

        ``parts`` are sums of nodes that were computed elsewhere; those that are used are removed from it.
        """
        if parts and (first, last) in parts:
            return parts.pop((first, last))
        if last - first == 1:
            return self.compute(first)
        middle = _middle(first, last)
        return self.merge(self.node_sum(first, middle, parts), self.node_sum(middle, last, parts))

    def nodes_within(
        self, first: int, last: int, node: tuple[int, int] | None = None
    ) -> list[tuple[int, int]]:
        """Return the largest nodes that consist of blocks first … last − 1 only, in their order.

        ``node`` is the node whose blocks are searched; default: the root.
        """
        low, high = node or (0, self.blocks)
        if first <= low and high <= last:
            return [(low, high)]
        if last <= low or high <= first or high - low <= 1:
            return []
        middle = _middle(low, high)
        halves = (low, middle), (middle, high)
        return [inner for half in halves for inner in self.nodes_within(first, last, half)]

    def joined(self, parts: dict[tuple[int, int], State]) -> State:
        """Return the sum of all blocks from the sums of nodes that hold each block once."""
        return self.node_sum(0, self.blocks, parts)


def _middle(first: int, last: int) -> int:
    return first + (1 << (last - first - 1).bit_length() - 1)
