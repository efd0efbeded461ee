"""Speed of this machine at the operations of a build, measured briefly and stored in the cache folder."""

import platform
import time
from collections.abc import Callable

import torch
from pydantic import ValidationError

from interbasis.analysis.costs.operations import Operations
from interbasis.analysis.costs.records import PROFILE_VERSION, MachineProfile
from interbasis.base.files import write_text_atomically
from interbasis.data.download import cache_folder

SECONDS = 0.25
"""Processor time that each kind of operation is measured for, at least."""
REPEAT = 3
"""Measurements of each kind, of which the fastest counts."""


def seconds(profile: MachineProfile, operations: Operations) -> float:
    """Processor time at the number of threads of the profile."""
    return sum(amount / getattr(profile, kind) for kind, amount in vars(operations).items())


def machine_profile(again: bool = False) -> MachineProfile:
    """Profile of this machine at PyTorch's number of threads: as measured before, or measured now."""
    threads = torch.get_num_threads()
    machine = f"{platform.machine()} {platform.processor()}".strip()
    file = cache_folder() / f"profile-{threads}.json"
    if not again and file.is_file():
        try:
            stored = MachineProfile.model_validate_json(file.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            pass
        else:
            known = stored.version, stored.machine, stored.torch
            if known == (PROFILE_VERSION, machine, torch.__version__):
                return stored
    profile = measure(machine, threads)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(file, profile.to_json(indent=1) + "\n")
    return profile


@torch.no_grad()
def measure(machine: str, threads: int) -> MachineProfile:
    """Measure the rates, by the processor's time divided by the threads that share it."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    a, b = random(512, 768), random(768, 768)
    c, d = random(512, 512, dtype=torch.float64), random(512, 512, dtype=torch.float64)
    e, f = random(12, 128, 128), random(12, 128, 64)
    symmetric = c @ c.T
    x, y = random(2**22), random(2**22)
    tiny = random(4)
    return MachineProfile(
        machine=machine,
        threads=threads,
        torch=torch.__version__,
        single=_rate(lambda: a @ b, 2 * 512 * 768 * 768, threads),
        double=_rate(lambda: c @ d, 2 * 512**3, threads),
        small=_rate(lambda: e @ f, 2 * 12 * 128 * 128 * 64, threads),
        eigen=_rate(lambda: torch.linalg.eigh(symmetric), 512**3, threads),
        bytes=_rate(lambda: x * y, 3 * x.nbytes, threads),
        calls=_rate(lambda: tiny + tiny, 1, threads),
    )


def _rate(work: Callable[[], object], amount: float, threads: int) -> float:
    """Amount per second: the best of a few measurements."""
    work()
    best = 0.0
    for _ in range(REPEAT):
        done, start = 0, time.process_time()
        while (passed := time.process_time() - start) < SECONDS / REPEAT:
            work()
            done += 1
        best = max(best, amount * done / passed * threads)
    return best
