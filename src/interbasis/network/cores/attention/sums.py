"""Running sums of attention's Jacobian over queries, by pairs of heads, and how they make Σ NᵀQN."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.network.cores.core import Moments
from interbasis.runtime.devices import batch_sums


@dataclass
class HeadSums:
    """Running sums over blocks of queries, by pairs of heads."""

    pattern: Tensor  # Σ_st a^h_st a^g_st          [h, g]
    diagonal: Tensor  # Σ_s a_ss                    [h]
    local_k: Tensor  # Σ_s σ a_ss (v_s − z_s) q_sᵀ  [h, i, j]
    local_q: Tensor  # Σ_s Cov_s                    [h, i, j]
    vk: Tensor  # Σ_s (aa v^g − rowsum z^g) q^gᵀ     [h, g, i, j]
    vq: Tensor  # Σ_s a^h_ss Cov^g_s                [h, g, i, j]
    kk: Tensor  # Σ_s w_s q^h q^gᵀ, h < g, half of it where h = g [h, g, i, j]
    kq: Tensor  # Σ_s q^h a^h_ss (v−z)^hᵀ Q Cov^g    [h, g, i, j]
    qq: Tensor  # Σ_s Cov^hᵀ Q Cov^g, h ≤ g         [h, g, i, j]

    @classmethod
    def zero(cls, heads: int, width: int, like: Tensor) -> "HeadSums":
        def zeros(*shape: int) -> Tensor:
            return batch_sums(*shape, like=like)

        block = (heads, heads, width, width)
        return cls(
            zeros(heads, heads), zeros(heads), zeros(heads, width, width), zeros(heads, width, width),
            zeros(*block), zeros(*block), zeros(*block), zeros(*block), zeros(*block),
        )  # fmt: skip

    def assemble(self, metric: Tensor, scale: float) -> Moments:
        heads, width = len(self.diagonal), self.local_k.shape[-1]
        full = heads * width
        blocks = metric.double().unflatten(0, (heads, width)).unflatten(2, (heads, width)).transpose(1, 2)

        def matrix(by_pairs: Tensor) -> Tensor:  # [h, g, i, j] -> [H·h, H·h]
            return by_pairs.transpose(1, 2).reshape(full, full)

        def diagonal(by_heads: Tensor) -> Tensor:  # [h, i, j] -> [H·h, H·h]
            return torch.block_diag(*by_heads)

        q, k, v = (slice(part * full, (part + 1) * full) for part in range(3))
        gram = metric.new_empty(3 * full, 3 * full, dtype=torch.float64)  # filled part by part: it is large
        upper = torch.ones(heads, heads, dtype=torch.bool, device=metric.device).triu(1)[..., None, None]
        gram[q, q] = matrix(self.qq)
        gram[q, q] += matrix(torch.where(upper, self.qq, 0.0)).T
        kk = matrix(self.kk)
        gram[k, k] = scale**2 * (kk + kk.T)
        gram[v, v] = matrix(blocks * self.pattern[..., None, None])
        gram[v, k], gram[v, q] = scale * matrix(blocks @ self.vk), matrix(blocks @ self.vq)
        gram[k, q] = scale * matrix(self.kq)
        for one, other in ((q, k), (q, v), (k, v)):
            gram[one, other] = gram[other, one].T
        identity = torch.eye(width, dtype=torch.float64, device=metric.device)
        local_v = diagonal(self.diagonal[:, None, None] * identity)
        return Moments(torch.cat([diagonal(self.local_q), diagonal(self.local_k), local_v], 1), gram)
