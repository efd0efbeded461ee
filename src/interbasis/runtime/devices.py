"""Devices by name."""

import torch

from interbasis.runtime.errors import InterbasisError


def torch_device(name: str) -> torch.device:
    """cpu, cuda or cuda:1, if this machine has it.

    Raises:
        InterbasisError: There is no such device, or it has no float64.
    """
    try:
        device = torch.device(name)
        if device.type == "mps":
            raise InterbasisError(
                "the device mps has no float64, in which sums over the data are taken; choose cpu or cuda"
            )
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InterbasisError(
            f"expected a device that this machine has (cpu, cuda, cuda:1), received {name!r} ({reason})"
        ) from error
    return device
