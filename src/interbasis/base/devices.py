"""Devices by name, and where the float64 sums of a device are kept.

Sums over data are float64, on the device that computes. A device without float64 (mps) computes in float32:
the sums of a batch are float32 there, and are added up in float64 on the CPU.
"""

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError

WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that have no float64."""


def torch_device(name: str) -> torch.device:
    """cpu, cuda, cuda:1 or mps, if this machine has it.

    Raises:
        InterbasisError: There is no such device.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # the device meta holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        raise InterbasisError(
            f"expected a device that this machine has (cpu, cuda, cuda:1, mps), received {name!r} ({reason})"
        ) from error
    return device


def has_float64(device: torch.device) -> bool:
    """Whether float64 numbers can be on it."""
    return device.type not in WITHOUT_FLOAT64


def require_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Refuse to compute in float64 where there is none.

    Raises:
        InterbasisError: The device has no float64, which the network would compute in.
    """
    if dtype == torch.float64 and not has_float64(device):
        raise InterbasisError(
            f"the device {device.type} has no float64, in which the network would compute; build in float32 "
            "(--dtype float32), or choose cpu or cuda"
        )


def sums_device(device: torch.device) -> torch.device:
    """Device of the float64 sums of what a device computes."""
    return device if has_float64(device) else torch.device("cpu")


def near_sums(x: Tensor) -> Tensor:
    """x where float64 sums of its device are kept, as it is."""
    return x.to(sums_device(x.device))


def double(x: Tensor) -> Tensor:
    """x in float64, where such sums of its device are kept."""
    return near_sums(x).double()  # in two steps: no device without float64 is asked to convert


def double_sum(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Σ x in float64; on a device without it, the sum of this batch is rounded to float32."""
    return x.sum(dim, dtype=torch.float64) if has_float64(x.device) else double(x.sum(dim))


def batch_sums(*shape: int, like: Tensor) -> Tensor:
    """Zeros for the sums of a batch beside x: float64 where its device has it."""
    dtype = torch.float64 if has_float64(like.device) else torch.float32
    return torch.zeros(shape, dtype=dtype, device=like.device)
