"""The cost model beside measurements (`interbasis.bench.costs`), at one thread.

python benchmarks/costs.py fit      measured over counted operations, phase by phase: for costs/calibration.py
python benchmarks/costs.py check    planned over measured, on builds that it was not calibrated on
"""

import statistics
import sys

import torch

from interbasis.bench.costs import CALIBRATED_ON, CHECKED_ON, agreement


def fit() -> None:
    found = [agreement(shape, group, calibrated=False) for shape, group in CALIBRATED_ON.values()]
    for phase in found[0].planned:
        shares = [one.measured[phase] / one.planned[phase] for one in found]
        print(phase, round(statistics.median(shares), 2), [round(share, 2) for share in shares], flush=True)


def check() -> None:
    for name, (shape, group) in CHECKED_ON.items():
        one = agreement(shape, group)
        phases = {phase: round(one.planned[phase] / one.measured[phase], 2) for phase in one.planned}
        print(f"{name}: planned over measured {one.ratio:.2f} {phases}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"fit": fit, "check": check}[sys.argv[1]]()
