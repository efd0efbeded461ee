"""Falcon: rotary positions, one matrix for queries, keys and values, most often side by side with the MLP."""

from typing import Any

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.models.hf.norms import norm
from interbasis.models.hf.parts import (
    GENERAL,
    Affine,
    Block,
    Branch,
    Model,
    TokenEmbedding,
    attention,
    weights,
)
from interbasis.models.hf.positions import context, rotary
from interbasis.network.cores import Attention, AttentionShape, Elementwise


def parts(model: Any) -> Model:
    body, config = model.transformer, model.config
    if config.alibi:
        raise InterbasisError(
            f"a {type(model).__name__} with config.alibi, a bias of attention scores by position, is not "
            f"supported; {GENERAL}"
        )
    return Model(
        "falcon",
        TokenEmbedding(weights(body.word_embeddings.weight), context=context(body.rotary_emb)),
        [_block(block, config, body.rotary_emb) for block in body.h],
        norm(body.ln_f),
        Affine.of(model.lm_head),
    )


def _block(block: Any, config: Any, positions: Any) -> Block:
    module = block.self_attention
    core = Attention(AttentionShape(module.num_heads, module.head_dim, rotary=rotary(positions)))
    joined = Affine.of(module.query_key_value)
    query, key, value = (joined.rows(some) for some in _rows(module, len(joined.weight)))
    branches = (
        attention(core, query, key, value, Affine.of(module.dense)),
        Branch(
            Affine.of(block.mlp.dense_h_to_4h),
            Elementwise(block.mlp.act),
            Affine.of(block.mlp.dense_4h_to_h),
        ),
    )
    if hasattr(block, "ln_attn"):
        return Block(norm(block.ln_attn), branches[0], norm(block.ln_mlp), branches[1], parallel=True)
    before = norm(block.input_layernorm)
    if config.parallel_attn:
        return Block(before, branches[0], before, branches[1], parallel=True)
    return Block(before, branches[0], norm(block.post_attention_layernorm), branches[1])


def _rows(module: Any, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of heads, each with its queries, one key and one value; multi-query attention is one group."""
    groups = module.num_kv_heads
    if not module.new_decoder_architecture and not module.multi_query:
        groups = module.num_heads
    rows = torch.arange(count).view(groups, -1, module.head_dim)
    return rows[:, :-2].flatten(), rows[:, -2].flatten(), rows[:, -1].flatten()
