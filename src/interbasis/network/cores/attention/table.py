"""Attention over samples that are made of few different tokens."""

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape


def written(
    shape: AttentionShape, rows: Tensor, index: Tensor, outputs: slice, write: Tensor
) -> Tensor | None:
    """B · z for u = rows[index]: scores and written values are those of pairs of tokens, and are looked up.

    out_s = Σ_h Σ_t a^h_st (B^h v^h_t), with scores from [H, queries, U] and B v from [U, H, rows of B].
    rows [U, c_in], index [n, T] -> [n, S, rows of B]; None where it would be no cheaper, or where scores
    depend on more than the two tokens.
    """
    if shape.rotary is not None or shape.window is not None or shape.cap is not None:
        return None
    asking, which = index[:, outputs].unique(return_inverse=True)  # [n, S]
    seen = index[:, : outputs.stop] if shape.causal else index  # [n, T]
    if len(asking) * len(rows) > which.numel() * seen.shape[1]:
        return None
    q, k, v = (part.transpose(0, 1) for part in shape.parts(rows, 1))  # [H, U, h]
    scores = (shape.sigma * (q[:, asking] @ k.mT))[:, which[:, :, None], seen[:, None]]  # [H, n, S, T]
    if shape.causal:
        query = torch.arange(outputs.start, outputs.stop, device=rows.device)
        key = torch.arange(seen.shape[1], device=rows.device)
        scores = scores.masked_fill(~shape.visible(query, key), -torch.inf)
    pattern = scores.softmax(dim=-1).permute(1, 2, 3, 0).flatten(2)  # [n, S, T·H]
    values = torch.einsum("hui,rhi->uhr", v, write.unflatten(1, (shape.heads, shape.width)))
    return pattern @ values[seen].flatten(1, 2)
