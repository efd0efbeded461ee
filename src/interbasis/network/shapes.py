"""Shapes of a section's matrices, which are known without the matrices."""

from typing import NamedTuple


class Shapes(NamedTuple):
    """Of P, A and B."""

    skip: tuple[int, ...]  # (d_out, d_in)
    read: tuple[int, ...]  # (c_in, d_in)
    write: tuple[int, ...]  # (d_out, c_out)
