"""OPT: learned positions counted from 2, ReLU."""

from typing import Any

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
    body, config = model.model.decoder, model.config
    if not config.do_layer_norm_before or body.project_in is not None or body.final_layer_norm is None:
        raise InterbasisError(
            "an OPT with layer norms after its branches, or with OPTDecoder.project_in (as in opt-350m), is "
            f"not supported; {GENERAL}"
        )
    positions = body.embed_positions
    return Model(
        "opt",
        TokenEmbedding(weights(body.embed_tokens.weight), weights(positions.weight[positions.offset :])),
        [_block(layer) for layer in body.layers],
        Norm.layer(body.final_layer_norm),
        Affine.of(model.lm_head),
    )


def _block(layer: Any) -> Block:
    inner = layer.self_attn
    core = Attention(AttentionShape(inner.num_heads, inner.head_dim, scale=inner.scaling))
    read = (Affine.of(module) for module in (inner.q_proj, inner.k_proj, inner.v_proj, inner.out_proj))
    mlp = Branch(Affine.of(layer.fc1), Elementwise(layer.activation_fn), Affine.of(layer.fc2))
    return Block(
        Norm.layer(layer.self_attn_layer_norm),
        attention(core, *read),
        Norm.layer(layer.final_layer_norm),
        mlp,
    )
