"""Gemma and Gemma 2: RMS norms with gain 1 + w, scaled embeddings, GeGLU; Gemma 2 caps scores and logits and
has norms after its branches too."""

from typing import Any

from interbasis.cores import Attention
from interbasis.models.hf.llama import gated, grouped
from interbasis.models.hf.parts import Affine, Block, Model, Norm, TokenEmbedding, weights
from interbasis.models.hf.positions import rotary


def parts(model: Any) -> Model:
    body, config = model.model, model.config
    embedding = weights(body.embed_tokens.weight)
    scale = getattr(body.embed_tokens, "embed_scale", config.hidden_size**0.5)
    return Model(
        config.model_type,
        TokenEmbedding(embedding * scale),
        [_block(layer, config, body.rotary_emb) for layer in body.layers],
        _norm(body.norm),
        Affine.of(model.lm_head),
        getattr(config, "final_logit_softcapping", None),
    )


def _block(layer: Any, config: Any, positions: Any) -> Block:
    core = Attention(
        config.num_attention_heads,
        layer.self_attn.head_dim,
        scale=layer.self_attn.scaling,
        window=getattr(layer.self_attn, "sliding_window", None),
        cap=getattr(layer.self_attn, "attn_logit_softcapping", None),
        rotary=rotary(positions),
    )
    branches = grouped(layer.self_attn, core), gated(layer.mlp)
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
