"""What a module itself puts out, whatever hangs on it included, and what does hang on it.

A network that was read from a module's weights is right if the module's own outputs agree. They are computed
by calling the module, so that hooks and replaced forwards have their say, with its weights in a higher
precision, so that rounding hides nothing: bfloat16 rounds away more than a change of 10 % in a deep model.
The module itself is left as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as every_module


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """In evaluation mode, and afterwards every part in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for part, training in modes:
            part.training = training


@torch.no_grad()
def own_output(module: nn.Module, inputs: Tensor, dtype: torch.dtype) -> Any:
    """module(inputs) in evaluation mode with all that it holds in ``dtype``, hooks included.

    It computes with copies, so that neither weights nor buffers change. Put back afterwards are tensors that
    are plain attributes (the weight that an old-style `weight_norm` makes anew in every call), and the
    ``cfg.dtype`` of TransformerLens, to which its parts round.
    """
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    attributes = [
        (part, name, value)
        for part in module.modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    ]
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "cfg", None))}
    dtypes = [(c, c.dtype) for c in configs.values() if isinstance(getattr(c, "dtype", None), torch.dtype)]
    with evaluation_mode(module), torch.random.fork_rng(devices=[]):
        try:
            for part, name, value in attributes:
                setattr(part, name, _converted(value, dtype))
            for config, _ in dtypes:
                config.dtype = dtype
            return functional_call(module, {name: _converted(t, dtype) for name, t in held.items()}, inputs)
        finally:
            for part, name, value in attributes:
                setattr(part, name, value)
            for config, before in dtypes:
                config.dtype = before


def _converted(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy, so that nothing in it can be changed by a call."""
    value = value.detach()
    return value.to(dtype, copy=True) if value.is_floating_point() else value.clone()


def changes(module: nn.Module) -> list[str]:
    """Hooks and replaced forwards of a module and its parts, in words: with them a call is more than forward."""
    found = []
    for name, part in module.named_modules():
        where = f"part {name!r}" if name else f"the {type(part).__name__}"
        if part._forward_hooks or part._forward_pre_hooks:
            found.append(f"{where} has forward hooks")
        if "forward" in vars(part):
            found.append(f"{where} has a forward that was put in place of its own")
    return found


def hooks_on_all_modules() -> bool:
    """Whether torch calls a hook for every module there is (`register_module_forward_hook`)."""
    return bool(every_module._global_forward_hooks or every_module._global_forward_pre_hooks)
