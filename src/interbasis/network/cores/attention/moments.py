"""Σ N_ss and Σ_st N_stᵀQN_st of attention over blocks of queries; `Attention` has the formulas."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.devices import batch_sums
from interbasis.network.cores.attention.heads import AttentionShape, Heads
from interbasis.network.cores.core import Moments

MAX_COVARIANCE_ELEMENTS = 786_432
"""Elements of the covariances that are multiplied at once: few enough to stay in the cache."""


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
        single, pairs = (heads, *square), (heads, heads, *square)
        by_groups = (groups, groups, *square), (groups, heads, *square)
        sizes = [(heads, heads), (heads,), single, single, pairs, pairs, *by_groups, pairs]
        return cls(*(batch_sums(*size, like=like) for size in sizes))

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
        for rows, columns in ((q, k), (q, v), (k, v)):
            gram[rows, columns] = gram[columns, rows].T
        identity = torch.eye(width, dtype=torch.float64, device=metric.device)
        local_v = diagonal(self.diagonal[:, None, None] * identity, groups)
        local = [diagonal(self.local_q, heads), diagonal(self.local_k, groups), local_v]
        return Moments(torch.cat(local, 1), gram)


def add_block(sums: HeadSums, x: Heads, metric: Tensor, value_products: Tensor) -> None:
    """Add a block of queries; the values are centred, value_products as below for the keys of x.

    Where rotary positions turn them, the key terms are left to `rotary_moments`.
    """
    a, b = x.pattern()  # [H, n, S, T]
    z = a @ x.v  # [H, n, S, h]
    pairs, counted = x.counted_pairs()
    cov = covariances(x, b, z)  # [H, i, n·S, j]
    if pairs is not None and counted is not None:  # the sums below skip what does not count, z and Cov do not
        cov *= counted.flatten()[:, None]
        a, b = (a * pairs,) * 2 if a is b else (a * pairs, b * pairs)
    sums.pattern += a.flatten(1) @ a.flatten(1).T
    if x.shape.rotary is None:  # else `rotary_moments`
        _add_key_terms(sums, x, (a, b, z), metric, value_products)
    diagonal = x.diagonal_weights(a)  # a_ss, [H, n, S]
    deviation = x.diagonal_weights(b)[..., None] * (x.query_values() - z)  # b_ss (v_s − z_s)
    sums.diagonal += diagonal.sum((1, 2))
    sums.local_k += x.shape.sigma * (deviation.flatten(1, 2).mT @ x.q.flatten(1, 2))
    sums.local_q += cov.sum(2)
    _add_query_terms(sums, x.q.flatten(1, 2), diagonal.flatten(1), deviation.flatten(1, 2), cov, metric)
    _add_query_pairs(sums, cov, metric)


def value_products(v: Tensor, metric: Tensor) -> Tensor:
    """v^h_tᵀ Q^{hg} v^g_t for all pairs of heads, [h, g, n, T]."""
    heads = len(v)
    flat = v.permute(1, 2, 0, 3).flatten(2)  # [n, T, H·h]
    rows = []
    for head in range(heads):
        weighted = (v[head] @ metric.unflatten(0, (heads, -1))[head]) * flat  # [n, T, H·h]
        rows.append(weighted.unflatten(2, (heads, -1)).sum(-1).permute(2, 0, 1))
    return torch.stack(rows)


def _add_key_terms(
    sums: HeadSums, x: Heads, patterns: tuple[Tensor, Tensor, Tensor], metric: Tensor, products: Tensor
) -> None:
    """v,k for all pairs and k,k for h ≤ g, both of them from bb = b^h ∘ b^g, which is made once."""
    a, b, z = patterns
    heads, width = x.shape.heads, x.shape.width
    Q = metric.unflatten(0, (heads, width)).unflatten(2, (heads, width))  # [h, i, g, j]
    queries = x.q.flatten(1, 2)  # [g, n·S, h]
    groups = torch.arange(heads, device=b.device) // x.shape.shared

    def by_values(values: Tensor, rows: Tensor, z: Tensor, queries: Tensor) -> Tensor:
        centred = values - rows * z  # Σ_t ab_st (v^g_t − z^g_s), [·, n, S, h]
        return centred.flatten(1, 2).mT @ queries

    for h in range(heads):
        ones = torch.ones_like(x.v[h:, ..., :1])
        right = torch.cat([x.v[h:], x.v[h].expand_as(x.v[h:]), products[h, h:, ..., None], ones], dim=-1)
        mixed = (b[h] * b[h:]) @ right  # Σ_t bb_st [v^g_t, v^h_t, v^hᵀQv^g, 1], [g, n, S, 2h + 2]
        values, other_values, weighted, rows = mixed.split([width, width, 1, 1], dim=-1)
        seen = torch.einsum("nsi,igj->gnsj", z[h], Q[h, :, h:])  # z^hᵀQ^{hg}
        spread = z[h:] @ Q[h, :, h:].permute(1, 2, 0)[:, None]  # Q^{hg}z^g
        inner = (seen * (rows * z[h:] - values) - other_values * spread).sum(-1, keepdim=True)
        kk = ((weighted + inner) * x.q[h]).flatten(1, 2).mT @ queries[h:]
        kk[0] /= 2  # its transpose is the other half
        sums.kk[h // x.shape.shared].index_add_(0, groups[h:], kk.to(sums.kk))
        if a is b:
            sums.vk[h, h:] += by_values(values, rows, z[h:], queries[h:])
            sums.vk[h + 1 :, h] += by_values(other_values[1:], rows[1:], z[h], queries[h])
        else:  # soft-capped scores: v,k goes with a^h b^g
            mixed = (a[h] * b) @ torch.cat([x.v, torch.ones_like(x.v[..., :1])], dim=-1)
            sums.vk[h] += by_values(mixed[..., :width], mixed[..., width:], z, queries)


def covariances(x: Heads, b: Tensor, z: Tensor) -> Tensor:
    """Cov_s as [heads, value coordinate, n·S, key coordinate]."""
    width, shared = x.shape.width, x.shape.shared
    # without caps and sinks Σ_t b (v − z) = 0, so that keys may be centred too, which saves digits
    centred = x.shape.cap is None and x.shape.sinks is None
    k = x.k - x.k.mean(2, keepdim=True) if centred else x.k
    seen, queries = b @ k, b.shape[2]
    cov = b.new_empty(len(b), width, *b.shape[1:3], width)
    for group in range(0, len(b), shared):
        heads = slice(group, group + shared)
        mixed = _products(b[heads].transpose(0, 1), x.v[group], k[group], few=2 * queries <= width)
        mixed.addcmul_(
            z[heads].transpose(0, 1)[..., None], seen[heads].transpose(0, 1)[..., None, :], value=-1
        )
        if x.shape.rotary is not None:
            mixed = x.shape.rotary.turn(mixed, x.positions[:, None, :, None], back=True)
        cov[heads] = mixed.permute(1, 3, 0, 2, 4)
    return cov.mul_(x.shape.sigma).flatten(2, 3)


def _products(b: Tensor, v: Tensor, k: Tensor, few: bool) -> Tensor:
    """Σ_t b_st v_t k_tᵀ, [n, h, S, i, j]; b [n, h, S, T] of the heads that share v and k [n, T, h]."""
    rows, width = b.shape[1:3], v.shape[-1]
    if few:
        weighted = b[..., None, :] * v.mT[:, None, None]  # [n, h, S, i, T]
        return (weighted.flatten(1, 3) @ k).unflatten(1, (*rows, width))
    pairs = (v[..., :, None] * k[..., None, :]).flatten(2)  # [n, T, i·j]
    return (b.flatten(1, 2) @ pairs).unflatten(1, rows).unflatten(3, (width, width))


def _add_query_terms(
    sums: HeadSums, q: Tensor, diagonal: Tensor, deviation: Tensor, cov: Tensor, metric: Tensor
) -> None:
    """v,q and k,q: q and deviation [heads, tokens, h], diagonal [heads, tokens]."""
    heads, width = len(q), q.shape[-1]

    def by_group(x: Tensor) -> Tensor:  # [heads, tokens, h] -> [groups, heads of one · tokens, h]
        return x.flatten(0, 1).unflatten(0, (len(sums.kk), -1))

    blocks = metric.unflatten(0, (heads, width)).unflatten(2, (heads, width))  # [h, i, g, j]
    for g in range(heads):
        # v,q without its Q: Σ_s a^h_ss Cov^g_s
        sums.vq[:, g] += (diagonal @ cov[g]).transpose(0, 1)
        # k,q: b_ss (v_s − z_s)ᵀ Q Cov_s for all heads h
        pushed = (deviation @ blocks[:, :, g]).transpose(0, 1) @ cov[g].transpose(0, 1)  # [tokens, h, j]
        sums.kq[:, g] += by_group(q).mT @ by_group(pushed.transpose(0, 1))


def _add_query_pairs(sums: HeadSums, cov: Tensor, metric: Tensor) -> None:
    """q,q for h ≤ g: Cov^hᵀ (Q Cov^g), contracted over value coordinate and token at once."""
    heads, width, _, _ = cov.shape
    totals = [cov.new_zeros(g + 1, width, width) for g in range(heads)]
    for part in cov.split(max(1, MAX_COVARIANCE_ELEMENTS // (heads * width**2)), dim=2):
        flat = part.reshape(heads, -1, width)  # [H, i·tokens, j]
        for g in range(heads):
            rows = metric[: (g + 1) * width, g * width : (g + 1) * width] @ flat[g].view(width, -1)
            totals[g].baddbmm_(flat[: g + 1].mT, rows.view(g + 1, -1, width))
    for g in range(heads):
        sums.qq[: g + 1, g] += totals[g]
