"""TransformerLens: a HookedTransformer from its own weights, folded and centred or not, and its bridges."""

from typing import Any

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.embedding import TokenEmbedding
from interbasis.models.hf import parts
from interbasis.models.hf.parts import GENERAL, Affine, Branch, HeadNorms, ModelParts, Norm, TransformerBlock
from interbasis.network.cores import AttentionShape, Elementwise, Gated, Rotary

UNSUPPORTED = {
    "clip_qkv": "clipped queries, keys and values",
    "use_attention_sinks": "attention sinks",
    "use_logn_attn": "queries that grow with the logarithm of the position",
    "use_dynamic_ntk_rope": "rotary positions that change with the length of the input",
    "num_experts": "a mixture of experts",
    "load_in_4bit": "weights of 4 bits",
}
"""Settings under which something is computed that no core computes."""

POSITIONS = ("standard", "rotary")
MIXING = ("solu", "solu_ln")
"""Activation functions that read several neurons at once."""


def made_by_transformer_lens(model: object, name: str) -> bool:
    """Whether a model is a ``name`` of TransformerLens; nothing is imported for that."""
    return any(
        kind.__name__ == name and kind.__module__.startswith("transformer_lens")
        for kind in type(model).__mro__
    )


def called_module(model: Any) -> Any:
    """Module that a TransformerBridge calls, with its hook points in it; anything else unchanged."""
    return model.original_model if made_by_transformer_lens(model, "TransformerBridge") else model


def hugging_face_model(model: Any) -> Any:
    """Hugging Face model of a TransformerBridge, with its weights in transformers' own modules again.

    TransformerLens 4 has bridges in place of HookedTransformers. Anything else is returned as it is.
    """
    if not made_by_transformer_lens(model, "TransformerBridge"):
        return model
    if model.compatibility_mode:
        raise InterbasisError(
            "a TransformerBridge in compatibility mode no longer computes with its Hugging Face model's "
            "weights; give the bridge before enable_compatibility_mode(), or the Hugging Face model itself"
        )
    inner = model.original_model
    state = {name.replace("._original_component", ""): value for name, value in inner.state_dict().items()}
    fresh = type(inner)(inner.config).to(next(inner.parameters()))
    fresh.load_state_dict({name: state[name] for name in fresh.state_dict()})
    return fresh.train(model.training)


def hooked_parts(model: Any) -> ModelParts:
    config = model.cfg
    _check_supported(model)
    tokens = parts.weights(model.embed.W_E)
    if getattr(config, "post_embedding_ln", False):
        tokens = parts.weights(model.embed.ln(model.embed.W_E))
    learned = config.positional_embedding_type == "standard"
    return ModelParts(
        "hooked_transformer",
        TokenEmbedding(tokens, parts.weights(model.pos_embed.W_pos) if learned else None),
        [_block(block, config) for block in model.blocks],
        _norm(getattr(model, "ln_final", None), model.unembed.W_U[:, 0]),
        _affine(model.unembed.W_U, model.unembed.b_U),
        _cap(getattr(config, "output_logits_soft_cap", None)),
        causal=config.attention_dir == "causal",
    )


def _check_supported(model: Any) -> None:
    config = model.cfg
    reasons = [f"{what} (cfg.{name})" for name, what in UNSUPPORTED.items() if getattr(config, name, None)]
    if config.positional_embedding_type not in POSITIONS:
        reasons.append(f"cfg.positional_embedding_type {config.positional_embedding_type!r}")
    if not config.attn_only and config.act_fn in MIXING:
        reasons.append(f"an activation function that mixes neurons (cfg.act_fn {config.act_fn!r})")
    normed = any(getattr(block.attn, "q_norm", None) is not None for block in model.blocks)
    if normed and not getattr(config, "use_qk_norm", False):
        reasons.append(f"norms over all heads of the queries and keys ({config.original_architecture})")
    if config.parallel_attn_mlp and getattr(config, "use_normalization_before_and_after", False):
        reasons.append("norms after the branches of parallel blocks (cfg.use_normalization_before_and_after)")
    if reasons:
        raise InterbasisError(f"a HookedTransformer with {', '.join(reasons)} is not supported; {GENERAL}")


def _block(block: Any, config: Any) -> TransformerBlock:
    after = getattr(config, "use_normalization_before_and_after", False)
    has_mlp, like = not config.attn_only, block.attn.b_O
    return TransformerBlock(
        _norm(block.ln1, like),
        _attention(block.attn, config),
        _norm(block.ln2, like) if has_mlp else None,
        _mlp(block.mlp, config) if has_mlp else None,
        parallel=has_mlp and config.parallel_attn_mlp,
        after_attention=_norm(block.ln1_post, like) if after else None,
        after_mlp=_norm(block.ln2_post, like) if after and has_mlp else None,
    )


def _attention(module: Any, config: Any) -> Branch:
    causal = config.attention_dir == "causal"
    turning = config.positional_embedding_type == "rotary"
    shape = AttentionShape(
        config.n_heads,
        config.d_head,
        causal,
        1 / float(module.attn_scale),
        window=config.window_size if causal and module.attn_type == "local" else None,
        cap=_cap(getattr(config, "attn_scores_soft_cap", None)),
        rotary=_rotary(module, config) if turning else None,
    )
    query, key, value = (_projection(module, name) for name in "QKV")
    norms = None
    if getattr(module, "q_norm", None) is not None:
        first, second = (Norm.rms(parts.weights(n.w), float(n.eps)) for n in (module.q_norm, module.k_norm))
        heads = [len(read.bias) // config.d_head for read in (query, key)]
        norms = HeadNorms(first.repeated(heads[0]), second.repeated(heads[1]))
    out = _affine(module.W_O.flatten(0, 1), module.b_O)
    neighbours = turning and config.rotary_adjacent_pairs
    return parts.attention(shape, query, key, value, out, norms=norms, neighbours=neighbours)


def _projection(module: Any, name: str) -> Affine:
    """Map from W [heads, d, h] and b [heads, h]; grouped keys and values are not repeated."""
    weight, bias = (getattr(module, f"_{kind}_{name}", None) for kind in "Wb")
    if weight is None or bias is None:
        weight, bias = (getattr(module, f"{kind}_{name}") for kind in "Wb")
    return Affine(parts.weights(weight).mT.flatten(0, 1), parts.weights(bias).flatten())


def _rotary(module: Any, config: Any) -> Rotary:
    """Rotary positions whose frequencies are the module's own angles at position 1, in float64."""
    local = getattr(config, "rotary_base_local", None)
    base = local if local is not None and module.attn_type == "local" else config.rotary_base
    waves = module.calculate_sin_cos_rotary(config.rotary_dim, 2, base, torch.float64)
    sin, cos = (wave[1] for wave in waves)
    pairs = slice(0, None, 2) if config.rotary_adjacent_pairs else slice(0, config.rotary_dim // 2)
    stretch = round(float(torch.hypot(sin, cos)[0]), 14)
    return Rotary(tuple(torch.atan2(sin, cos)[pairs].tolist()), stretch)


def _mlp(module: Any, config: Any) -> Branch:
    if config.gated_mlp:  # (act(gate) ∘ value + b_in) W_out + b_out
        read = Affine.stack(_affine(module.W_gate), _affine(module.W_in))
        bias = module.b_out + module.b_in @ module.W_out
        return Branch(read, Gated(_activation(module, config)), _affine(module.W_out, bias))
    read, out = _affine(module.W_in, module.b_in), _affine(module.W_out, module.b_out)
    return Branch(read, Elementwise(_activation(module, config)), out)


def _activation(module: Any, config: Any) -> nn.Module:
    """Activation as a module: TransformerLens holds functions, transformers has modules of the same names."""
    if isinstance(module.act_fn, nn.Module):
        return module.act_fn
    from transformers.activations import ACT2FN

    return ACT2FN[config.act_fn]


def _norm(module: Any, like: Tensor) -> Norm | None:  # like [d]
    """Norm of a module; a folded one has neither gain nor bias; nn.Identity, or None, is no norm."""
    if module is None or type(module) is nn.Identity:
        return None
    gain = parts.weights(getattr(module, "w", torch.ones_like(like)))
    bias = parts.weights(getattr(module, "b", torch.zeros_like(like)))
    return Norm(gain, bias, float(module.eps), type(module).__name__.startswith("LayerNorm"))


def _affine(weight: Tensor, bias: Tensor | None = None) -> Affine:  # W [in, out], as TransformerLens holds it
    turned = parts.weights(weight).T.contiguous()
    return Affine(turned, turned.new_zeros(len(turned)) if bias is None else parts.weights(bias))


def _cap(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None
