"""The cost model beside measurements (`interbasis.bench.costs`), at one thread.

python benchmarks/costs.py fit      measured over counted operations, phase by phase: for costs/calibration.py
python benchmarks/costs.py check    planned over measured, on builds that it was not calibrated on
python benchmarks/costs.py seen     the same on builds that were looked at while operations were counted
"""

import statistics
import sys

import torch

from interbasis.bench.costs import CALIBRATED_ON, SEEN, UNSEEN, Case, agreement


def fit() -> None:
    found = [agreement(case, calibrated=False) for case in CALIBRATED_ON.values()]
    for phase in found[0].planned:
        shares = [one.measured[phase] / one.planned[phase] for one in found]
        print(phase, round(statistics.median(shares), 2), [round(share, 2) for share in shares], flush=True)


def check(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        one = agreement(case)
        phases = {phase: round(one.planned[phase] / one.measured[phase], 2) for phase in one.planned}
        print(f"{name}: planned over measured {one.ratio:.2f} {phases}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"fit": fit, "check": lambda: check(UNSEEN), "seen": lambda: check(SEEN)}[sys.argv[1]]()
