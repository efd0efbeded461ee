"""GPT-2 and GPT-BigCode: learned positions, layer norms, one matrix for queries, keys and values."""

from typing import Any

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.models.hf.parts import (
    GENERAL,
    Affine,
    Block,
    Branch,
    Model,
    Norm,
    TokenEmbedding,
    attention,
    weights,
)
from interbasis.network.cores import Attention, AttentionShape, Elementwise


def parts(model: Any) -> Model:
    body, config = model.transformer, model.config
    if config.add_cross_attention:
        raise InterbasisError(
            f"GPT-2 with cross-attention (GPT2Attention.crossattention) is not supported; {GENERAL}"
        )
    return Model(
        config.model_type,
        TokenEmbedding(weights(body.wte.weight), weights(body.wpe.weight)),
        [_block(block, config, k) for k, block in enumerate(body.h)],
        Norm.layer(body.ln_f),
        Affine.of(model.lm_head),
    )


def _block(block: Any, config: Any, k: int) -> Block:
    heads, width = config.n_head, config.n_embd // config.n_head
    scale = width**-0.5 if config.scale_attn_weights else 1.0
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        scale /= k + 1
    joined = Affine.of(block.attn.c_attn)
    query, key, value = (joined.rows(some) for some in _rows(len(joined.weight), width, config))
    core = Attention(AttentionShape(heads, width, scale=scale))
    mlp = Branch(Affine.of(block.mlp.c_fc), Elementwise(block.mlp.act), Affine.of(block.mlp.c_proj))
    out = Affine.of(block.attn.c_proj)
    return Block(Norm.layer(block.ln_1), attention(core, query, key, value, out), Norm.layer(block.ln_2), mlp)


def _rows(count: int, width: int, config: Any) -> tuple[Tensor, ...]:
    """Of queries, keys and values: one after the other, all heads with one key, or head by head."""
    rows = torch.arange(count)
    if config.model_type == "gpt2":
        return rows.chunk(3)
    if config.multi_query:
        return rows.split([count - 2 * width, width, width])
    return rows.view(-1, 3, width).transpose(0, 1).flatten(1).unbind()
