"""Attributions through attention, token by token or summed with signs over groups of queries."""

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import Heads


def by_query(x: Heads, f: Tensor, read: Tensor) -> Tensor:
    """Σ_t N_st A_j f_jt for every query; f [n, T', r], read [3·H·h, r] -> [H·h, n·S, r].

    = (W_V c_j)(a f_j)_s + σ Σ_t b_st (v_t − z_s) f_jt (q̃_sᵀR_tW_K c_j) + Cov_s W_Q c_j f_js.
    """
    shape = x.shape
    read_q, read_k, read_v = read.unflatten(0, (3, shape.heads, shape.width))  # [H, h, r]
    a, b = x.pattern()
    z = a @ x.v
    _, n, outputs, width = z.shape
    own = f.gather(1, x.positions[..., None].expand(-1, -1, f.shape[2]))  # f_js [n, S, r]
    seen_f = f[:, x.first : x.first + x.k.shape[2]]  # f_jt [n, T, r]
    result = f.new_empty(shape.heads, width, n, outputs, f.shape[2])
    for h in range(shape.heads):
        weighted = b[h, :, :, None, :] * (x.v[h].mT[:, None] - z[h, ..., None])  # b_st (v_t − z_s)_i
        flat = weighted.flatten(1, 2)  # [n, S·h, T]
        if shape.rotary is None:
            pulled = shape.sigma * (x.q[h] @ read_k[h])  # σ q_sᵀW_K c_j, [n, S, r]
            moved = (flat @ seen_f).unflatten(1, (outputs, width)) * pulled[..., None, :]
        else:
            columns = read_k[h].T.expand(len(x.keys), -1, -1)
            turned = shape.rotary.turn(columns, x.keys[:, None])  # R_tW_K c_j, [T, r, h]
            pushed = turned.permute(2, 0, 1) * seen_f[:, None]  # [n, h, T, r]
            # Σ_e q̃_se Σ_t b_st (v_t − z_s)_i (R_tW_K c_j)_e f_jt
            by_coordinate = (flat[:, None] @ pushed).unflatten(2, (outputs, width))  # [n, e, S, i, r]
            moved = shape.sigma * torch.einsum("nesir,nse->nsir", by_coordinate, x.turned_q[h])
        cov = (flat @ x.k[h]).unflatten(1, (outputs, width))  # [n, S, h, h]
        if shape.rotary is not None:
            cov = shape.rotary.turn(cov, x.positions[..., None], back=True)
        total = moved + shape.sigma * (cov @ read_q[h]) * own[:, :, None, :]
        total += read_v[h] * (a[h] @ seen_f)[..., None, :]
        result[h] = total.permute(2, 0, 1, 3)
    return result.flatten(0, 1).flatten(1, 2)


def signed(x: Heads, f: Tensor, read: Tensor, signs: Tensor) -> Tensor:
    """The same summed over the queries with signs [n, S, R]: -> [H·h, n, R, r], 2·T·r per query and head.

    The sum over queries goes inside. With p_sj = σ q_sᵀW_K c_j and k_tj = σ k_tᵀW_Q c_j,

        Σ_s φ_s … = W_V c_j Σ_t (aᵀφ)_t f_jt + Σ_t v_t [ f_jt (bᵀφp)_tj + k_tj (bᵀφf)_tj ]
                    − Σ_s z_s φ_s [ p_sj (b f)_sj + f_js (b k)_sj ],

    and no [queries, h, r] is ever made. Without rotary positions.
    """
    shape = x.shape
    read_q, read_k, read_v = read.unflatten(0, (3, shape.heads, shape.width))  # [H, h, r]
    read_q, read_k = shape.sigma * read_q, shape.sigma * read_k
    a, b = x.pattern()
    z = a @ x.v
    own = f.gather(1, x.positions[..., None].expand(-1, -1, f.shape[2]))  # [n, S, r]
    seen_f = f[:, x.first : x.first + x.k.shape[2]]  # [n, T, r]
    sources = signs.shape[2]
    result = f.new_empty(shape.heads, len(f), sources, shape.width, f.shape[2])
    for h in range(shape.heads):
        keyed, pulled = x.k[h] @ read_q[h], x.q[h] @ read_k[h]  # [n, T, r], [n, S, r]
        inside = pulled * (b[h] @ seen_f) + own * ((b[h] @ x.k[h]) @ read_q[h])  # [n, S, r]
        for r in range(sources):
            sign = signs[:, :, r : r + 1]  # [n, S, 1]
            by_key = seen_f * ((b[h].mT @ (sign * x.q[h])) @ read_k[h])
            by_key.addcmul_(keyed, b[h].mT @ (sign * own))
            total = x.v[h].mT @ by_key - (sign * z[h]).mT @ inside  # [n, h, r]
            result[h, :, r] = total + read_v[h] * ((a[h].mT @ sign).mT @ seen_f)
    return result.permute(0, 3, 1, 2, 4).flatten(0, 1)


def signed_by_query(x: Heads, f: Tensor, read: Tensor, signs: Tensor) -> Tensor:
    """The same for any kind of attention, at the price of `by_query`; one sample, signs [1, S, R]."""
    return torch.einsum("csr,sg->cgr", by_query(x, f, read), signs[0])[:, None]
