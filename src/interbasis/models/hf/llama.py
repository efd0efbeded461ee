"""Llama, Mistral and Qwen2: RMS norms, rotary positions, grouped keys and values, a gated MLP."""

from typing import Any

from torch import Tensor

from interbasis.cores import Attention, Gated
from interbasis.models.hf.parts import Affine, Block, Branch, Model, Norm, TokenEmbedding, attention, weights
from interbasis.models.hf.positions import rotary


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
        config.num_attention_heads,
        layer.self_attn.head_dim,
        scale=layer.self_attn.scaling,
        window=window(layer.self_attn, config),
        rotary=rotary(positions),
    )
    return Block(
        _norm(layer.input_layernorm),
        grouped(layer.self_attn, core),
        _norm(layer.post_attention_layernorm),
        gated(layer.mlp),
    )


def window(module: Any, config: Any) -> int | None:
    """Mistral names one window for all layers, Qwen2 one per layer."""
    if config.model_type == "mistral":
        return config.sliding_window
    return getattr(module, "sliding_window", None)


def grouped(module: Any, core: Attention) -> Branch:
    projections = (module.q_proj, module.k_proj, module.v_proj, module.o_proj)
    return attention(core, *(Affine.of(projection) for projection in projections))


def gated(module: Any) -> Branch:
    read = Affine.stack(Affine.of(module.gate_proj), Affine.of(module.up_proj))
    return Branch(read, Gated(module.act_fn), Affine.of(module.down_proj))


def _norm(module: Any) -> Norm:
    gain: Tensor = weights(module.weight)
    return Norm.rms(gain, module.variance_epsilon)
