"""Attention on few input features: scores and written values straight from them, no head in between."""

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import Shape


def written(shape: Shape, f: Tensor, read: Tensor, at: slice, write: Tensor) -> Tensor | None:
    """B · z for u = A f, with A folded into both sides:

        score_st = σ f_sᵀ (A_qᵀA_k) f_t,    out_s = Σ_h Σ_t a^h_st (B^h A_v) f_t.

    f [n, T, r], read A [3·heads·h, r], write B [rows, heads·h] -> [n, S, rows]; None where heads are
    narrower than that, or where rotary positions stand between queries and keys.
    """
    features, rows = f.shape[2], len(write)
    if shape.rotary is not None or features >= shape.width or rows > shape.width:
        return None
    read_q, read_k, read_v = read.unflatten(0, (3, shape.heads, shape.width))  # [H, h, r]
    seen = f[:, : at.stop] if shape.causal else f  # [n, T, r]
    form = shape.scale * (read_q.mT @ read_k)  # [H, r, r]
    asked = f[:, at] @ form.permute(1, 0, 2).flatten(1)  # [n, S, H·r]
    scores = (asked.unflatten(2, (shape.heads, features)).flatten(1, 2) @ seen.mT).unflatten(
        1, (-1, shape.heads)
    )  # [n, S, H, T]
    if shape.cap is not None:
        scores = shape.cap * (scores / shape.cap).tanh()
    if shape.causal:
        query = torch.arange(at.start, at.stop, device=f.device)
        distance = query[:, None] - torch.arange(seen.shape[1], device=f.device)  # [S, T]
        hidden = distance < 0 if shape.window is None else (distance < 0) | (distance >= shape.window)
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
    pattern = scores.softmax(dim=-1).transpose(2, 3).flatten(2)  # [n, S, T·H]
    values = torch.einsum("hik,rhi->khr", read_v, write.unflatten(1, (shape.heads, shape.width)))
    return pattern @ (seen @ values.flatten(1)).unflatten(2, (shape.heads, rows)).flatten(1, 2)
