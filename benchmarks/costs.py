"""The cost model beside measurements (`interbasis_studies.bench.costs`), at one thread.

python benchmarks/costs.py fit      measure the builds that the model is calibrated on, write the medians of
                                    measured over counted, phase by phase, to costs/calibration.py
python benchmarks/costs.py check    planned over measured, on builds that it was not calibrated on
python benchmarks/costs.py seen     the same on builds that were looked at while operations were counted
"""

import re
import statistics
import sys
import time
from pathlib import Path

import torch

from interbasis.analysis.costs import calibration
from interbasis_studies.bench.costs import CALIBRATED_ON, SEEN, UNSEEN, Case, agreement


def fit() -> None:
    found = []
    for name, case in CALIBRATED_ON.items():
        one = agreement(case, calibrated=False)
        shares = {phase: round(one.measured[phase] / one.planned[phase], 2) for phase in one.planned}
        print(f"{name}: measured over counted {shares}", flush=True)
        found.append(shares)
    medians = {phase: round(statistics.median(one[phase] for one in found), 2) for phase in found[0]}
    print(f"medians {medians}; written to costs/calibration.py")
    write(medians)


def write(shares: dict[str, float]) -> None:
    """The factors and the day, in the place of the old ones."""
    file = Path(calibration.__file__)
    values = ", ".join(f'"{phase}": {share}' for phase, share in shares.items())
    text = re.sub(r"SHARES = \{.*?\}", f"SHARES = {{{values}}}", file.read_text(), count=1, flags=re.DOTALL)
    day = time.strftime("%d %B %Y", time.gmtime()).lstrip("0")
    file.write_text(re.sub(r"one thread, \d+ \w+ \d{4}", f"one thread, {day}", text, count=1))


def check(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        one = agreement(case)
        phases = {phase: round(one.planned[phase] / one.measured[phase], 2) for phase in one.planned}
        print(f"{name}: planned over measured {one.ratio:.2f} {phases}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"fit": fit, "check": lambda: check(UNSEEN), "seen": lambda: check(SEEN)}[sys.argv[1]]()
