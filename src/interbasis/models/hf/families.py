"""The families of causal language models that are read, by the names that transformers has for their parts.

What a model has is read from its modules; a part has one of a few names (`TOKENS`, `BEFORE_ATTENTION`, …).
Among Llama's relatives, queries and keys have norms in Qwen3, OLMo 2, Cohere, StableLM, Phi and Gemma 3; one
matrix holds several maps in Phi-3 and GLM; attention and MLP are side by side in Phi, Cohere and StableLM;
norms follow the branches in OLMo 2 and EXAONE 4 (alone), in GLM-4, Gemma 2 and Gemma 3 (as well); some layers
have no positions in SmolLM3, Cohere 2 and EXAONE 4; the MLP has no gate in Phi, StarCoder 2 and Nemotron;
embedding, branches and logits have multipliers in Granite. Gemma has RMS norms with gain 1 + w and scaled
embeddings; Gemma 2 caps scores and logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.models.embedding import TokenEmbedding
from interbasis.models.hf import parts
from interbasis.models.hf.experts import is_mixture, mixture
from interbasis.models.hf.parts import (
    GENERAL,
    Affine,
    BlocksAsRead,
    Branch,
    HeadNorms,
    ModelParts,
    Norm,
    TransformerBlock,
    first_part,
)
from interbasis.network.cores import AttentionShape, Elementwise, Gated, Rotary, ScoreBias

TOKENS, LAYERS = "embed_tokens embed_in wte word_embeddings tokens_embed", "layers h blocks"
LAST_NORM = "norm final_layernorm final_layer_norm ln_f layer_norm norm_f"
HEAD = "lm_head embed_out output_projection proj_out"
BEFORE_ATTENTION = "input_layernorm attention_layernorm ln_attn ln_1 self_attn_layer_norm norm_1"
BEFORE_MLP = "post_attention_layernorm feedforward_layernorm ln_mlp ln_2 final_layer_norm norm_2"
ATTENTION_OUT, ACTIVATION = "o_proj dense out_proj c_proj", "act_fn activation_fn act activation gelu_impl"
MLP_IN = "up_proj fc1 c_fc fc_in dense_h_to_4h"
MLP_OUT = "down_proj fc2 c_proj fc_out dense_4h_to_h output_linear"
MLP, BETWEEN = "mlp feed_forward block_sparse_moe ffn", "pre_feedforward_layernorm pre_mlp_layernorm"
AFTER_ATTENTION, AFTER_MLP = "post_self_attn_layernorm post_norm1", "post_mlp_layernorm post_norm2"
"""Names of parts, of which a module has one."""
ONE_WINDOW = ("mistral", "ministral3", "phi3", "starcoder2", "mixtral")
"""Families that name one window for all layers."""
NEIGHBOURS = (
    "cohere", "cohere2", "cohere2_moe", "deepseek_v2", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "helium",
    "llama4_text",
)  # fmt: skip
"""Families that turn neighbouring coordinates together."""
NORMS_OF_SUMS = ("bart", "blenderbot-small", "marian", "mvp", "plbart", "trocr")
"""Families with norms after x + branch."""
SLIDING_TURN = ("cohere2", "cohere2_moe", "flint")
"""Families whose layers have rotary positions where they have a window."""
GPTJ_BASE = 10000
CODEGEN_PARTS = 4
"""CodeGen's one matrix lies in so many parts, each with queries, values and keys of some heads."""


def gpt2(model: Any) -> ModelParts:
    """GPT-2 and GPT-BigCode: learned positions, one matrix for queries, keys and values."""
    body, config = model.transformer, model.config
    if config.add_cross_attention:
        raise _unsupported("GPT-2 with cross-attention (GPT2Attention.crossattention)")
    width = config.n_embd // config.n_head

    def rows(numbers: Tensor) -> Sequence[Tensor]:
        """One after the other, all heads with one key, or head by head."""
        if config.model_type == "gpt2":
            return numbers.chunk(3)
        if config.multi_query:
            return numbers.split([len(numbers) - 2 * width, width, width])
        return numbers.view(-1, 3, width).transpose(0, 1).flatten(1).unbind()

    def block(layer: Any, k: int) -> TransformerBlock:
        scale = width**-0.5 if config.scale_attn_weights else 1.0
        if getattr(config, "scale_attn_by_inverse_layer_idx", False):
            scale /= k + 1
        shape = AttentionShape(config.n_head, width, scale=scale)
        maps = Affine.from_module(layer.attn.c_attn).parts(rows)
        return _block(layer, _attention(layer.attn, shape, maps), config)

    return _model(model, body, block, positions=body.wpe.weight)


def gpt_neo(model: Any) -> ModelParts:
    """GPT-Neo: learned positions, unscaled attention, every other layer through a local window."""
    body, config = model.transformer, model.config

    def block(layer: Any, k: int) -> TransformerBlock:
        window = config.window_size if layer.attn.attention_type == "local" else None
        width = config.hidden_size // config.num_heads
        shape = AttentionShape(config.num_heads, width, scale=1.0, window=window)
        return _block(layer, _attention(layer.attn.attention, shape), config)

    return _model(model, body, block, positions=body.wpe.weight)


def opt(model: Any) -> ModelParts:
    """OPT, XGLM, BioGPT, decoders of BART's relatives: positions from a table, norms before or after."""
    config = model.config
    body = getattr(model, model.base_model_prefix, model)
    body = getattr(getattr(body, "model", body), "decoder", getattr(body, "decoder", body))
    kind = config.model_type
    after = kind in NORMS_OF_SUMS or not getattr(config, "do_layer_norm_before", True)
    if getattr(body, "project_in", None) is not None or (kind == "opt" and body.final_layer_norm is None):
        raise _unsupported(
            "an OPT with layer norms after its branches, or with OPTDecoder.project_in (as in opt-350m),"
        )

    def block(layer: Any, k: int) -> TransformerBlock:
        module = layer.self_attn
        shape = AttentionShape(module.num_heads, module.head_dim, scale=module.scaling)
        return _block(layer, _attention(module, shape), config, norms_of_sum=after)

    places, norm = body.embed_positions, getattr(body, "layernorm_embedding", None)
    table = places.weights if hasattr(places, "weights") else places.weight
    scale = getattr(body.embed_tokens, "embed_scale", None) or getattr(body, "embed_scale", None) or 1.0
    if kind == "blenderbot-small":  # its decoder has a scale, and does not use it
        scale = 1.0
    positions = table[getattr(places, "offset", 0) :]
    return _model(model, body, block, positions=positions, scale=float(scale), norm=norm)


def openai_gpt(model: Any) -> ModelParts:
    """GPT: learned positions, norms of x + branch, none at the end."""
    body, config = model.transformer, model.config

    def block(layer: Any, k: int) -> TransformerBlock:
        maps = Affine.from_module(layer.attn.c_attn).parts(lambda rows: rows.chunk(3))
        shape = AttentionShape(config.n_head, config.n_embd // config.n_head)
        return _block(layer, _attention(layer.attn, shape, maps), config, norms_of_sum=True)

    return _model(model, body, block, positions=body.positions_embed.weight)


def bloom(model: Any) -> ModelParts:
    """BLOOM and MPT: scores with a bias that grows with the distance (ALiBi)."""
    body, config = model.transformer, model.config
    mpt = config.model_type == "mpt"
    if getattr(config, "apply_residual_connection_post_layernorm", False):
        raise _unsupported("a BLOOM whose residual stream is normed")
    if mpt and config.attn_config.clip_qkv:
        raise _unsupported("an MPT with clip_qkv, which clips queries, keys and values,")
    heads = config.num_attention_heads
    width = config.hidden_size // heads
    if mpt:
        bias = body.build_mpt_alibi_tensor(heads, 2)
    else:
        bias = body.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
    slopes = ScoreBias(tuple(bias.double().flatten(1).diff()[:, 0].tolist()))
    scale = config.attn_config.softmax_scale if mpt else None

    def block(layer: Any, k: int) -> TransformerBlock:
        module = layer.attn if mpt else layer.self_attention
        joined = Affine.from_module(module.Wqkv if mpt else module.query_key_value)
        maps = joined.parts(lambda rows: rows.chunk(3)) if mpt else _by_head(joined, heads)
        shape = AttentionShape(heads, width, scale=scale, bias=slopes)
        return _block(layer, _attention(module, shape, maps), config)

    norm, context = getattr(body, "word_embeddings_layernorm", None), config.max_seq_len if mpt else None
    return _model(model, body, block, norm=norm, context=context)


def _by_head(joined: Affine, heads: int) -> list[Affine]:
    """Queries, keys and values from one matrix that holds them head by head."""
    return joined.parts(lambda rows: rows.view(heads, 3, -1).transpose(0, 1).flatten(1).unbind())


def gpt_neox(model: Any) -> ModelParts:
    """GPT-NeoX, Pythia and GPT-NeoX Japanese: only a part of every head is turned."""
    body, config = getattr(model, model.base_model_prefix), model.config
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    shape = AttentionShape(heads, width, rotary=parts.rotary(body.rotary_emb))

    def block(layer: Any, k: int) -> TransformerBlock:
        maps = _by_head(Affine.from_module(layer.attention.query_key_value), heads)
        attention = _attention(layer.attention, shape, maps)
        bias = getattr(layer.attention, "dense_bias", None)
        if bias is not None:
            attention = replace(attention, out=replace(attention.out, bias=parts.weights(bias)))
        return _block(layer, attention, config, parallel=getattr(layer, "use_parallel_residual", False))

    return _model(model, body, block, context=parts.context(body.rotary_emb))


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
    rotary = Rotary(tuple(frequencies.double().tolist()))

    def block(layer: Any, k: int) -> TransformerBlock:
        module, maps = layer.attn, None
        if config.model_type == "codegen":
            query, value, key = Affine.from_module(module.qkv_proj).parts(
                lambda rows: rows.view(CODEGEN_PARTS, 3, -1).transpose(0, 1).flatten(1).unbind()
            )
            maps = query, key, value
        shape = AttentionShape(module.num_attention_heads, module.head_dim, rotary=rotary)
        return _block(layer, _attention(module, shape, maps, neighbours=True), config)

    return _model(model, body, block, context=config.max_position_embeddings)


def falcon(model: Any) -> ModelParts:
    """Falcon: one matrix for queries, keys and values of groups of heads."""
    body = model.transformer
    if model.config.alibi:
        raise _unsupported(
            f"a {type(model).__name__} with config.alibi, a bias of attention scores by position,"
        )

    def block(layer: Any, k: int) -> TransformerBlock:
        module = layer.self_attention
        shape = AttentionShape(module.num_heads, module.head_dim, rotary=parts.rotary(body.rotary_emb))
        grouped = module.new_decoder_architecture or module.multi_query
        groups = module.num_kv_heads if grouped else module.num_heads

        def rows(numbers: Tensor) -> list[Tensor]:
            """Groups of heads, each with its queries, one key and one value."""
            by_group = numbers.view(groups, -1, module.head_dim)
            return [by_group[:, :-2].flatten(), by_group[:, -2].flatten(), by_group[:, -1].flatten()]

        maps = Affine.from_module(module.query_key_value).parts(rows)
        attention = _attention(module, shape, maps)
        return _block(layer, attention, model.config, parallel=hasattr(layer, "ln_attn"))

    return _model(model, body, block, context=parts.context(body.rotary_emb))


def llama(model: Any) -> ModelParts:
    """Llama and its relatives: rotary positions, grouped keys and values, or latents; MLPs or experts."""
    body, config = model.model, model.config
    if getattr(config, "clip_qkv", None) is not None:
        raise _unsupported(
            f"a {type(model).__name__} with config.clip_qkv, which clips queries, keys and values,"
        )
    if getattr(config, "use_bidirectional_attention", False):
        raise _unsupported(f"a {type(model).__name__} with config.use_bidirectional_attention")

    def block(layer: Any, k: int) -> TransformerBlock:
        return _block(layer, _rotary_attention(layer.self_attn, config, body.rotary_emb, k), config)

    scale, logits = _multipliers(model, config)
    norm = body.norm if config.model_type == "nanochat" else None
    longest = _longest(body, config)
    return _model(model, body, block, context=longest, scale=scale, logits=logits, norm=norm)


def _multipliers(model: Any, config: Any) -> tuple[float, float]:
    """Factors of embeddings and of logits."""
    kind, body = config.model_type, model.model
    rooted = kind.startswith("gemma") or kind == "vaultgemma" or getattr(config, "mup_enabled", False)
    scale = config.hidden_size**0.5 if rooted else 1.0
    scale = getattr(body, "embedding_multiplier", getattr(body.embed_tokens, "embed_scale", scale))
    logits = getattr(model, "logit_scale", None) or 1.0
    if kind == "hyperclovax":
        logits *= config.logits_scaling
    elif kind == "minicpm3":
        logits *= config.dim_model_base / config.hidden_size
    else:
        logits /= getattr(config, "logits_scaling", 1.0)
    return float(scale), float(logits)


def _longest(body: Any, config: Any) -> int | None:
    """The most positions that a network of the model is right for; None: any number."""
    ends = [parts.context(body.rotary_emb)]
    if config.model_type == "ministral3":  # queries at later positions are multiplied
        ends.append(config.rope_parameters["original_max_position_embeddings"])
    if config.model_type == "llama4_text":  # the same, and attention in chunks
        ends += [config.attention_chunk_size, config.floor_scale - 1]
    return min((end for end in ends if end is not None), default=None)


def _rotary_attention(module: Any, config: Any, angles: Any, k: int) -> Branch:
    """Attention of layer k, with all that Llama's relatives do differently."""
    latent = hasattr(module, "kv_a_proj_with_mqa")
    kind = getattr(module, "attention_type", getattr(module, "layer_type", None))
    kind = kind or (getattr(config, "layer_types", None) or [None] * (k + 1))[k]
    width = module.head_dim if not latent else max(module.qk_head_dim, module.v_head_dim)
    window = getattr(module, "sliding_window", None) if getattr(module, "is_sliding", True) else None
    shape = AttentionShape(
        config.num_attention_heads,
        width,
        scale=getattr(module, "scaling", None),
        window=config.sliding_window if config.model_type in ONE_WINDOW else window,
        cap=getattr(module, "attn_logit_softcapping", None),
        rotary=parts.rotary(angles, kind) if _turns(module, config) else None,
        sinks=_numbers(getattr(module, "sinks", None)),
    )
    neighbours = config.model_type in NEIGHBOURS or getattr(config, "rope_interleave", False)
    if latent:
        return parts.latent_attention(shape, module, neighbours=neighbours)
    maps = None
    if hasattr(module, "qkv_proj"):
        queries = shape.heads * shape.width
        joined = Affine.from_module(module.qkv_proj)
        groups = (len(joined.weight) - queries) // 2
        maps = joined.parts(lambda rows: rows.split([queries, groups, groups]))
    elif hasattr(module, "query_key_value"):
        maps = _by_head(Affine.from_module(module.query_key_value), shape.heads)
    norms, backwards = _head_norms(module, shape), config.model_type == "nanochat"
    branch = _attention(module, shape, maps, norms=norms, neighbours=neighbours, backwards=backwards)
    inner_norm, gate = Norm.if_any(getattr(module, "attn_sub_norm", None)), getattr(module, "gate_proj", None)
    return replace(branch, inner_norm=inner_norm, gate=None if gate is None else Affine.from_module(gate))


def _numbers(parameter: Tensor | None) -> tuple[float, ...] | None:
    """Parameter as numbers; those of a skeleton without weights are 0."""
    if parameter is None:
        return None
    return (0.0,) * len(parameter) if parameter.is_meta else tuple(parameter.double().tolist())


def _turns(module: Any, config: Any) -> bool:
    """Whether a layer has rotary positions."""
    if config.model_type in SLIDING_TURN:
        return module.sliding_window is not None
    if config.model_type in ("exaone4", "exaone_moe"):
        return module.sliding_window is None or module.is_sliding
    return bool(getattr(module, "use_rope", getattr(module, "is_local_attention", True)))


def _head_norms(module: Any, shape: AttentionShape) -> HeadNorms | None:
    """Norms of every head, with one gain for all of them or one for each; in OLMo 2 of all heads together."""
    names = (f"{x}_norm {x}_layernorm qk_norm" for x in "qk")
    query, key = (_stacked_norm(first_part(name, module), shape.width) for name in names)
    if query is None or key is None:
        return None
    together = query.gain.ndim == 1 and len(query.gain) != shape.width
    if query.gain.ndim == 1 and not together:
        keys = len(module.k_proj.weight) // shape.width if hasattr(module, "k_proj") else shape.heads
        query, key = query.repeated(shape.heads), key.repeated(keys)
    query, key = (replace(norm, gain=norm.gain.flatten(), bias=norm.bias.flatten()) for norm in (query, key))
    return HeadNorms(query, key, together)


def _stacked_norm(module: Any, width: int) -> Norm | None:
    """Norm with gains of heads, [heads, h]; StableLM holds a norm for each head."""
    if not hasattr(module, "norms"):
        return Norm.if_any(module, width)
    norms = list(map(Norm.from_module, module.norms))
    gain, bias = (torch.stack([getattr(norm, name) for norm in norms]) for name in ("gain", "bias"))
    return replace(norms[0], gain=gain, bias=bias)


def _model(
    model: Any,
    body: Any,
    block: Callable[[Any, int], TransformerBlock],
    *,
    positions: Tensor | None = None,
    context: int | None = None,
    scale: float = 1.0,
    logits: float = 1.0,
    norm: Any = None,
) -> ModelParts:
    """Model in parts; ``scale`` multiplies embeddings, which ``norm`` norms, and ``logits`` the logits."""
    tokens = parts.weights(_part(body, TOKENS).weight).mul_(scale)
    if model.config.model_type == "blenderbot-small":  # positions are added after the norm
        tokens, norm = Norm.from_module(norm).module()(tokens), None
    places = None if positions is None else parts.weights(positions).to(tokens)
    norm = None if norm is None else Norm.from_module(norm, tokens.shape[1]).module().to(tokens)
    return ModelParts(
        model.config.model_type,
        TokenEmbedding(tokens, places, context=context, norm=norm),
        BlocksAsRead(_part(body, LAYERS), block),
        Norm.if_any(first_part(LAST_NORM, body), tokens.shape[1]),
        Affine.from_module(_part(model, HEAD)).scaled(logits),
        getattr(model.config, "final_logit_softcapping", None),
    )


def _attention(
    module: Any,
    shape: AttentionShape,
    maps: Sequence[Affine] | None = None,
    *,
    norms: HeadNorms | None = None,
    **turns: bool,
) -> Branch:
    """Attention; ``maps`` are queries, keys and values, where one matrix holds them."""
    if maps is None:
        maps = [Affine.from_module(getattr(module, name)) for name in ("q_proj", "k_proj", "v_proj")]
    (query, key, value), out = maps, Affine.from_module(_part(module, ATTENTION_OUT))
    return parts.attention(shape, query, key, value, out, norms=norms, **turns)


def _block(
    layer: Any, attention: Branch, config: Any, *, parallel: bool = False, norms_of_sum: bool = False
) -> TransformerBlock:
    """Block of a layer with the norms that it has; one norm alone is read by both branches."""
    width = len(attention.out.weight)

    def norm(names: str) -> Norm | None:
        return Norm.if_any(first_part(names, layer), width)

    before, middle, mlp = norm(BEFORE_ATTENTION), norm(BETWEEN), _mlp(layer, config)
    if norms_of_sum:
        ends = before, norm(BEFORE_MLP)
        return TransformerBlock(None, attention, None, mlp, False, *ends, norms_of_sum=True)
    if middle is not None or hasattr(layer, "post_feedforward_layernorm"):
        ends = norm("post_attention_layernorm"), norm("post_feedforward_layernorm post_mlp_layernorm")
    else:
        middle, ends = norm(BEFORE_MLP), (norm(AFTER_ATTENTION), norm(AFTER_MLP))
        parallel, middle = parallel or middle is None, middle or before
    inside = getattr(first_part(MLP, layer), "post_mlp_layernorm", None)
    if inside is not None:  # AXK1
        ends = ends[0], Norm.from_module(inside)
    factor = float(first_part("residual_multiplier residual_scale", layer) or 1.0)
    attention, mlp = (
        branch if end else branch.scaled(factor) for branch, end in zip((attention, mlp), ends, strict=True)
    )
    after = [None if end is None else end.scaled(factor) for end in ends]
    return TransformerBlock(before, attention, middle, mlp, parallel, after[0], after[1])


def _mlp(layer: Any, config: Any) -> Branch:
    module = first_part(MLP, layer) or layer
    if not is_mixture(module):
        return _dense_mlp(module)
    shared = first_part("shared_experts shared_expert shared_mlp", module, layer)
    return mixture(module, config, None if shared is None else _dense_mlp(shared))


def _dense_mlp(module: Any) -> Branch:
    activation, out = parts.frozen(_part(module, ACTIVATION)), Affine.from_module(_part(module, MLP_OUT))
    joined, gate = first_part("gate_up_proj input_linear", module), getattr(module, "gate_proj", None)
    if joined is None and gate is None:
        return Branch(Affine.from_module(_part(module, MLP_IN)), Elementwise(activation), out)
    maps = [gate, module.up_proj] if joined is None else [joined]
    norm = Norm.if_any(getattr(module, "ffn_sub_norm", None))
    return Branch(Affine.stack(*map(Affine.from_module, maps)), Gated(activation), out, inner_norm=norm)


def _part(module: Any, names: str) -> Any:
    """Part of a module under the first of these names that it has."""
    part = first_part(names, module)
    if part is None:
        raise AttributeError(f"{type(module).__name__} has no {' or '.join(names.split())}")
    return part


def _unsupported(description: str) -> InterbasisError:
    return InterbasisError(f"{description} is not supported; {GENERAL}")


_READERS = {
    gpt2: "gpt2 gpt_bigcode",
    gpt_neo: "gpt_neo",
    gpt_neox: "gpt_neox gpt_neox_japanese",
    gptj: "gptj codegen",
    opt: "opt bart biogpt blenderbot blenderbot-small marian mbart mvp pegasus plbart trocr whisper xglm",
    openai_gpt: "openai-gpt",
    bloom: "bloom mpt",
    falcon: "falcon",
    llama: "llama mistral ministral ministral3 qwen2 qwen3 phi phi3 gemma gemma2 gemma3_text olmo olmo2 "
    "olmo3 smollm3 stablelm starcoder2 granite cohere cohere2 glm glm4 helium nemotron exaone4 "
    "ernie4_5 seed_oss arcee apertus afmoe aria_text axk1 bitnet cohere2_moe cwm deepseek_v2 "
    "deepseek_v3 dots1 emu3_text_model ernie4_5_moe exaone_moe flex_olmo flint glm4_moe glm4_moe_lite "
    "gpt_oss granite_swa granitemoe granitemoe_swa granitemoeshared hy_v3 hyperclovax jais2 kolibri1 "
    "llama4_text mellum minicpm3 minimax_m2 mixtral mllama_text_model nanochat olmoe persimmon "
    "qwen2_moe qwen3_moe solar_open vaultgemma youtu",
}
FAMILIES: dict[str, Callable[[Any], ModelParts]] = {
    kind: reader for reader, kinds in _READERS.items() for kind in kinds.split()
}
"""Functions that read each of transformers' model types."""
