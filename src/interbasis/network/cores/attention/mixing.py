"""Attention forward, z = softmax(σ q kᵀ) v, without patterns being held."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from interbasis.network.cores.attention.heads import AttentionShape

QUERIES_PER_BLOCK = 64
"""Queries handled at once on a CPU: fewer skip more keys that none of them sees, and run slower."""
LANES = 16
"""Numbers of float32 in a vector register: with narrower heads torch's kernel takes half as long again."""


def mixed_values(shape: AttentionShape, u: Tensor, outputs: slice) -> Tensor:
    """Compute z at the output positions, [n, T, c_in] -> [n, S, heads·h], where no gradient is wanted.

    Scores depend on queries and keys alone: without caps, biases and sinks.
    """
    on_cpu = u.device.type == "cpu"
    if shape.causal:
        u = u[:, : outputs.stop]
    heads = u.unflatten(2, (-1, shape.width))
    if on_cpu and u.dtype == torch.float32 and shape.width < LANES:
        heads = pad(heads, (0, LANES - shape.width))
    q, k, v = heads.transpose(1, 2).split((shape.heads, shape.groups, shape.groups), 1)  # [n, heads, T, h]
    q, positions = q[:, :, outputs], torch.arange(u.shape[1], device=u.device)
    if shape.rotary is not None:
        q, k = shape.rotary.turn(q, positions[outputs]), shape.rotary.turn(k, positions)
    k, v = shape.for_all_heads(k, 1), shape.for_all_heads(v, 1)
    size = QUERIES_PER_BLOCK if on_cpu and shape.causal else q.shape[2]
    blocks = []
    for start in range(outputs.start, outputs.stop, size):
        queries = slice(start, min(start + size, outputs.stop))
        keys = shape.keys_seen(queries, k.shape[2])
        is_square = shape.causal and queries == keys and shape.window is None
        mask = None
        if shape.causal and not is_square and queries.stop - queries.start > 1:
            mask = shape.visible(positions[queries], positions[keys])
        asked = q[:, :, queries.start - outputs.start : queries.stop - outputs.start]
        z = scaled_dot_product_attention(
            asked, k[:, :, keys], v[:, :, keys], attn_mask=mask, is_causal=is_square, scale=shape.sigma
        )
        blocks.append(z[..., : shape.width].transpose(1, 2))
    return (blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)).flatten(2)
