"""Gemma, Gemma 2 and Gemma 3: RMS norms with gain 1 + w, scaled embeddings, GeGLU.

Gemma 2 caps scores and logits and has norms after its branches too; Gemma 3 has those norms, and norms of
every head's queries and keys.
"""

from typing import Any

from interbasis.base.errors import InterbasisError
from interbasis.models.hf.llama import grouped, mlp
from interbasis.models.hf.parts import (
    GENERAL,
    Affine,
    Block,
    HeadNorms,
    Model,
    Norm,
    TokenEmbedding,
    weights,
)
from interbasis.models.hf.positions import context, rotary
from interbasis.network.cores import Attention, AttentionShape


def parts(model: Any) -> Model:
    body, config = model.model, model.config
    if getattr(config, "use_bidirectional_attention", False):
        raise InterbasisError(
            f"a {type(model).__name__} with config.use_bidirectional_attention is not supported; {GENERAL}"
        )
    embedding = weights(body.embed_tokens.weight)
    scale = getattr(body.embed_tokens, "embed_scale", config.hidden_size**0.5)
    return Model(
        config.model_type,
        TokenEmbedding(embedding * scale, context=context(body.rotary_emb)),
        [_block(layer, config, body.rotary_emb) for layer in body.layers],
        _norm(body.norm),
        Affine.of(model.lm_head),
        getattr(config, "final_logit_softcapping", None),
    )


def _block(layer: Any, config: Any, positions: Any) -> Block:
    module = layer.self_attn
    core = Attention(
        AttentionShape(
            config.num_attention_heads,
            module.head_dim,
            scale=module.scaling,
            window=getattr(module, "sliding_window", None),
            cap=module.attn_logit_softcapping if config.model_type == "gemma2" else None,
            rotary=rotary(positions, getattr(module, "layer_type", None)),
        )
    )
    norms = None
    if hasattr(module, "q_norm"):
        query, key = _norm(module.q_norm), _norm(module.k_norm)
        norms = HeadNorms(
            query.repeated(config.num_attention_heads), key.repeated(config.num_key_value_heads)
        )
    branches = grouped(module, core, norms), mlp(layer.mlp)
    before, after = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
    if config.model_type == "gemma":
        return Block(before, branches[0], after, branches[1])
    return Block(
        before,
        branches[0],
        _norm(layer.pre_feedforward_layernorm),
        branches[1],
        after_attention=after,
        after_mlp=_norm(layer.post_feedforward_layernorm),
    )


def _norm(module: Any) -> Norm:
    return Norm.rms(1 + weights(module.weight), module.eps)
