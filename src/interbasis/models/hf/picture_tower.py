"""Vision towers of Qwen2-VL's kind, which take patches of all pictures in a row, as modules of pictures."""

from typing import Any

import torch
from torch import Tensor, nn


class PictureTower(nn.Module):
    """Tower of pictures [n, channels, height, width], all of one size, to hidden states [n, patches, width].

    Patches lie in the tower's own order, those that it merges later side by side. Queries and keys are turned
    by the row and the column of their patch. `interbasis.from_torch` takes it with pictures for an example.

    Args:
        tower: `model.visual` of a Qwen2-VL.
    """

    def __init__(self, tower: nn.Module):
        super().__init__()
        self.tower: Any = tower

    def forward(self, pictures: Tensor) -> Tensor:
        tower, patch = self.tower, self.tower.patch_embed
        merged, side = tower.spatial_merge_size, patch.patch_size
        height, width = (size // side for size in pictures.shape[2:])
        x = pictures.unflatten(3, (width // merged, merged, side))
        x = x.unflatten(2, (height // merged, merged, side))
        x = x.permute(0, 2, 5, 3, 6, 1, 4, 7).flatten(1, 4)  # [n, patches, channels, side, side]
        x = x[:, :, :, None].expand(-1, -1, -1, patch.temporal_patch_size, -1, -1)  # all frames alike
        x = nn.functional.linear(x.flatten(2), patch.proj.weight.flatten(1))
        cos, sin = self._turns(height, width, x)
        for block in tower.blocks:
            x = x + self._attention(block.attn, block.norm1(x), cos, sin)
            x = x + block.mlp(block.norm2(x))
        return x

    def _turns(self, height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:  # [patches, head] each
        """Cosines and sines of the angles by which patches are turned, rows first."""
        merged = self.tower.spatial_merge_size
        places = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), dim=-1)
        blocks = places.unflatten(1, (-1, merged)).unflatten(0, (-1, merged)).permute(0, 2, 1, 3, 4)
        cos, sin = self.tower.rotary_pos_emb(like, blocks.flatten(0, 3))
        return cos.to(like), sin.to(like)

    def _attention(self, attention: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        parts = attention.qkv(x).unflatten(2, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)  # [n, heads, patches, head]
        exchanged = (torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], dim=-1) for x in (query, key))
        query, key = (x * cos + y * sin for x, y in zip((query, key), exchanged, strict=True))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=attention.scaling)
        return attention.proj(mixed.transpose(1, 2).flatten(2))
