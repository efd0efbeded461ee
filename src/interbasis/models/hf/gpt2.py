"""Models with learned positions and layer norms before the branches: GPT-2, GPT-BigCode, GPT-Neo, OPT."""

from typing import Any

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.models.embedding import TokenEmbedding
from interbasis.models.hf.parts import (
    GENERAL,
    Affine,
    Branch,
    ModelParts,
    Norm,
    TransformerBlock,
    attention,
    mlp,
    weights,
)
from interbasis.network.cores import Attention, AttentionShape


def gpt2(model: Any) -> ModelParts:
    """GPT-2 and GPT-BigCode: one matrix for queries, keys and values."""
    body, config = model.transformer, model.config
    if config.add_cross_attention:
        raise InterbasisError(
            f"GPT-2 with cross-attention (GPT2Attention.crossattention) is not supported; {GENERAL}"
        )

    def block(module: Any, k: int) -> TransformerBlock:
        heads, width = config.n_head, config.n_embd // config.n_head
        scale = width**-0.5 if config.scale_attn_weights else 1.0
        if getattr(config, "scale_attn_by_inverse_layer_idx", False):
            scale /= k + 1
        joined = Affine.from_module(module.attn.c_attn)
        query, key, value = map(joined.rows, _gpt2_rows(len(joined.weight), width, config))
        core = Attention(AttentionShape(heads, width, scale=scale))
        branch = attention(core, query, key, value, Affine.from_module(module.attn.c_proj))
        return _block(module.ln_1, branch, module.ln_2, module.mlp)

    return _parts(config, body, [block(module, k) for k, module in enumerate(body.h)], model.lm_head)


def _gpt2_rows(count: int, width: int, config: Any) -> tuple[Tensor, ...]:
    """Rows of queries, keys and values: one after the other, all heads with one key, or head by head."""
    rows = torch.arange(count)
    if config.model_type == "gpt2":
        return rows.chunk(3)
    if config.multi_query:
        return rows.split([count - 2 * width, width, width])
    return rows.view(-1, 3, width).transpose(0, 1).flatten(1).unbind()


def gpt_neo(model: Any) -> ModelParts:
    """GPT-Neo: unscaled attention, every other layer through a local window."""
    body, config = model.transformer, model.config

    def block(module: Any) -> TransformerBlock:
        window = config.window_size if module.attn.attention_type == "local" else None
        width = config.hidden_size // config.num_heads
        shape = AttentionShape(config.num_heads, width, scale=1.0, window=window)
        return _block(module.ln_1, _attention(module.attn.attention, shape), module.ln_2, module.mlp)

    return _parts(config, body, [block(module) for module in body.h], model.lm_head)


def _parts(config: Any, body: Any, blocks: list[TransformerBlock], unembedding: Any) -> ModelParts:
    embedding = TokenEmbedding(weights(body.wte.weight), weights(body.wpe.weight))
    final = Norm.from_layer_norm(body.ln_f)
    return ModelParts(config.model_type, embedding, blocks, final, Affine.from_module(unembedding))


def _block(norm1: Any, branch: Branch, norm2: Any, module: Any) -> TransformerBlock:
    norms = Norm.from_layer_norm(norm1), Norm.from_layer_norm(norm2)
    return TransformerBlock(norms[0], branch, norms[1], mlp(module.c_fc, module.act, module.c_proj))


def _attention(module: Any, shape: AttentionShape) -> Branch:
    maps = map(Affine.from_module, (module.q_proj, module.k_proj, module.v_proj, module.out_proj))
    return attention(Attention(shape), *maps)


def opt(model: Any) -> ModelParts:
    """OPT: positions counted from 2, ReLU."""
    body, config = model.model.decoder, model.config
    if not config.do_layer_norm_before or body.project_in is not None or body.final_layer_norm is None:
        raise InterbasisError(
            "an OPT with layer norms after its branches, or with OPTDecoder.project_in (as in opt-350m), is "
            f"not supported; {GENERAL}"
        )

    def block(layer: Any) -> TransformerBlock:
        module = layer.self_attn
        return TransformerBlock(
            Norm.from_layer_norm(layer.self_attn_layer_norm),
            _attention(module, AttentionShape(module.num_heads, module.head_dim, scale=module.scaling)),
            Norm.from_layer_norm(layer.final_layer_norm),
            mlp(layer.fc1, layer.activation_fn, layer.fc2),
        )

    positions = body.embed_positions
    return ModelParts(
        "opt",
        TokenEmbedding(weights(body.embed_tokens.weight), weights(positions.weight[positions.offset :])),
        [block(layer) for layer in body.layers],
        Norm.from_layer_norm(body.final_layer_norm),
        Affine.from_module(model.lm_head),
    )
