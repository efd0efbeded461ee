"""Llama and its relatives: rotary positions, grouped keys and values, norms before the branches or after.

What a model has is read from its modules. Norms of queries and keys: Qwen3, OLMo 2, Cohere, StableLM, Phi.
One matrix for several maps: Phi-3, GLM. Attention and MLP side by side: Phi, Cohere, StableLM. Norms after
the branches: OLMo 2 and EXAONE 4 (alone), GLM-4 (as well). Layers without positions: SmolLM3, Cohere 2,
EXAONE 4. An MLP without a gate: Phi, StarCoder 2, Nemotron. Multipliers of embedding, branches and logits:
Granite. Gemma has RMS norms with gain 1 + w, scaled embeddings and GeGLU; Gemma 2 caps scores and logits and
has norms after its branches too; Gemma 3 has those norms, and norms of every head's queries and keys.
"""

from dataclasses import replace
from typing import Any

import torch

from interbasis.base.errors import InterbasisError
from interbasis.models.embedding import TokenEmbedding
from interbasis.models.hf import parts
from interbasis.models.hf.parts import (
    GENERAL,
    Affine,
    Branch,
    HeadNorms,
    ModelParts,
    Norm,
    TransformerBlock,
    attention,
    context,
    in_halves,
    rotary,
    weights,
)
from interbasis.network.cores import Attention, AttentionShape, Gated

ONE_WINDOW = ("mistral", "ministral3", "phi3", "starcoder2")
"""Families that name one window for all layers."""
NEIGHBOURS = ("cohere", "cohere2", "ernie4_5", "glm", "glm4", "helium")
"""Families that turn neighbouring coordinates together."""
UNGATED = (("up_proj", "down_proj"), ("fc1", "fc2"), ("c_fc", "c_proj"))


def llama(model: Any) -> ModelParts:
    body, config = model.model, model.config
    if getattr(config, "clip_qkv", None) is not None:
        raise InterbasisError(
            f"a {type(model).__name__} with config.clip_qkv, which clips queries, keys and values, is not "
            f"supported; {GENERAL}"
        )
    embedding = getattr(body, "embedding_multiplier", 1.0) * weights(body.embed_tokens.weight)
    logits = getattr(model, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    longest = context(body.rotary_emb)
    if config.model_type == "ministral3":  # queries at later positions are multiplied
        longest = config.rope_parameters["original_max_position_embeddings"]
    return ModelParts(
        config.model_type,
        TokenEmbedding(embedding, context=longest),
        [_block(layer, config, body.rotary_emb) for layer in body.layers],
        Norm.from_module(body.final_layernorm if hasattr(body, "final_layernorm") else body.norm),
        Affine.from_module(model.lm_head).scaled(logits),
    )


def _block(layer: Any, config: Any, positions: Any) -> TransformerBlock:
    module = layer.self_attn
    kind = getattr(module, "attention_type", None)
    core = Attention(
        AttentionShape(
            config.num_attention_heads,
            module.head_dim,
            scale=module.scaling,
            window=_window(module, config),
            rotary=rotary(positions, kind) if _turns(module, config) else None,
        )
    )
    multiplier = getattr(layer, "residual_multiplier", 1.0)
    branch = _attention(module, core, _head_norms(module, config), config.model_type in NEIGHBOURS)
    branches = [replace(b, out=b.out.scaled(multiplier)) for b in (branch, _mlp(layer.mlp))]
    return _with_norms(layer, *branches)


def _with_norms(layer: Any, attention: Branch, mlp: Branch) -> TransformerBlock:
    """Block with the norms that a layer has."""

    def named(name: str) -> Norm | None:
        module = getattr(layer, name, None)
        return None if module is None else Norm.from_module(module)

    before, after = named("input_layernorm"), named("post_attention_layernorm")
    if hasattr(layer, "attention_layernorm"):  # Apertus
        return TransformerBlock(named("attention_layernorm"), attention, named("feedforward_layernorm"), mlp)
    if before is None:
        last = Norm.from_module(layer.post_feedforward_layernorm)
        return TransformerBlock(None, attention, None, mlp, after_attention=after, after_mlp=last)
    if after is None:
        return TransformerBlock(before, attention, before, mlp, parallel=True)
    ends = named("post_self_attn_layernorm"), named("post_mlp_layernorm")
    return TransformerBlock(before, attention, after, mlp, after_attention=ends[0], after_mlp=ends[1])


def _window(module: Any, config: Any) -> int | None:
    if config.model_type in ONE_WINDOW:
        return config.sliding_window
    return getattr(module, "sliding_window", None) if getattr(module, "is_sliding", True) else None


def _turns(module: Any, config: Any) -> bool:
    """Whether a layer has rotary positions."""
    if config.model_type == "cohere2":
        return module.sliding_window is not None
    if config.model_type == "exaone4":
        return module.sliding_window is None or module.is_sliding
    return bool(getattr(module, "use_rope", True))


def _attention(
    module: Any, core: Attention, norms: HeadNorms | None = None, neighbours: bool = False
) -> Branch:
    if hasattr(module, "qkv_proj"):
        joined = Affine.from_module(module.qkv_proj)
        queries = core.shape.heads * core.shape.width
        groups = (len(joined.weight) - queries) // 2
        rows = torch.arange(len(joined.weight)).split([queries, groups, groups])
        query, key, value = map(joined.rows, rows)
    else:
        query, key, value = map(Affine.from_module, (module.q_proj, module.k_proj, module.v_proj))
    out = Affine.from_module(module.dense if hasattr(module, "dense") else module.o_proj)
    if neighbours:
        query, key, norms = in_halves(core, query, key, norms)
    return attention(core, query, key, value, out, norms=norms)


def _head_norms(module: Any, config: Any) -> HeadNorms | None:
    """Norms of every head, with one gain for all of them or one for each; in OLMo 2 of all heads together."""
    names = ("q_norm", "k_norm") if hasattr(module, "q_norm") else ("q_layernorm", "k_layernorm")
    if not hasattr(module, names[0]):
        return None
    query, key = (_stacked_norm(getattr(module, name)) for name in names)
    together = query.gain.ndim == 1 and len(query.gain) != module.head_dim
    if query.gain.ndim == 1 and not together:
        heads = config.num_attention_heads, config.num_key_value_heads
        query, key = query.repeated(heads[0]), key.repeated(heads[1])
    query, key = (replace(norm, gain=norm.gain.flatten(), bias=norm.bias.flatten()) for norm in (query, key))
    return HeadNorms(query, key, together)


def _stacked_norm(module: Any) -> Norm:
    """Norm with gains of heads, [heads, h]; StableLM holds a norm for each head."""
    if not hasattr(module, "norms"):
        return Norm.from_module(module)
    norms = list(map(Norm.from_module, module.norms))
    gain, bias = (torch.stack([getattr(norm, name) for norm in norms]) for name in ("gain", "bias"))
    return replace(norms[0], gain=gain, bias=bias)


def _mlp(module: Any) -> Branch:
    names = ("act_fn", "activation_fn", "act")
    activation = parts.frozen(next(getattr(module, name) for name in names if hasattr(module, name)))
    gate_maps = ("gate_up_proj",) if hasattr(module, "gate_up_proj") else ("gate_proj", "up_proj")
    if hasattr(module, gate_maps[0]):
        read = Affine.stack(*(Affine.from_module(getattr(module, name)) for name in gate_maps))
        return Branch(read, Gated(activation), Affine.from_module(module.down_proj))
    ungated = next(names for names in UNGATED if hasattr(module, names[0]))
    return parts.mlp(getattr(module, ungated[0]), activation, getattr(module, ungated[1]))


def gemma(model: Any) -> ModelParts:
    """Gemma, Gemma 2 and Gemma 3."""
    body, config = model.model, model.config
    if getattr(config, "use_bidirectional_attention", False):
        raise InterbasisError(
            f"a {type(model).__name__} with config.use_bidirectional_attention is not supported; {GENERAL}"
        )
    embedding = weights(body.embed_tokens.weight)
    scale = getattr(body.embed_tokens, "embed_scale", config.hidden_size**0.5)
    return ModelParts(
        config.model_type,
        TokenEmbedding(embedding * scale, context=context(body.rotary_emb)),
        [_gemma_block(layer, config, body.rotary_emb) for layer in body.layers],
        _gemma_norm(body.norm),
        Affine.from_module(model.lm_head),
        getattr(config, "final_logit_softcapping", None),
    )


def _gemma_block(layer: Any, config: Any, positions: Any) -> TransformerBlock:
    module, heads, norms = layer.self_attn, config.num_attention_heads, None
    core = Attention(
        AttentionShape(
            heads,
            module.head_dim,
            scale=module.scaling,
            window=getattr(module, "sliding_window", None),
            cap=module.attn_logit_softcapping if config.model_type == "gemma2" else None,
            rotary=rotary(positions, getattr(module, "layer_type", None)),
        )
    )
    if hasattr(module, "q_norm"):
        query, key = _gemma_norm(module.q_norm), _gemma_norm(module.k_norm)
        norms = HeadNorms(query.repeated(heads), key.repeated(config.num_key_value_heads))
    branches = _attention(module, core, norms), _mlp(layer.mlp)
    before, after = _gemma_norm(layer.input_layernorm), _gemma_norm(layer.post_attention_layernorm)
    if config.model_type == "gemma":
        return TransformerBlock(before, branches[0], after, branches[1])
    middle, last = map(_gemma_norm, (layer.pre_feedforward_layernorm, layer.post_feedforward_layernorm))
    return TransformerBlock(before, branches[0], middle, branches[1], after_attention=after, after_mlp=last)


def _gemma_norm(module: Any) -> Norm:
    return Norm.rms(1 + weights(module.weight), module.eps)
