"""GPT-NeoX and Pythia: partial rotary positions, attention and MLP side by side on the same stream."""

from typing import Any

import torch

from interbasis.models.hf.parts import Affine, Block, Branch, Model, Norm, TokenEmbedding, attention, weights
from interbasis.models.hf.positions import context, rotary
from interbasis.network.cores import Attention, AttentionShape, Elementwise


def parts(model: Any) -> Model:
    body, config = model.gpt_neox, model.config
    return Model(
        "gpt_neox",
        TokenEmbedding(weights(body.embed_in.weight), context=context(body.rotary_emb)),
        [_block(block, config, body.rotary_emb) for block in body.layers],
        Norm.layer(body.final_layer_norm),
        Affine.of(model.lm_head if hasattr(model, "lm_head") else model.embed_out),
    )


def _block(block: Any, config: Any, positions: Any) -> Block:
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    core = Attention(AttentionShape(heads, width, rotary=rotary(positions)))
    joined = Affine.of(block.attention.query_key_value)  # rows by head, then q, k, v
    rows = torch.arange(len(joined.weight)).view(heads, 3, width).transpose(0, 1).flatten(1)
    query, key, value = (joined.rows(some) for some in rows)
    mlp = Branch(
        Affine.of(block.mlp.dense_h_to_4h), Elementwise(block.mlp.act), Affine.of(block.mlp.dense_4h_to_h)
    )
    return Block(
        Norm.layer(block.input_layernorm),
        attention(core, query, key, value, Affine.of(block.attention.dense)),
        Norm.layer(block.post_attention_layernorm),
        mlp,
        parallel=block.use_parallel_residual,
    )
