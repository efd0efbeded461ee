"""`interbasis` with small data summed in many blocks, as large data are."""

import sys
from collections.abc import Callable

from interbasis.cli import main
from interbasis.compute import executor


def sum_in_blocks(setattr: Callable[[object, str, int], None]) -> None:
    """Make chunks so small that a few samples are several, by Python's own ``setattr`` or a fixture's."""
    setattr(executor, "FINE_CHUNK_BYTES", 2000)


if __name__ == "__main__":
    sum_in_blocks(setattr)
    main(sys.argv[1:])
