"""Prefix of a network, from inputs to the first node layer."""

import torch
from torch import Tensor, nn


class Prefix(nn.Module):
    """Map from inputs to the first node layer, [n, T, width], the constant in front."""

    def has_positions(self, inputs: Tensor) -> bool:
        """Whether these inputs are sequences; rows without positions are treated as sequences of one."""
        return True

    def tensors(self) -> list[Tensor]:
        """All weights."""
        return list(self.state_dict().values())


def with_constant(f: Tensor) -> Tensor:  # [..., d] -> [..., d + 1]
    """Put the constant 1 in front."""
    return torch.cat([torch.ones_like(f[..., :1]), f], dim=-1)
