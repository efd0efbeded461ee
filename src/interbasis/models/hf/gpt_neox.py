"""Models with rotary positions, most with attention and MLP side by side: GPT-NeoX, Pythia, GPT-J, Falcon."""

from typing import Any

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.models.embedding import TokenEmbedding
from interbasis.models.hf.parts import (
    GENERAL,
    Affine,
    ModelParts,
    Norm,
    TransformerBlock,
    attention,
    context,
    in_halves,
    mlp,
    rotary,
    weights,
)
from interbasis.network.cores import Attention, AttentionShape, Rotary

GPTJ_BASE = 10000
CODEGEN_PARTS = 4
"""CodeGen's one matrix lies in so many parts, each with queries, values and keys of some heads."""


def gpt_neox(model: Any) -> ModelParts:
    """GPT-NeoX and Pythia: only a part of every head is turned."""
    body, config = model.gpt_neox, model.config
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads

    def block(layer: Any) -> TransformerBlock:
        core = Attention(AttentionShape(heads, width, rotary=rotary(body.rotary_emb)))
        joined = Affine.from_module(layer.attention.query_key_value)  # rows by head, then q, k, v
        rows = torch.arange(len(joined.weight)).view(heads, 3, width).transpose(0, 1).flatten(1)
        query, key, value = map(joined.rows, rows)
        return TransformerBlock(
            Norm.from_layer_norm(layer.input_layernorm),
            attention(core, query, key, value, Affine.from_module(layer.attention.dense)),
            Norm.from_layer_norm(layer.post_attention_layernorm),
            mlp(layer.mlp.dense_h_to_4h, layer.mlp.act, layer.mlp.dense_4h_to_h),
            parallel=layer.use_parallel_residual,
        )

    return ModelParts(
        "gpt_neox",
        TokenEmbedding(weights(body.embed_in.weight), context=context(body.rotary_emb)),
        [block(layer) for layer in body.layers],
        Norm.from_layer_norm(body.final_layer_norm),
        Affine.from_module(model.lm_head if hasattr(model, "lm_head") else model.embed_out),
    )


def gptj(model: Any) -> ModelParts:
    """GPT-J and CodeGen: neighbouring coordinates turn together, both branches read one norm."""
    body, config = model.transformer, model.config
    dtype = body.h[0].attn.embed_positions.dtype
    if dtype.itemsize < 4:
        raise InterbasisError(
            f"{type(model).__name__} holds its table of rotary positions in {dtype}, to which converting the "
            "model rounded it; load it with from_pretrained(…, dtype=…), which leaves the table in float32"
        )
    # the model holds sines and cosines; these are the frequencies that it makes them from
    turned = config.rotary_dim or config.n_embd
    frequencies = 1.0 / GPTJ_BASE ** (torch.arange(0, turned, 2, dtype=torch.int64) / turned)
    positions = Rotary(tuple(frequencies.double().tolist()))

    def block(layer: Any) -> TransformerBlock:
        module = layer.attn
        core = Attention(AttentionShape(module.num_attention_heads, module.head_dim, rotary=positions))
        if config.model_type == "codegen":
            joined = Affine.from_module(module.qkv_proj)
            rows = torch.arange(len(joined.weight)).view(CODEGEN_PARTS, 3, -1).transpose(0, 1).flatten(1)
            query, value, key = map(joined.rows, rows)
        else:
            query, key, value = map(Affine.from_module, (module.q_proj, module.k_proj, module.v_proj))
        query, key, _ = in_halves(core, query, key)
        norm = Norm.from_module(layer.ln_1)
        branch = attention(core, query, key, value, Affine.from_module(module.out_proj))
        second = mlp(layer.mlp.fc_in, layer.mlp.act, layer.mlp.fc_out)
        return TransformerBlock(norm, branch, norm, second, parallel=True)

    return ModelParts(
        config.model_type,
        TokenEmbedding(weights(body.wte.weight), context=config.max_position_embeddings),
        [block(layer) for layer in body.h],
        Norm.from_module(body.ln_f),
        Affine.from_module(model.lm_head),
    )


def falcon(model: Any) -> ModelParts:
    """Falcon: one matrix for queries, keys and values of groups of heads."""
    body, config = model.transformer, model.config
    if config.alibi:
        raise InterbasisError(
            f"a {type(model).__name__} with config.alibi, a bias of attention scores by position, is not "
            f"supported; {GENERAL}"
        )

    def block(layer: Any) -> TransformerBlock:
        module = layer.self_attention
        core = Attention(AttentionShape(module.num_heads, module.head_dim, rotary=rotary(body.rotary_emb)))
        joined = Affine.from_module(module.query_key_value)
        query, key, value = map(joined.rows, _falcon_rows(module, len(joined.weight)))
        branch = attention(core, query, key, value, Affine.from_module(module.dense))
        second = mlp(layer.mlp.dense_h_to_4h, layer.mlp.act, layer.mlp.dense_4h_to_h)
        if hasattr(layer, "ln_attn"):
            norms = Norm.from_module(layer.ln_attn), Norm.from_module(layer.ln_mlp)
            return TransformerBlock(norms[0], branch, norms[1], second, parallel=True)
        before = Norm.from_module(layer.input_layernorm)
        if config.parallel_attn:
            return TransformerBlock(before, branch, before, second, parallel=True)
        return TransformerBlock(before, branch, Norm.from_module(layer.post_attention_layernorm), second)

    return ModelParts(
        "falcon",
        TokenEmbedding(weights(body.word_embeddings.weight), context=context(body.rotary_emb)),
        [block(layer) for layer in body.h],
        Norm.from_module(body.ln_f),
        Affine.from_module(model.lm_head),
    )


def _falcon_rows(module: Any, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of heads, each with its queries, one key and one value; multi-query attention is one group."""
    groups = module.num_kv_heads
    if not module.new_decoder_architecture and not module.multi_query:
        groups = module.num_heads
    rows = torch.arange(count).view(groups, -1, module.head_dim)
    return rows[:, :-2].flatten(), rows[:, -2].flatten(), rows[:, -1].flatten()
