"""Multi-head softmax attention on queries, keys and values that were read already."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.cores.core import Core, Moments
from interbasis.integration import Rule

BLOCK = 64
"""Queries handled at once: bounds the memory, and lets causal attention skip the keys it cannot see."""

BUDGET = 2**21
"""Elements that the covariances of the queries handled at once may hold."""


@dataclass(frozen=True)
class _Heads:
    """What a batch looks like to every head; the queries sit at positions first … first + S − 1."""

    q: Tensor  # [heads, n, S, h]
    k: Tensor  # [heads, n, T, h]
    v: Tensor  # [heads, n, T, h]
    first: int

    def queries(self, start: int, count: int, causal: bool) -> "_Heads":
        """Some of the queries, with the keys and values they can see."""
        q = self.q[:, :, start : start + count]
        seen = self.first + start + q.shape[2] if causal else self.k.shape[2]
        return _Heads(q, self.k[:, :, :seen], self.v[:, :, :seen], self.first + start)


class Attention(Core):
    """u = [q | k | v], each heads · h wide; core(u) = z, heads · h wide.

    For one head, query s and key t, with a = softmax pattern, z_s = Σ_u a_su v_u, k̄_s = Σ_u a_su k_u,
    σ = 1/√h and Cov_s = σ (Σ_u a_su v_u k_uᵀ − z_s k̄_sᵀ), the Jacobian is

        N_st = a_st [ I on v  +  σ (v_t − z_s) q_sᵀ on k ]  +  δ_st [ Cov_s on q ].

    For a pair of heads (h, g), with aa = a^h ∘ a^g and Q the pair's block of the metric, the blocks of
    Σ_st N_stᵀQN_st, the sum over *all* pairs of positions, are

        v,v  Q Σ_st aa_st
        v,k  σ Q Σ_s (aa v^g − rowsum(aa) z^g)_s q^g_sᵀ
        v,q  Q Σ_s a^h_ss Cov^g_s
        k,k  σ² Σ_s w_s q^h_s q^g_sᵀ,   w_s = Σ_t aa_st (v^h_t − z^h_s)ᵀ Q (v^g_t − z^g_s)
        k,q  σ Σ_s a^h_ss q^h_s (v^h_s − z^h_s)ᵀ Q Cov^g_s
        q,q  Σ_s Cov^h_sᵀ Q Cov^g_s.

    Cost per token about 4H²Th + 2Th²H + 2H²h³ multiplications and additions; the memory is that of one
    block of queries.
    """

    mixes_positions = True

    def __init__(self, heads: int, head_width: int, causal: bool = True, scale: float | None = None):
        self.heads = heads
        self.head_width = head_width
        self.causal = causal
        self.scale = head_width**-0.5 if scale is None else scale

    def __repr__(self) -> str:
        kind = "causal" if self.causal else "bidirectional"
        scaled = "" if self.scale == self.head_width**-0.5 else f", scale {self.scale:.6g}"
        return f"Attention({self.heads} heads of {self.head_width}, {kind}{scaled})"

    def __call__(self, u: Tensor, at: slice) -> Tensor:
        x = self._split(u, at)
        return (self._pattern(x) @ x.v).permute(1, 2, 0, 3).flatten(2)

    def written_from_table(self, rows: Tensor, index: Tensor, at: slice, write: Tensor) -> Tensor:
        """Scores and written values are those of pairs of different tokens; samples look them up.

        out_s = Σ_h Σ_t a^h_st (B^h v^h_t), with scores from [H, queries, U] and B v from [U, H, rows].
        """
        q, k, v = rows.unflatten(1, (3, self.heads, self.head_width)).permute(1, 2, 0, 3)  # [H, U, h]
        asking, which = index[:, at].unique(return_inverse=True)  # [n, S]
        seen = index[:, : at.stop] if self.causal else index  # [n, T]
        if len(asking) * len(rows) > which.numel() * seen.shape[1]:
            return self.written(rows[index], at, write)
        scores = self.scale * (q[:, asking] @ k.mT)
        pattern = self._softmax(scores[:, which[:, :, None], seen[:, None]], at.start)  # [H, n, S, T]
        values = torch.einsum("hui,rhi->uhr", v, write.unflatten(1, (self.heads, self.head_width)))
        flat = pattern.permute(1, 2, 3, 0).flatten(2)  # [n, S, T·H]
        return flat @ values[seen].flatten(1, 2)

    def _split(self, u: Tensor, at: slice) -> _Heads:
        seen = at.stop if self.causal else u.shape[1]
        parts = u[:, :seen].unflatten(2, (3, self.heads, self.head_width)).permute(2, 3, 0, 1, 4)
        q, k, v = parts.contiguous()  # each [heads, n, T, h]
        return _Heads(q[:, :, at], k, v, at.start)

    def _pattern(self, x: _Heads) -> Tensor:
        """Softmax of the scores, [heads, n, S, T]."""
        return self._softmax(self.scale * (x.q @ x.k.mT), x.first)

    def _softmax(self, scores: Tensor, first: int) -> Tensor:  # [..., S, T]
        """Over the keys that queries from position ``first`` on can see."""
        if self.causal:
            query = torch.arange(first, first + scores.shape[-2], device=scores.device)
            key = torch.arange(scores.shape[-1], device=scores.device)
            scores = scores.masked_fill(key > query[:, None], -torch.inf)
        return scores.softmax(dim=-1)

    def batch_moments(self, u: Tensor, at: slice, metric: Tensor, signs: Tensor | None) -> Moments:
        """Exact, whatever the signs: the closed form needs no sources."""
        sums = _Sums.zero(self.heads, self.head_width, u)
        block = min(BLOCK, at.stop - at.start)
        largest = max(self.heads * block, u.shape[1]) * self.head_width**2  # covariances, or v kᵀ of one head
        samples = max(1, BUDGET // largest)
        for some in u.split(samples):
            whole = self._split(some, at)
            products = self._value_products(whole.v, metric)
            for start in range(0, at.stop - at.start, block):
                part = whole.queries(start, block, self.causal)
                self._add_block(sums, part, metric, products[..., : part.k.shape[2]])
        return sums.assemble(metric, self.scale)

    def _value_products(self, v: Tensor, metric: Tensor) -> Tensor:
        """v^h_tᵀ Q^{hg} v^g_t for all pairs of heads, [h, g, n, T]."""
        flat = v.permute(1, 2, 0, 3).flatten(2)  # [n, T, H·h]
        rows = []
        for head in range(self.heads):
            weighted = (v[head] @ metric.unflatten(0, (self.heads, -1))[head]) * flat  # [n, T, H·h]
            rows.append(weighted.unflatten(2, (self.heads, -1)).sum(-1).permute(2, 0, 1))
        return torch.stack(rows)

    def _add_block(self, sums: "_Sums", x: _Heads, metric: Tensor, value_products: Tensor) -> None:
        q, k, v, first = x.q, x.k, x.v, x.first
        heads, _, outputs, width = q.shape
        Q = metric.unflatten(0, (heads, width)).unflatten(2, (heads, width))  # [h, i, g, j]
        a = self._pattern(x)  # [H, n, S, T]
        z = a @ v  # [H, n, S, h]
        sums.pattern += a.flatten(1) @ a.flatten(1).T
        self._add_key_terms(sums, x, a, z, Q, value_products)
        cov = self._covariances(a, k, v, z)  # [H, i, n·S, j]
        diagonal = a.diagonal(first, dim1=2, dim2=3)[..., :outputs]  # a_ss, [H, n, S]
        deviation = diagonal[..., None] * (v[:, :, first : first + outputs] - z)  # a_ss (v_s − z_s)
        sums.diagonal += diagonal.sum((1, 2))
        sums.local_k += self.scale * (deviation.flatten(1, 2).mT @ q.flatten(1, 2))
        sums.local_q += cov.sum(2)
        self._add_query_terms(sums, q, diagonal, deviation, cov, metric)

    def _add_key_terms(
        self, sums: "_Sums", x: _Heads, a: Tensor, z: Tensor, Q: Tensor, value_products: Tensor
    ) -> None:
        """v,k and half of k,k (its transpose is the other half), for every ordered pair (h, g)."""
        q, v = x.q, x.v
        heads, width = len(q), q.shape[-1]
        one = torch.ones_like(v[..., :1])
        for h in range(heads):
            right = torch.cat([v, value_products[h][..., None], one], dim=-1)  # [g, n, T, h + 2]
            mixed = (a[h] * a) @ right  # Σ_t aa_st [v^g_t, v^hᵀQv^g, 1]
            values, products, rows = mixed[..., :width], mixed[..., width], mixed[..., width + 1]
            centred = values - rows[..., None] * z
            sums.vk[h] += centred.flatten(1, 2).mT @ q.flatten(1, 2)  # [g, h, h]
            seen = torch.einsum("nsi,igj->gnsj", z[h], Q[h])  # z^hᵀQ^{hg}
            half = (products + rows * (seen * z).sum(-1)) / 2 - (seen * values).sum(-1)
            sums.kk[h] += (half[..., None] * q[h]).flatten(1, 2).mT @ q.flatten(1, 2)

    def _covariances(self, a: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Tensor:
        """Cov_s as [heads, value coordinate, n·S, key coordinate]."""
        heads, n, outputs, _ = a.shape
        width = k.shape[-1]
        cov = a.new_empty(heads, width, n, outputs, width)
        seen = a @ k
        for h in range(heads):
            pairs = (v[h, ..., :, None] * k[h, ..., None, :]).flatten(2)  # [n, T, h·h]
            mixed = (a[h] @ pairs).unflatten(2, (width, width))  # [n, S, h, h]
            mixed -= z[h, ..., :, None] * seen[h, ..., None, :]
            cov[h] = mixed.permute(2, 0, 1, 3)
        return cov.mul_(self.scale).flatten(2, 3)

    def _add_query_terms(
        self, sums: "_Sums", q: Tensor, diagonal: Tensor, deviation: Tensor, cov: Tensor, metric: Tensor
    ) -> None:
        heads, width = len(q), q.shape[-1]
        tokens = cov.shape[2]
        queries = q.flatten(1, 2)  # [H, n·S, h]
        weighted = diagonal.flatten(1).T  # [n·S, H]
        deviations = deviation.permute(1, 2, 0, 3).reshape(tokens, heads, width)
        for g in range(heads):
            columns = metric[:, g * width : (g + 1) * width]  # [H·h, h]
            by_token = cov[g].transpose(0, 1)  # [n·S, i, j]
            # v,q without its Q: Σ_s a^h_ss Cov^g_s
            sums.vq[:, g] += (weighted.T @ by_token.reshape(tokens, -1)).unflatten(1, (width, width))
            # k,q: a_ss (v_s − z_s)ᵀ Q Cov_s for all heads h
            blocks = columns.unflatten(0, (heads, width))  # [h, i, j]
            pushed = torch.einsum("xhi,hij->xhj", deviations, blocks) @ by_token  # [n·S, h, j]
            sums.kq[:, g] += queries.mT @ pushed.transpose(0, 1)
            # q,q for h ≤ g: Cov^hᵀ (Q Cov^g), contracted over value coordinate and token at once
            rows = columns[: (g + 1) * width] @ cov[g].flatten(1)  # [(g+1)·h, n·S·h]
            rows = rows.view(g + 1, width * tokens, width)
            sums.qq[: g + 1, g] += torch.bmm(cov[: g + 1].flatten(1, 2).mT, rows)

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, at: slice, rule: Rule) -> Tensor:
        """Gradient or quadrature; attention has no closed form along the line.

        Σ_t N_st c_j f_jt = (W_V c_j)(a f_j)_s + σ (q_sᵀW_K c_j)[Σ_t a_st v_t f_jt − z_s (a f_j)_s]
                            + Cov_s W_Q c_j f_js,    with W c_j the columns of ``read``.
        """
        total = u.new_zeros(())
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            total = total + weight * self._attributions(node * u, f, read, at)
        return total

    def _attributions(self, u: Tensor, f: Tensor, read: Tensor, at: slice) -> Tensor:
        x = self._split(u, at)
        read_q, read_k, read_v = read.unflatten(0, (3, self.heads, self.head_width))  # [H, h, r]
        a = self._pattern(x)
        z = a @ x.v
        _, n, outputs, width = z.shape
        own, all_seen = f[:, at], f[:, : x.v.shape[2]]  # f_js [n, S, r] and f_jt [n, T, r]
        seen = a @ all_seen  # Σ_t a_st f_jt, [H, n, S, r]
        result = u.new_empty(self.heads, width, n, outputs, f.shape[2])
        for h in range(self.heads):
            weighted = a[h, :, :, None, :] * x.v[h].mT[:, None]  # a_st v_ti, [n, S, h, T]
            moved = (weighted.flatten(1, 2) @ all_seen).unflatten(1, (outputs, width))  # Σ_t a_st v_ti f_jt
            moved -= z[h, ..., None] * seen[h, ..., None, :]
            pulled = self.scale * (x.q[h] @ read_k[h])  # σ q_sᵀW_K c_j, [n, S, r]
            cov = weighted.flatten(1, 2) @ x.k[h]  # [n, S·h, h]
            cov = cov.unflatten(1, (outputs, width)) - z[h, ..., None] * (a[h] @ x.k[h])[..., None, :]
            through_queries = self.scale * (cov @ read_q[h]) * own[:, :, None, :]
            total = moved * pulled[..., None, :] + read_v[h] * seen[h, ..., None, :] + through_queries
            result[h] = total.permute(2, 0, 1, 3)
        return result.flatten(0, 1).flatten(1, 2)


@dataclass
class _Sums:
    """Running sums over blocks of queries, by pairs of heads."""

    pattern: Tensor  # Σ_st a^h_st a^g_st          [h, g]
    diagonal: Tensor  # Σ_s a_ss                    [h]
    local_k: Tensor  # Σ_s σ a_ss (v_s − z_s) q_sᵀ  [h, i, j]
    local_q: Tensor  # Σ_s Cov_s                    [h, i, j]
    vk: Tensor  # Σ_s (aa v^g − rowsum z^g) q^gᵀ     [h, g, i, j]
    vq: Tensor  # Σ_s a^h_ss Cov^g_s                [h, g, i, j]
    kk: Tensor  # half of Σ_s w_s q^h q^gᵀ           [h, g, i, j]
    kq: Tensor  # Σ_s q^h a^h_ss (v−z)^hᵀ Q Cov^g    [h, g, i, j]
    qq: Tensor  # Σ_s Cov^hᵀ Q Cov^g, h ≤ g         [h, g, i, j]

    @classmethod
    def zero(cls, heads: int, width: int, like: Tensor) -> "_Sums":
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=like.device)

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

        upper = torch.ones(heads, heads, dtype=torch.bool, device=metric.device).triu(1)[..., None, None]
        qq = matrix(self.qq)
        qq = qq + matrix(torch.where(upper, self.qq, 0.0)).T
        kk = matrix(self.kk)
        kk = scale**2 * (kk + kk.T)
        vv = matrix(blocks * self.pattern[..., None, None])
        vk, vq = scale * matrix(blocks @ self.vk), matrix(blocks @ self.vq)
        kq = scale * matrix(self.kq)
        gram = torch.cat(
            [torch.cat([qq, kq.T, vq.T], 1), torch.cat([kq, kk, vk.T], 1), torch.cat([vq, vk, vv], 1)]
        )
        identity = torch.eye(width, dtype=torch.float64, device=metric.device)
        local_v = diagonal(self.diagonal[:, None, None] * identity)
        return Moments(torch.cat([diagonal(self.local_q), diagonal(self.local_k), local_v], 1), gram)
