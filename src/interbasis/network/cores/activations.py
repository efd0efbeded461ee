"""Activation functions as cores hold them: without hooks, and by one kernel of torch where there is one."""

from copy import deepcopy

import torch
from torch import Tensor, nn


class TanhGELU(nn.Module):
    """transformers' NewGELUActivation, ½u (1 + tanh(√(2/π) (u + 0.044715 u³))), and goes by its name."""

    def forward(self, u: Tensor) -> Tensor:
        return torch.nn.functional.gelu(u, approximate="tanh")

    def __repr__(self) -> str:
        return "NewGELUActivation()"


class BloomGELU(nn.Module):
    """transformers' BloomGelu, whose √(2/π) has eight digits, without a backward of its own."""

    def forward(self, u: Tensor) -> Tensor:
        return u / 2 * (1 + torch.tanh(0.79788456 * u * (1 + 0.044715 * u * u)))

    def __repr__(self) -> str:
        return "BloomGelu()"


def bare(activation: nn.Module) -> nn.Module:
    """Return the function without hooks, which need not act on every coordinate by itself."""
    if not any(_hooks(part) for part in activation.modules()):
        return activation
    activation = deepcopy(activation)
    for part in activation.modules():
        for hooks in _hooks(part):
            hooks.clear()
    return activation


def _hooks(module: nn.Module) -> list[dict[int, object]]:
    """The dictionaries of its hooks that are not empty."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [hooks for kind in kinds if (hooks := getattr(module, kind))]


def fused(activation: nn.Module) -> nn.Module:
    """Return the function as one kernel, forward and backward, where there is one."""
    kind, replaced = type(activation), {"NewGELUActivation": TanhGELU, "BloomGelu": BloomGELU}
    known = kind.__module__.startswith("transformers.") and kind.__name__ in replaced
    return replaced[kind.__name__]() if known else activation


@torch.no_grad()
def acts_elementwise(activation: nn.Module, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether every coordinate is treated by itself, as far as a few numbers tell.

    Kernels for one number and for many may round differently.
    """
    u = torch.linspace(-3, 3, 7, dtype=dtype, device=device)
    one_by_one = torch.cat([activation(u[k : k + 1]) for k in range(len(u))])
    together = activation(u)
    return bool((together - one_by_one).abs().max() <= 1e-4 * together.abs().max())
