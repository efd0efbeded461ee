"""Attributions through attention, token by token or summed with signs over groups of queries."""

from functools import cached_property

import torch
from torch import Tensor

from interbasis.network.cores.attention import turned_edges
from interbasis.network.cores.attention.causal_blocks import CausalBlocks, Columns
from interbasis.network.cores.attention.few_queries import FewQueries, are_few
from interbasis.network.cores.attention.function_sums import Sides, add_by_functions
from interbasis.network.cores.attention.heads import Heads
from interbasis.network.cores.attention.slow_turns import SlowTurns

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
        result[h] = _by_query(x.head(h), f, _of_head(read, x, h)).permute(2, 0, 1, 3)
    return result.flatten(0, 1).flatten(1, 2)


def _by_query(x: Heads, f: Tensor, read: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The same for one head, read W_Q c_j, W_K c_j, W_V c_j [h, r] each -> [n, S, h, r]."""
    shape, (read_q, read_k, read_v) = x.shape, read
    a, b = (pattern[0] for pattern in x.pattern())
    z = a @ x.v[0]
    own = f.gather(1, x.positions[..., None].expand(-1, -1, f.shape[2]))  # f_js [n, S, r]
    seen = f[:, x.first : x.first + x.k.shape[2]]  # f_jt [n, T, r]
    weighted = b[:, :, None, :] * (x.v[0].mT[:, None] - z[..., None])  # b_st (v_t − z_s)_i [n, S, h, T]
    flat = weighted.flatten(1, 2)  # [n, S·h, T]
    cov = (flat @ x.k[0]).view(*z.shape, shape.width)  # [n, S, h, h]
    if shape.rotary is None:
        pulled = shape.sigma * (x.q[0] @ read_k)  # σ q_sᵀW_K c_j, [n, S, r]
        moved = (flat @ seen).view(*z.shape, -1) * pulled[..., None, :]
    else:
        moved = turned_edges.moved_by_keys(x, weighted, seen, shape.sigma * read_k)
        cov = shape.rotary.turn(cov, x.positions[..., None], back=True)
    moved.addcmul_(cov @ read_q, own[:, :, None], value=shape.sigma)
    return moved.addcmul_(read_v, (a @ seen)[:, :, None])


def signed(x: Heads, f: Tensor, read: Tensor, signs: Tensor) -> Tensor:
    """The same summed over the queries of one sample with signs [S, R]; f [T', r] -> [H·h, R, r].

    The sum over queries goes inside. With p_sj = σ q_sᵀW_K c_j and k_tj = σ k_tᵀW_Q c_j,

        Σ_s φ_s … = W_V c_j Σ_t (aᵀφ)_t f_jt + Σ_t v_t [ f_jt (bᵀφp)_tj + k_tj (bᵀφf)_tj ]
                    − Σ_s z_s φ_s [ p_sj (b f)_sj + f_js (b k)_sj ],

    2·T·r per query and head, and no [queries, h, r] is ever made. With rotary positions the same holds for
    coordinates that are turned slowly, once per function of `slow_turns`: p_sj (b f)_sj becomes
    Σ_m σ q̃_sᵀD_mW_K c_j (b U_m f)_sj. What the other ones add is in `turned_edges.add_signed`; few queries
    have an order of their own (`few_queries`).
    """
    shape, features = x.shape, f.shape[1]
    f, read = (torch.nn.functional.pad(part, (0, -features % ALIGNED)) for part in (f, read))
    own, seen = f[x.positions[0]], f[x.first : x.first + x.k.shape[2]]  # [S, r], [T, r]
    few = are_few(x, f.shape[1])
    turns = SlowTurns.of_all(x) if few else SlowTurns.of(x, f.shape[1])
    result = f.new_zeros(shape.heads, signs.shape[1], shape.width, f.shape[1])
    for h in range(shape.heads):
        one = x.head(h)
        read_q, read_k, read_v = _of_head(read, x, h)
        a, b = (pattern[0, 0] for pattern in one.pattern())  # [S, T]
        z = a @ one.v[0, 0]
        columns = Columns(own, seen, read_q, read_k)
        sums = (FewQueries if few else _ManyQueries)(one, turns, shape.sigma * b, z, columns)
        for r, total in enumerate(result[h]):  # [h, r]
            total.addcmul_(read_v, (signs[:, r] @ a)[None] @ seen)
            sums.add(total, signs[:, r])
    return result.transpose(1, 2).flatten(0, 1)[..., :features]


class _ManyQueries:
    """The sums of one head and one sample over its queries."""

    def __init__(self, x: Heads, turns: SlowTurns, weights: Tensor, z: Tensor, columns: Columns):
        """For weights σ b_st [S, T] and z [S, h]."""
        self.x, self.turns, self.weights, self.z, self.columns = x, turns, weights, z, columns
        self.own, self.seen = columns.own, columns.seen
        self.blocks = CausalBlocks(x, weights)
        self.q, self.k = (part[0, 0][:, turns.slow] for part in (x.turned_q, x.k))
        self.read_q, self.read_k = columns.read_q[turns.slow], columns.read_k[turns.slow]

    def add(self, result: Tensor, sign: Tensor) -> None:
        """Add what queries and keys move, with signs φ_s [S], to result [h, r]."""
        if len(self.turns.slow):
            result += self.x.v[0, 0].T @ self.by_key(sign) - (sign[:, None] * self.z).T @ self.by_query
        if len(self.turns.fast):
            weights = sign[:, None] * self.weights
            turned_edges.add_signed(result, self.x, self.turns, weights, self.z, self.columns)

    @cached_property
    def by_query(self) -> Tensor:  # [S, r]
        """What stands beside −z_s for slow coordinates, without signs:

        Σ_m q̃_sᵀD_mW_K c_j (w U_m f)_sj + f_js (w k̃)_sᵀR_sW_Q c_j.
        """
        pushed = self.turns.turned_back(self.blocks.over_keys(self.k), self.x.positions[0])
        total = self.own * (pushed @ self.read_q)
        sides = Sides(self.q, self.seen, self.weights, self.x.keys_seen_by)
        add_by_functions(total, sides, self.turns.functions[self.x.keys], self.turns.turns, self.read_k)
        return total

    def by_key(self, sign: Tensor) -> Tensor:  # [S] -> [T, r]
        """What stands beside v_t: Σ_m k̃_tᵀD_mW_Q c_j (wᵀφ U_m f)_tj + f_jt (wᵀφ q̃)_tᵀR_tW_K c_j."""
        pulled = self.turns.turned_back(self.blocks.over_queries(self.q, sign), self.x.keys)
        total = self.seen * (pulled @ self.read_k)
        functions = self.turns.functions[self.x.positions[0]] * sign[:, None]
        sides = Sides(self.k, self.own, self.weights.T, self.x.queries_that_see)
        add_by_functions(total, sides, functions, self.turns.turns, self.read_q)
        return total


def _of_head(read: Tensor, x: Heads, head: int) -> tuple[Tensor, Tensor, Tensor]:  # [h, r] each
    """W_Q c_j, W_K c_j and W_V c_j of one head."""
    q, k, v = x.shape.rows(head)
    return read[q], read[k], read[v]
