"""Llama, Mistral, Qwen2, Qwen3 and Phi-3: RMS norms, rotary positions, grouped keys and values, a gated MLP.

Qwen3 norms every head's queries and keys; Phi-3 holds several maps in one matrix.
"""

from typing import Any

import torch
from torch import Tensor

from interbasis.models.hf.parts import (
    Affine,
    Block,
    Branch,
    HeadNorms,
    Model,
    Norm,
    TokenEmbedding,
    attention,
    weights,
)
from interbasis.models.hf.positions import rotary
from interbasis.network.cores import Attention, AttentionShape, Gated


def parts(model: Any) -> Model:
    body = model.model
    return Model(
        model.config.model_type,
        TokenEmbedding(weights(body.embed_tokens.weight)),
        [_block(layer, model.config, body.rotary_emb) for layer in body.layers],
        _norm(body.norm),
        Affine.of(model.lm_head),
    )


def _block(layer: Any, config: Any, positions: Any) -> Block:
    core = Attention(
        AttentionShape(
            config.num_attention_heads,
            layer.self_attn.head_dim,
            scale=layer.self_attn.scaling,
            window=window(layer.self_attn, config),
            rotary=rotary(positions),
        )
    )
    return Block(
        _norm(layer.input_layernorm),
        grouped(layer.self_attn, core, head_norms(layer.self_attn)),
        _norm(layer.post_attention_layernorm),
        gated(layer.mlp),
    )


def window(module: Any, config: Any) -> int | None:
    """Mistral and Phi-3 name one window for all layers, the Qwens one per layer."""
    if config.model_type in ("mistral", "phi3"):
        return config.sliding_window
    return getattr(module, "sliding_window", None)


def grouped(module: Any, core: Attention, norms: HeadNorms | None = None) -> Branch:
    if hasattr(module, "qkv_proj"):
        joined = Affine.of(module.qkv_proj)
        queries = core.shape.heads * core.shape.width
        groups = (len(joined.weight) - queries) // 2
        query, key, value = (
            joined.rows(some) for some in torch.arange(len(joined.weight)).split([queries, groups, groups])
        )
    else:
        query, key, value = map(Affine.of, (module.q_proj, module.k_proj, module.v_proj))
    return attention(core, query, key, value, Affine.of(module.o_proj), norms=norms)


def head_norms(module: Any) -> HeadNorms | None:
    if not hasattr(module, "q_norm"):
        return None
    query, key = _norm(module.q_norm), _norm(module.k_norm)
    return HeadNorms(query.gain, key.gain, query.epsilon)


def gated(module: Any) -> Branch:
    if hasattr(module, "gate_up_proj"):
        read, activation = Affine.of(module.gate_up_proj), module.activation_fn
    else:
        read = Affine.stack(Affine.of(module.gate_proj), Affine.of(module.up_proj))
        activation = module.act_fn
    return Branch(read, Gated(activation), Affine.of(module.down_proj))


def _norm(module: Any) -> Norm:
    gain: Tensor = weights(module.weight)
    return Norm.rms(gain, module.variance_epsilon)
