"""A device other than the CPU, for machines without one: tensors that say `meta` and compute on the CPU.

While the mode is on, what is made on the device `meta` has data, and an operation of such a tensor with one
on the CPU fails, as it does on a GPU; numbers without dimensions are allowed, as they are there. Without
float64, as on the device mps, making a float64 tensor there fails as well, and so does converting one of its
tensors to float64 in the operation that copies it to the CPU.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
WIDE = (torch.float64, torch.complex128)


class Elsewhere(torch.Tensor):
    """A tensor that says it is on the other device."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Elsewhere":
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=DEVICE,
        )  # fmt: skip
        made.inner = inner
        return made

    def tolist(self) -> list[Any]:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:  # type: ignore[override]
        raise AssertionError(f"{func} was called while the other device is off")


class StrayTensorError(AssertionError):
    """A tensor on the CPU met one on the other device."""


class NoFloat64Error(AssertionError):
    """A float64 tensor on a device that has none."""


class OtherDevice(TorchDispatchMode):
    """Runs operations on the other device."""

    def __init__(self, float64: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations, self.float64 = 0, float64

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        away = any(isinstance(x, Elsewhere) for x in tensors)
        device = kwargs.get("device")
        here = torch.device(device) if device is not None else None
        copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if away and not copies:
            stray = [x for x in tensors if not isinstance(x, Elsewhere) and x.ndim]
            if stray and not (func is torch.ops.aten.index.Tensor and isinstance(args[0], Elsewhere)):
                raise StrayTensorError(f"{func}: {[tuple(x.shape) for x in stray]} on the CPU")
        if away or here == DEVICE:
            self.operations += 1
        if here == DEVICE:
            kwargs["device"] = torch.device("cpu")
        fetched = func is torch.ops.aten.copy_.default and isinstance(args[1], Elsewhere)
        if fetched and not self.float64 and args[0].dtype in WIDE:
            raise NoFloat64Error(f"{func} into {args[0].dtype} of shape {tuple(args[0].shape)}")
        result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        to_device = here == DEVICE if here is not None else away
        name = func._schema.name
        if name.endswith("_") and not name.endswith("__"):  # in place, which `__rshift__` is not
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        if not self.float64 and (to_device or away):
            wide = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor) and x.dtype in WIDE]
            if wide:
                raise NoFloat64Error(f"{func} made {wide[0].dtype} of shape {tuple(wide[0].shape)}")
        if not to_device:
            return result
        return tree_map(_elsewhere, result)


def _inner(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, Elsewhere) else x


def _elsewhere(x: Tensor) -> Elsewhere:
    """Conjugates are made, not marked: the mark would be on a tensor that nobody sees."""
    return Elsewhere(x.resolve_conj().resolve_neg()) if isinstance(x, torch.Tensor) else x
