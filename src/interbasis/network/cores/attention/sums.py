"""Running sums of attention's Jacobian over queries, by pairs of heads, and how they make Σ NᵀQN."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.devices import batch_sums
from interbasis.network.cores.attention.heads import AttentionShape
from interbasis.network.cores.core import Moments


@dataclass
class HeadSums:
    """Running sums over blocks of queries, by pairs of heads h, g or of groups G, G′ that share keys."""

    pattern: Tensor  # Σ_st a^h_st a^g_st          [h, g]
    diagonal: Tensor  # Σ_s a_ss                    [h]
    local_k: Tensor  # Σ_s σ a_ss (v_s − z_s) q_sᵀ  [h, i, j]
    local_q: Tensor  # Σ_s Cov_s                    [h, i, j]
    vk: Tensor  # Σ_s (aa v^g − rowsum z^g) q^gᵀ     [h, g, i, j]
    vq: Tensor  # Σ_s a^h_ss Cov^g_s                [h, g, i, j]
    kk: Tensor  # Σ_s w_s q^h q^gᵀ, h < g, half of it where h = g, over heads of two groups [G, G′, i, j]
    kq: Tensor  # Σ_s q^h a^h_ss (v−z)^hᵀ Q Cov^g, over heads h of a group [G, g, i, j]
    qq: Tensor  # Σ_s Cov^hᵀ Q Cov^g, h ≤ g         [h, g, i, j]

    @classmethod
    def zero(cls, shape: AttentionShape, like: Tensor) -> "HeadSums":
        heads, groups, square = shape.heads, shape.groups, (shape.width, shape.width)

        def zeros(*shape: int) -> Tensor:
            return batch_sums(*shape, like=like)

        return cls(
            pattern=zeros(heads, heads),
            diagonal=zeros(heads),
            local_k=zeros(heads, *square),
            local_q=zeros(heads, *square),
            vk=zeros(heads, heads, *square),
            vq=zeros(heads, heads, *square),
            kk=zeros(groups, groups, *square),
            kq=zeros(groups, heads, *square),
            qq=zeros(heads, heads, *square),
        )

    def assemble(self, metric: Tensor, shape: AttentionShape) -> Moments:
        heads, width, groups = shape.heads, shape.width, shape.groups
        blocks = metric.double().unflatten(0, (heads, width)).unflatten(2, (heads, width)).transpose(1, 2)

        def matrix(by_pairs: Tensor) -> Tensor:  # [h, g, i, j] -> [H·h, H·h]
            return by_pairs.transpose(1, 2).flatten(2).flatten(0, 1)

        def over(by_heads: Tensor, *dims: int) -> Tensor:
            """Sums over the heads of every group."""
            for dim in dims if groups < heads else ():
                by_heads = by_heads.unflatten(dim, (groups, shape.shared)).sum(dim + 1)
            return by_heads

        def diagonal(by_heads: Tensor, parts: int) -> Tensor:  # [h, i, j] -> [H·h, parts·h]
            """Heads, or groups of them, each in columns of its own."""
            return torch.block_diag(*by_heads.flatten(0, 1).unflatten(0, (parts, -1)))

        keys, values = shape.sizes[0], sum(shape.sizes[:2])
        q, k, v = slice(0, keys), slice(keys, values), slice(values, sum(shape.sizes))
        gram = metric.new_empty(v.stop, v.stop, dtype=torch.float64)  # filled part by part: it is large
        upper = torch.ones(heads, heads, dtype=torch.bool, device=metric.device).triu(1)[..., None, None]
        gram[q, q] = matrix(self.qq)
        gram[q, q] += matrix(torch.where(upper, self.qq, 0.0)).T
        kk = matrix(self.kk)
        gram[k, k] = shape.sigma**2 * (kk + kk.T)
        gram[v, v] = matrix(over(blocks * self.pattern[..., None, None], 0, 1))
        gram[v, k] = shape.sigma * matrix(over(blocks @ self.vk, 0, 1))
        gram[v, q] = matrix(over(blocks @ self.vq, 0))
        gram[k, q] = shape.sigma * matrix(self.kq)
        for one, other in ((q, k), (q, v), (k, v)):
            gram[one, other] = gram[other, one].T
        identity = torch.eye(width, dtype=torch.float64, device=metric.device)
        local_v = diagonal(self.diagonal[:, None, None] * identity, groups)
        local = [diagonal(self.local_q, heads), diagonal(self.local_k, groups), local_v]
        return Moments(torch.cat(local, 1), gram)
