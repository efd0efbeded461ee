"""`interbasis` with data in chunks of a few samples, so that small data are summed in many blocks."""

import sys
from collections.abc import Callable

from interbasis.cli import main
from interbasis.fit import statistics


def use_small_chunks(setattr: Callable[[object, str, int], None]) -> None:
    """Set the sizes of chunks by ``setattr``, Python's own or that of a fixture that undoes it."""
    setattr(statistics, "CHUNK_BYTES", 3000)
    setattr(statistics, "FINE_CHUNK_BYTES", 2000)


if __name__ == "__main__":
    use_small_chunks(setattr)
    main(sys.argv[1:])
