"""GPT-Neo: unscaled attention, every other layer through a local window."""

from typing import Any

from interbasis.models.hf.parts import Affine, Block, Branch, Model, Norm, TokenEmbedding, attention, weights
from interbasis.network.cores import Attention, AttentionShape, Elementwise


def parts(model: Any) -> Model:
    body, config = model.transformer, model.config
    return Model(
        "gpt_neo",
        TokenEmbedding(weights(body.wte.weight), weights(body.wpe.weight)),
        [_block(block, config) for block in body.h],
        Norm.layer(body.ln_f),
        Affine.of(model.lm_head),
    )


def _block(block: Any, config: Any) -> Block:
    inner = block.attn.attention
    window = config.window_size if block.attn.attention_type == "local" else None
    core = Attention(
        AttentionShape(config.num_heads, config.hidden_size // config.num_heads, scale=1.0, window=window)
    )
    read = (Affine.of(module) for module in (inner.q_proj, inner.k_proj, inner.v_proj, inner.out_proj))
    mlp = Branch(Affine.of(block.mlp.c_fc), Elementwise(block.mlp.act), Affine.of(block.mlp.c_proj))
    return Block(Norm.layer(block.ln_1), attention(core, *read), Norm.layer(block.ln_2), mlp)
