"""What a module itself puts out, whatever hangs on it included, and what does hang on it.

A network that was read from a module's weights is right if the module's own outputs agree. They are computed
by calling the module, so that hooks and replaced forwards have their say, with its weights in a higher
precision, so that rounding hides nothing: bfloat16 rounds away more than a change of 10 % in a deep model.
The module itself is left as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from interbasis.base.errors import InterbasisError


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
    """module(inputs) in evaluation mode with all that it holds in ``dtype``, hooks included."""
    with converted(module, dtype):
        return module(inputs)


@contextmanager
def converted(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """A module in evaluation mode with all that it holds in ``dtype``, and afterwards as it was.

    It computes with copies, so that neither weights nor buffers change. Put back afterwards are tensors that
    are plain attributes (the weight that an old-style `weight_norm` makes again in every call), and the
    ``cfg.dtype`` of TransformerLens, to which its parts round.
    """
    places: list[tuple[dict[str, Any], str, Tensor]] = [
        (cast(dict[str, Any], held), name, value)
        for part in module.modules()
        for held in (part._parameters, part._buffers, vars(part))
        for name, value in held.items()
        if isinstance(value, Tensor)
    ]
    copies = {id(value): _converted(value, dtype) for _, _, value in places}  # what is shared stays shared
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "cfg", None))}
    dtypes = [(c, c.dtype) for c in configs.values() if isinstance(getattr(c, "dtype", None), torch.dtype)]
    with evaluation_mode(module), torch.random.fork_rng(devices=[]):
        try:
            for held, name, value in places:
                held[name] = copies[id(value)]
            for config, _ in dtypes:
                config.dtype = dtype
            yield
        finally:
            for held, name, value in places:
                held[name] = value
            for config, before in dtypes:
                config.dtype = before


def _converted(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy, so that nothing in it can be changed by a call."""
    value = value.detach()
    return value.to(dtype, copy=True) if value.is_floating_point() else value.clone()


def parts_with_hooks(module: nn.Module) -> list[str]:
    """Those of a module whose forward hooks or pre-hooks have their say when it is called, by name."""
    parts = module.named_modules()
    return [_named(name) for name, part in parts if part._forward_hooks or part._forward_pre_hooks]


def check_own_forwards(module: nn.Module) -> None:
    """A forward put into a module by assignment belongs to that one and does not go with a copy's weights."""
    for name, part in module.named_modules():
        if "forward" in vars(part):
            raise InterbasisError(
                f"the forward of {_named(name)}, a {type(part).__name__}, was replaced by assignment, which "
                "cannot be read or copied; write what it does as a subclass of nn.Module"
            )


def _named(part: str) -> str:
    return f"part {part!r}" if part else "the module"


def check_no_global_hooks() -> None:
    """They would be called for the modules of a network, too, so that comparing shows nothing."""
    if every_module._global_forward_hooks or every_module._global_forward_pre_hooks:
        raise InterbasisError(
            "a forward hook on all modules (register_module_forward_hook) is active, which would change "
            "networks of interbasis, too; remove it first"
        )
