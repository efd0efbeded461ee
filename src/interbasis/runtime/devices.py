"""Devices by name."""

import torch

from interbasis.runtime.errors import InterbasisError


def torch_device(name: str) -> torch.device:
    """cpu, cuda, cuda:1 or mps, if this machine has it.

    Raises:
        InterbasisError: There is no such device.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InterbasisError(
            f"expected a device that this machine has (cpu, cuda, cuda:1, mps), received {name!r} ({reason})"
        ) from error
    return device
