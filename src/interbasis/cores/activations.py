"""Activation functions that some libraries write out in many steps, done by one kernel of torch."""

import torch
from torch import Tensor, nn


class TanhGELU(nn.Module):
    """transformers' NewGELUActivation, ½u (1 + tanh(√(2/π) (u + 0.044715 u³))), and goes by its name."""

    def forward(self, u: Tensor) -> Tensor:
        return torch.nn.functional.gelu(u, approximate="tanh")

    def __repr__(self) -> str:
        return "NewGELUActivation()"


def fused(activation: nn.Module) -> nn.Module:
    """The same function by one kernel, forward and backward, where there is one."""
    kind = type(activation)
    slow = kind.__name__ == "NewGELUActivation" and kind.__module__.startswith("transformers.")
    return TanhGELU() if slow else activation
