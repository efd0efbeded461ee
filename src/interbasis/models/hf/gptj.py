"""GPT-J and CodeGen: neighbouring coordinates turn together; attention and MLP read one norm side by side."""

from typing import Any

import torch

from interbasis.base.errors import InterbasisError
from interbasis.models.hf.norms import norm
from interbasis.models.hf.parts import (
    Affine,
    Block,
    Branch,
    Model,
    TokenEmbedding,
    attention,
    in_halves,
    weights,
)
from interbasis.network.cores import Attention, AttentionShape, Elementwise, Rotary

BASE = 10000
PARTS = 4
"""CodeGen's one matrix lies in so many parts, each with queries, values and keys of some heads."""


def parts(model: Any) -> Model:
    body, config = model.transformer, model.config
    held = body.h[0].attn.embed_positions.dtype
    if held.itemsize < 4:
        raise InterbasisError(
            f"{type(model).__name__} holds its table of rotary positions in {held}, to which converting the "
            "model rounded it; load it with from_pretrained(…, dtype=…), which leaves the table in float32"
        )
    return Model(
        config.model_type,
        TokenEmbedding(weights(body.wte.weight), context=config.max_position_embeddings),
        [_block(block, config) for block in body.h],
        norm(body.ln_f),
        Affine.of(model.lm_head),
    )


def _block(block: Any, config: Any) -> Block:
    module = block.attn
    core = Attention(AttentionShape(module.num_attention_heads, module.head_dim, rotary=_rotary(config)))
    if config.model_type == "codegen":
        joined = Affine.of(module.qkv_proj)
        rows = torch.arange(len(joined.weight)).view(PARTS, 3, -1).transpose(0, 1).flatten(1)
        query, value, key = (joined.rows(some) for some in rows)
    else:
        query, key, value = map(Affine.of, (module.q_proj, module.k_proj, module.v_proj))
    query, key, _ = in_halves(core, query, key)
    before = norm(block.ln_1)
    return Block(
        before,
        attention(core, query, key, value, Affine.of(module.out_proj)),
        before,
        Branch(Affine.of(block.mlp.fc_in), Elementwise(block.mlp.act), Affine.of(block.mlp.fc_out)),
        parallel=True,
    )


def _rotary(config: Any) -> Rotary:
    """The model holds sines and cosines; these are the frequencies that it makes them from."""
    width = config.rotary_dim or config.n_embd
    frequencies = 1.0 / BASE ** (torch.arange(0, width, 2, dtype=torch.int64) / width)
    return Rotary(tuple(frequencies.double().tolist()))
