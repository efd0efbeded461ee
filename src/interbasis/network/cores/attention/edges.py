"""Attributions through attention, token by token or summed with signs over groups of queries."""

import torch
from torch import Tensor

from interbasis.network.cores.attention import turned_edges
from interbasis.network.cores.attention.heads import Heads


def by_query(x: Heads, f: Tensor, read: Tensor) -> Tensor:
    """Σ_t N_st A_j f_jt for every query; f [n, T', r], read [3·H·h, r] -> [H·h, n·S, r].

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

    2·T·r per query and head, and no [queries, h, r] is ever made. What turned coordinates of queries and keys
    add is in `turned_edges.add_signed`.
    """
    shape = x.shape
    rest = slice(shape.turned, shape.width)  # coordinates that are not turned
    own, seen = f[x.positions[0]], f[x.first : x.first + x.k.shape[2]]  # [S, r], [T, r]
    result = f.new_zeros(shape.heads, signs.shape[1], shape.width, f.shape[1])
    for h in range(shape.heads):
        one = x.head(h)
        read_q, read_k, read_v = _of_head(read, x, h)
        a, b = (pattern[0, 0] for pattern in one.pattern())  # [S, T]
        q, k, v = (part[0, 0] for part in (one.q, one.k, one.v))
        z = a @ v
        if shape.turned < shape.width:
            pull, push = shape.sigma * read_k[rest], shape.sigma * read_q[rest]
            keyed, pulled = k[:, rest] @ push, q[:, rest] @ pull  # [T, r], [S, r]
            inside = pulled * (b @ seen) + own * ((b @ k[:, rest]) @ push)  # [S, r]
        for r, total in enumerate(result[h]):  # [h, r]
            sign = signs[:, r : r + 1]
            total.addcmul_(read_v, (a.T @ sign).T @ seen)
            if shape.turned < shape.width:
                by_key = seen * ((b.T @ (sign * q[:, rest])) @ pull)
                by_key.addcmul_(keyed, b.T @ (sign * own))
                total += v.T @ by_key - (sign * z).T @ inside
            if shape.turned:
                signed_b = (shape.sigma * sign) * b
                turned_edges.add_signed(total, one, signed_b, z, (own, seen), (read_q, read_k))
    return result.transpose(1, 2).flatten(0, 1)


def signed_by_query(x: Heads, f: Tensor, read: Tensor, signs: Tensor) -> Tensor:
    """The same at the price of `by_query`, for few queries."""
    by_head = [
        torch.einsum("sir,sg->igr", _by_query(x.head(h), f[None], _of_head(read, x, h))[0], signs)
        for h in range(x.shape.heads)
    ]
    return torch.cat(by_head)


def _of_head(read: Tensor, x: Heads, head: int) -> tuple[Tensor, Tensor, Tensor]:  # [h, r] each
    """W_Q c_j, W_K c_j and W_V c_j of one head."""
    read_q, read_k, read_v = read.unflatten(0, (3, x.shape.heads, x.shape.width))[:, head]
    return read_q, read_k, read_v
