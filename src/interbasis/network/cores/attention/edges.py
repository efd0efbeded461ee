"""Attributions through attention, token by token or summed with signs over groups of queries."""

from functools import cached_property

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import CausalBlocks, FeatureColumns, Heads
from interbasis.network.cores.attention.rotary_edges import moved_by_keys, turned_queries

ALIGNED = 16
"""Features are filled up to multiples of this with zeros: rows of products then begin on a cache line, and
large ones take up to a third less time."""


def by_query(x: Heads, f: Tensor, read: Tensor) -> Tensor:
    """Σ_t N_st A_j f_jt for every query; f [n, T', r], read A [c_in, r] -> [H·h, n·S, r].

    = (W_V c_j)(a f_j)_s + σ Σ_t b_st (v_t − z_s) f_jt (q̃_sᵀR_tW_K c_j) + Cov_s W_Q c_j f_js.
    """
    heads, width = x.shape.heads, x.shape.width
    result = f.new_empty(heads, width, *x.positions.shape, f.shape[2])
    for h in range(heads):
        result[h] = _by_query(x.head(h), f, _head_reads(read, x, h)).permute(2, 0, 1, 3)
    return result.flatten(0, 1).flatten(1, 2)


def _by_query(x: Heads, f: Tensor, read: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """`by_query` of one head, read W_Q c_j, W_K c_j, W_V c_j [h, r] each -> [n, S, h, r]."""
    shape, (read_q, read_k, read_v) = x.shape, read
    a, b = (pattern[0] for pattern in x.pattern())
    z = a @ x.v[0]
    at_queries = f.gather(1, x.positions[..., None].expand(-1, -1, f.shape[2]))  # f_js [n, S, r]
    at_keys = f[:, x.first : x.first + x.k.shape[2]]  # f_jt [n, T, r]
    weighted = b[:, :, None, :] * (x.v[0].mT[:, None] - z[..., None])  # b_st (v_t − z_s)_i [n, S, h, T]
    flat = weighted.flatten(1, 2)  # [n, S·h, T]
    cov = (flat @ x.k[0]).view(*z.shape, shape.width)  # [n, S, h, h]
    if shape.rotary is None:
        pulled = shape.sigma * (x.q[0] @ read_k)  # σ q_sᵀW_K c_j, [n, S, r]
        moved = (flat @ at_keys).view(*z.shape, -1) * pulled[..., None, :]
    else:
        moved = moved_by_keys(x, weighted, at_keys, shape.sigma * read_k)
        cov = shape.rotary.turn(cov, x.positions[..., None], back=True)
    moved.addcmul_(cov @ read_q, at_queries[:, :, None], value=shape.sigma)
    return moved.addcmul_(read_v, (a @ at_keys)[:, :, None])


def signed(x: Heads, f: Tensor, read: Tensor, signs: Tensor) -> Tensor:
    """`by_query` summed over the queries of one sample with signs [S, R]; f [T', r] -> [H·h, R, r].

    The sum over queries goes inside. With p_sj = σ q_sᵀW_K c_j and k_tj = σ k_tᵀW_Q c_j,

        Σ_s φ_s … = W_V c_j Σ_t (aᵀφ)_t f_jt + Σ_t v_t [ f_jt (bᵀφp)_tj + k_tj (bᵀφf)_tj ]
                    − Σ_s z_s φ_s [ p_sj (b f)_sj + f_js (b k)_sj ],

    2·T·r per query and head, and no [queries, h, r] is ever made. `rotary_edges.py` has the sums with rotary
    positions.
    """
    shape, features = x.shape, f.shape[1]
    f, read = (torch.nn.functional.pad(part, (0, -features % ALIGNED)) for part in (f, read))
    at_queries, at_keys = f[x.positions[0]], f[x.first : x.first + x.k.shape[2]]  # [S, r], [T, r]
    queries = _UnturnedQueries if shape.rotary is None else turned_queries(x)
    result = f.new_zeros(shape.heads, signs.shape[1], shape.width, f.shape[1])
    for h in range(shape.heads):
        head = x.head(h)
        read_q, read_k, read_v = _head_reads(read, x, h)
        a, b = (pattern[0, 0] for pattern in head.pattern())  # [S, T]
        z = a @ head.v[0, 0]
        columns = FeatureColumns(at_queries, at_keys, read_q, read_k)
        sums = queries(head, shape.sigma * b, z, columns)
        for r, total in enumerate(result[h]):  # [h, r]
            total.addcmul_(read_v, (signs[:, r] @ a)[None] @ at_keys)
            sums.add(total, signs[:, r])
    return result.transpose(1, 2).flatten(0, 1)[..., :features]


class _UnturnedQueries:
    """Signed sums over the queries of one head and one sample, without rotary positions."""

    def __init__(self, x: Heads, weights: Tensor, z: Tensor, columns: FeatureColumns):
        """Take weights w_st = σ b_st [S, T] and z [S, h]."""
        self.z, self.columns = z, columns
        self.q, self.k, self.v = x.q[0, 0], x.k[0, 0], x.v[0, 0]
        self.blocks = CausalBlocks(x, weights)

    def add(self, result: Tensor, sign: Tensor) -> None:
        """Add the changes through queries and keys, with signs φ_s [S], to result [h, r]."""
        result += self.v.T @ self._by_key(sign) - (sign[:, None] * self.z).T @ self._by_query

    @cached_property
    def _by_query(self) -> Tensor:  # [S, r]
        """Factors of −z_s without signs, q_sᵀW_K c_j (w f)_sj + f_js (w k)_sᵀW_Q c_j."""
        columns = self.columns
        total = columns.at_queries * (self.blocks.over_keys(self.k) @ columns.read_q)
        return total.addcmul_(self.q @ columns.read_k, self.blocks.over_keys(columns.at_keys))

    def _by_key(self, sign: Tensor) -> Tensor:  # [S] -> [T, r]
        """Factors of v_t, k_tᵀW_Q c_j (wᵀφf)_tj + f_jt (wᵀφq)_tᵀW_K c_j."""
        columns = self.columns
        total = columns.at_keys * (self.blocks.over_queries(self.q, sign) @ columns.read_k)
        return total.addcmul_(self.k @ columns.read_q, self.blocks.over_queries(columns.at_queries, sign))


def _head_reads(read: Tensor, x: Heads, head: int) -> tuple[Tensor, Tensor, Tensor]:  # [h, r] each
    """W_Q c_j, W_K c_j and W_V c_j of one head."""
    q, k, v = x.shape.rows(head)
    return read[q], read[k], read[v]
