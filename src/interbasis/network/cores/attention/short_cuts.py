"""B · attention for few input features, or for samples that are made of few different tokens."""

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape
from interbasis.network.cores.core import FastAblation


class ShortCuts(FastAblation):
    """Attention of one shape, by short cuts."""

    shape: AttentionShape

    def written_from(self, f: Tensor, read: Tensor, outputs: slice, write: Tensor) -> Tensor | None:
        """B · z for u = A f, with A folded into both sides:

            score_st = σ f_sᵀ (A_qᵀA_k) f_t,    out_s = Σ_h Σ_t a^h_st (B^h A_v) f_t.

        f [n, T, r], read A [c_in, r], write B [rows, heads·h] -> [n, S, rows]; None where heads are
        narrower than that, or where scores depend on more than queries and keys (positions, sinks).
        """
        shape, features, rows = self.shape, f.shape[2], len(write)
        if any(part is not None for part in (shape.rotary, shape.bias, shape.sinks)):
            return None
        if max(features + 1, rows) > shape.width:
            return None
        read_q, read_k, read_v = shape.parts(read, 0)  # [H, h, r]
        seen = f[:, : outputs.stop] if shape.causal else f  # [n, T, r]
        form = shape.sigma * (read_q.mT @ read_k)  # [H, r, r]
        asked = f[:, outputs] @ form.permute(1, 0, 2).flatten(1)  # [n, S, H·r]
        scores = (asked.unflatten(2, (shape.heads, features)).flatten(1, 2) @ seen.mT).unflatten(
            1, (-1, shape.heads)
        )  # [n, S, H, T]
        if shape.cap is not None:
            scores = shape.cap * (scores / shape.cap).tanh()
        if shape.causal:
            query = torch.arange(outputs.start, outputs.stop, device=f.device)
            visible = shape.visible(query, torch.arange(seen.shape[1], device=f.device))  # [S, T]
            scores = scores.masked_fill(~visible[:, None], -torch.inf)
        pattern = scores.softmax(dim=-1).transpose(2, 3).flatten(2)  # [n, S, T·H]
        values = torch.einsum("hik,rhi->khr", read_v, write.unflatten(1, (shape.heads, shape.width)))
        return pattern @ (seen @ values.flatten(1)).unflatten(2, (shape.heads, rows)).flatten(1, 2)

    def written_from_table(self, rows: Tensor, index: Tensor, outputs: slice, write: Tensor) -> Tensor | None:
        """B · z for u = rows[index]: scores and written values are those of pairs of tokens, looked up.

        out_s = Σ_h Σ_t a^h_st (B^h v^h_t), with scores from [H, queries, U] and B v from [U, H, rows of B].
        rows [U, c_in], index [n, T] -> [n, S, rows of B]; None where it would be no cheaper, or where scores
        depend on more than the two tokens.
        """
        shape = self.shape
        if shape.rotary is not None or shape.window is not None or shape.has_odd_scores:
            return None
        asking, rank = index[:, outputs].unique(return_inverse=True)  # [n, S]
        seen = index[:, : outputs.stop] if shape.causal else index  # [n, T]
        if len(asking) * len(rows) > rank.numel() * seen.shape[1]:
            return None
        q, k, v = (part.transpose(0, 1) for part in shape.parts(rows, 1))  # [H, U, h]
        scores = (shape.sigma * (q[:, asking] @ k.mT))[:, rank[:, :, None], seen[:, None]]  # [H, n, S, T]
        if shape.causal:
            query = torch.arange(outputs.start, outputs.stop, device=rows.device)
            key = torch.arange(seen.shape[1], device=rows.device)
            scores = scores.masked_fill(~shape.visible(query, key), -torch.inf)
        pattern = scores.softmax(dim=-1).permute(1, 2, 3, 0).flatten(2)  # [n, S, T·H]
        values = torch.einsum("hui,rhi->uhr", v, write.unflatten(1, (shape.heads, shape.width)))
        return pattern @ values[seen].flatten(1, 2)
