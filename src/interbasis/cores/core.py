"""What a section's non-linear core has to answer.

A section is F(f) = P f + B · core(A f). With N_st = ∂core_s/∂u_t, u = A f, the basis needs two sums over
the data, Σ N_ss and Σ_st N_stᵀ Q N_st, and the edges need Σ_t N_st A_j f_jt for every input feature j.
Everything else about a section is linear and lives in `network.Section`.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from interbasis.integration import Rule

Sums = dict[str, Tensor]


class Moments(NamedTuple):
    """The two sums over the data that decide a section's Jacobian Gram."""

    local: Tensor  # Σ N_ss          [c_out, c_in]
    gram: Tensor  # Σ_st N_stᵀQN_st  [c_in, c_in]


class Core(ABC):
    """A differentiable map u ↦ core(u), [n, positions, c_in] → [n, outputs, c_out], with core(0) = 0.

    The outputs belong to the *last* ``outputs`` of the input positions.

    A core is one of two kinds. Where both sums follow from statistics that do not depend on Q
    (``has_statistics``), it implements `statistics` and `moments`, and one pass over the data serves all
    layers. Where they do not, it implements `batch_moments` and gets a pass of its own.
    """

    has_statistics: bool = False

    @abstractmethod
    def __call__(self, u: Tensor, outputs: int) -> Tensor: ...  # [n, T, c_in] -> [n, S, c_out]

    def statistics(self, u: Tensor, outputs: int) -> Sums:  # u [n, T, c_in]
        """Sums over the batch from which `moments` follow for any Q."""
        raise NotImplementedError

    def moments(self, sums: Sums, metric: Tensor) -> Moments:  # Q [c_out, c_out]
        raise NotImplementedError

    def batch_moments(self, u: Tensor, outputs: int, metric: Tensor, signs: Tensor | None) -> Moments:
        """Both sums over a batch; ``signs`` [n, outputs, R] are stochastic sources, where they are needed."""
        raise NotImplementedError

    def to(self, *args: Any, **kwargs: Any) -> "Core":
        """The core in another dtype or on another device; one without parameters is the same everywhere."""
        return self

    @abstractmethod
    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: int, rule: Rule) -> Tensor:
        """Σ_t N̄_st A_j f_jt, with N̄ the Jacobian averaged along the line from 0 to u by ``rule``.

        u [n, T, c_in], f [n, T, r], read [c_in, r] -> [c_out, n·outputs, r]
        """

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, outputs: int, rule: Rule, signs: Tensor
    ) -> Tensor:
        """`attributions` summed with signs over groups: signs [groups, g, R] cover the n·outputs tokens.

        The last group may be padded with zeros. Returns [c_out, groups·R, r].
        """
        tokens = self.attributions(u, f, read, outputs, rule)  # [c_out, n·S, r]
        groups, size, _ = signs.shape
        padding = groups * size - tokens.shape[1]
        tokens = torch.nn.functional.pad(tokens, (0, 0, 0, padding))
        tokens = tokens.unflatten(1, (groups, size))
        return torch.einsum("cgtj,gtr->cgrj", tokens, signs).flatten(1, 2)
