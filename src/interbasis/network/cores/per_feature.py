"""Functions with other numbers for every feature, as activations of an `Elementwise` core.

torch has the features of a batch norm or PReLU in dimension 1, [samples, features, …]. Here they are the last
dimension, so that rows and sequences of rows are treated alike. The numbers are kept as the module holds
them: in another dtype the function is known to that dtype's digits.
"""

import torch
from torch import Tensor, nn


class PerFeatureNorm(nn.Module):
    """An `nn.BatchNorm1d` in evaluation mode: (u − mean) / √(variance + ε) ∘ gain + bias."""

    def __init__(self, norm: nn.BatchNorm1d):
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.epsilon = norm.eps
        self.mean = nn.Buffer(norm.running_mean.detach().clone())  # [features]
        self.variance = nn.Buffer(norm.running_var.detach().clone())
        ones, zeros = torch.ones_like(self.mean), torch.zeros_like(self.mean)
        self.gain = nn.Buffer(ones if norm.weight is None else norm.weight.detach().clone())
        self.bias = nn.Buffer(zeros if norm.bias is None else norm.bias.detach().clone())

    def extra_repr(self) -> str:
        return f"{len(self.mean)}, epsilon={self.epsilon}"

    def forward(self, u: Tensor) -> Tensor:  # [..., features], or [] for the same number everywhere
        return (u - self.mean) * (self.variance + self.epsilon).rsqrt() * self.gain + self.bias


class PerFeaturePReLU(nn.Module):
    """An `nn.PReLU` with a slope for every feature."""

    def __init__(self, module: nn.PReLU):
        super().__init__()
        self.slopes = nn.Buffer(module.weight.detach().clone())  # [features]

    def extra_repr(self) -> str:
        return f"{len(self.slopes)}"

    def forward(self, u: Tensor) -> Tensor:  # [..., features], or []
        return torch.where(u > 0, u, self.slopes * u)
