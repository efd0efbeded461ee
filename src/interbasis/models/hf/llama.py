"""Llama and its relatives: rotary positions, grouped keys and values, norms before the branches or after.

What a model has is read from its modules. Norms of queries and keys: Qwen3, OLMo 2, Cohere, StableLM, Phi.
One matrix for several maps: Phi-3, GLM. Attention and MLP side by side: Phi, Cohere, StableLM. Norms after
the branches: OLMo 2 and EXAONE 4 (alone), GLM-4 (as well). Layers without positions: SmolLM3, Cohere 2,
EXAONE 4. An MLP without a gate: Phi, StarCoder 2, Nemotron. Multipliers of embedding, branches and logits:
Granite.
"""

from dataclasses import replace
from typing import Any

import torch

from interbasis.base.errors import InterbasisError
from interbasis.models.hf.norms import norm
from interbasis.models.hf.parts import (
    GENERAL,
    Affine,
    Block,
    Branch,
    HeadNorms,
    Model,
    Norm,
    TokenEmbedding,
    attention,
    held_still,
    in_halves,
    weights,
)
from interbasis.models.hf.positions import context, rotary
from interbasis.network.cores import Attention, AttentionShape, Elementwise, Gated

ONE_WINDOW = ("mistral", "ministral3", "phi3", "starcoder2")
"""Families that name one window for all layers."""
NEIGHBOURS = ("cohere", "cohere2", "ernie4_5", "glm", "glm4", "helium")
"""Families that turn neighbouring coordinates together."""
UNGATED = (("up_proj", "down_proj"), ("fc1", "fc2"), ("c_fc", "c_proj"))


def parts(model: Any) -> Model:
    body, config = model.model, model.config
    if getattr(config, "clip_qkv", None) is not None:
        raise InterbasisError(
            f"a {type(model).__name__} with config.clip_qkv, which clips queries, keys and values, is not "
            f"supported; {GENERAL}"
        )
    embedding = getattr(body, "embedding_multiplier", 1.0) * weights(body.embed_tokens.weight)
    logits = getattr(model, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    return Model(
        config.model_type,
        TokenEmbedding(embedding, context=_context(body.rotary_emb, config)),
        [_block(layer, config, body.rotary_emb) for layer in body.layers],
        norm(body.final_layernorm if hasattr(body, "final_layernorm") else body.norm),
        Affine.of(model.lm_head).scaled(logits),
    )


def _context(positions: Any, config: Any) -> int | None:
    if config.model_type == "ministral3":  # queries at later positions are multiplied
        return config.rope_parameters["original_max_position_embeddings"]
    return context(positions)


def _block(layer: Any, config: Any, positions: Any) -> Block:
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
    branch = grouped(module, core, head_norms(module, config), config.model_type in NEIGHBOURS)
    branches = [replace(one, out=one.out.scaled(multiplier)) for one in (branch, mlp(layer.mlp))]
    return _arranged(layer, *branches)


def _arranged(layer: Any, attention: Branch, mlp: Branch) -> Block:
    """Where the norms are."""

    def named(name: str) -> Norm | None:
        module = getattr(layer, name, None)
        return None if module is None else norm(module)

    before, after = named("input_layernorm"), named("post_attention_layernorm")
    if hasattr(layer, "attention_layernorm"):  # Apertus
        return Block(named("attention_layernorm"), attention, named("feedforward_layernorm"), mlp)
    if before is None:
        last = norm(layer.post_feedforward_layernorm)
        return Block(None, attention, None, mlp, after_attention=after, after_mlp=last)
    if after is None:
        return Block(before, attention, before, mlp, parallel=True)
    ends = named("post_self_attn_layernorm"), named("post_mlp_layernorm")
    return Block(before, attention, after, mlp, after_attention=ends[0], after_mlp=ends[1])


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


def grouped(module: Any, core: Attention, norms: HeadNorms | None = None, neighbours: bool = False) -> Branch:
    if hasattr(module, "qkv_proj"):
        joined = Affine.of(module.qkv_proj)
        queries = core.shape.heads * core.shape.width
        groups = (len(joined.weight) - queries) // 2
        query, key, value = (
            joined.rows(some) for some in torch.arange(len(joined.weight)).split([queries, groups, groups])
        )
    else:
        query, key, value = map(Affine.of, (module.q_proj, module.k_proj, module.v_proj))
    out = Affine.of(module.dense if hasattr(module, "dense") else module.o_proj)
    if neighbours:
        query, key, norms = in_halves(core, query, key, norms)
    return attention(core, query, key, value, out, norms=norms)


def head_norms(module: Any, config: Any) -> HeadNorms | None:
    """Of every head, with one gain for all of them or one for each; in OLMo 2 of all heads together."""
    names = ("q_norm", "k_norm") if hasattr(module, "q_norm") else ("q_layernorm", "k_layernorm")
    if not hasattr(module, names[0]):
        return None
    query, key = (_joined(getattr(module, name)) for name in names)
    together = query.gain.ndim == 1 and len(query.gain) != module.head_dim
    if query.gain.ndim == 1 and not together:
        heads = config.num_attention_heads, config.num_key_value_heads
        query, key = query.repeated(heads[0]), key.repeated(heads[1])
    return HeadNorms(_flat(query), _flat(key), together)


def _flat(norm: Norm) -> Norm:
    return replace(norm, gain=norm.gain.flatten(), bias=norm.bias.flatten())


def _joined(module: Any) -> Norm:
    """StableLM holds a norm for each head; gains of heads are [heads, h]."""
    if not hasattr(module, "norms"):
        return norm(module)
    each = [norm(one) for one in module.norms]
    gain, bias = (torch.stack([getattr(one, name) for one in each]) for name in ("gain", "bias"))
    return replace(each[0], gain=gain, bias=bias)


def mlp(module: Any) -> Branch:
    names = ("act_fn", "activation_fn", "act")
    activation = held_still(next(getattr(module, name) for name in names if hasattr(module, name)))
    if hasattr(module, "gate_up_proj"):
        return Branch(Affine.of(module.gate_up_proj), Gated(activation), Affine.of(module.down_proj))
    if hasattr(module, "gate_proj"):
        read = Affine.stack(Affine.of(module.gate_proj), Affine.of(module.up_proj))
        return Branch(read, Gated(activation), Affine.of(module.down_proj))
    ungated = next(names for names in UNGATED if hasattr(module, names[0]))
    read, out = (Affine.of(getattr(module, name)) for name in ungated)
    return Branch(read, Elementwise(activation), out)
