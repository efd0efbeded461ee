"""How long the stages of a piece take, kept in its run: `times.json`."""

import time
from pathlib import Path

import torch

from interbasis.run.results import load_result, save_result

TIMES = "times"


class Clock:
    """Seconds from one stage to the next, by the wall and of the processor, all threads together."""

    def __init__(self) -> None:
        self._begun = time.monotonic(), time.process_time()

    def stop(self, run: Path, stage: str) -> None:
        """A stage has ended; what it took is added to what is known of it."""
        now = time.monotonic(), time.process_time()
        known = load_result(run, TIMES) or {"stages": {}, "peak_bytes": None, "threads": 0}
        before = known["stages"].get(stage, {"wall": 0.0, "processor": 0.0})
        known["stages"][stage] = {
            name: round(before[name] + now[k] - self._begun[k], 1)
            for k, name in enumerate(("wall", "processor"))
        }
        known["peak_bytes"] = max(filter(None, (known["peak_bytes"], peak_bytes())), default=None)
        known["threads"] = torch.get_num_threads()
        save_result(run, TIMES, known)
        self._begun = now


def peak_bytes() -> int | None:
    """Most memory that this process had at once, where the system tells."""
    try:
        import resource
        import sys
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
