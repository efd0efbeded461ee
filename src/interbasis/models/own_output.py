"""Outputs of a module itself, hooks and replaced forwards included, and checks for these.

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
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Give attributes of objects, (object, name, value) each, other values meanwhile."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode, and afterwards every part in the mode that it was in."""
    with replaced(*((part, "training", part.training) for part in module.modules())):
        module.eval()
        yield


@torch.no_grad()
def own_output(module: nn.Module, inputs: Tensor, dtype: torch.dtype) -> Any:
    """module(inputs) in evaluation mode with all that it holds in ``dtype``, hooks included."""
    with converted(module, dtype):
        return module(inputs)


@contextmanager
def converted(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Put a module in evaluation mode with all that it holds in ``dtype``, and afterwards back.

    It computes with copies, so that neither weights nor buffers change. Put back afterwards are tensors that
    are plain attributes (the weight that an old-style `weight_norm` makes again in every call), and the
    ``cfg.dtype`` of TransformerLens, to which its parts round.
    """
    places: list[tuple[dict[str, Any], str, Tensor]] = [
        (cast(dict[str, Any], attributes), name, value)
        for part in module.modules()
        for attributes in (part._parameters, part._buffers, vars(part))
        for name, value in attributes.items()
        if isinstance(value, Tensor)
    ]
    copies: dict[int, Tensor] = {}  # what is shared stays shared
    for _, _, value in places:
        kind = dtype if value.is_floating_point() else value.dtype
        copies[id(value)] = value.detach().to(kind, copy=True)
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "cfg", None))}
    typed = [c for c in configs.values() if isinstance(getattr(c, "dtype", None), torch.dtype)]
    dtypes = replaced(*((config, "dtype", dtype) for config in typed))
    with evaluation_mode(module), torch.random.fork_rng(devices=[]), dtypes:
        try:
            for attributes, name, value in places:
                attributes[name] = copies[id(value)]
            yield
        finally:
            for attributes, name, value in places:
                attributes[name] = value


def parts_with_hooks(module: nn.Module) -> list[str]:
    """Names of the parts of a module with forward hooks or pre-hooks."""
    parts = module.named_modules()
    return [_named(name) for name, part in parts if part._forward_hooks or part._forward_pre_hooks]


def check_own_forwards(module: nn.Module) -> None:
    """Refuse a forward put into a module by assignment, which does not go with a copy's weights."""
    for name, part in module.named_modules():
        if "forward" in vars(part):
            raise InterbasisError(
                f"the forward of {_named(name)}, a {type(part).__name__}, was replaced by assignment, which "
                "cannot be read or copied; write what it does as a subclass of nn.Module"
            )


def _named(part: str) -> str:
    return f"part {part!r}" if part else "the module"


def check_no_global_hooks() -> None:
    """Refuse hooks on all modules, which would be called for those of a network, too."""
    if every_module._global_forward_hooks or every_module._global_forward_pre_hooks:
        raise InterbasisError(
            "a forward hook on all modules (register_module_forward_hook) is active, which would change "
            "networks of interbasis, too; remove it first"
        )
