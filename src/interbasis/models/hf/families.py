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
from interbasis.models.hf.parts import GENERAL, Affine, Branch, HeadNorms, ModelParts, Norm, TransformerBlock
from interbasis.network.cores import AttentionShape, Elementwise, Gated, Rotary

TOKENS, LAYERS = "embed_tokens embed_in wte word_embeddings", "layers h"
LAST_NORM, HEAD = "norm final_layernorm final_layer_norm ln_f", "lm_head embed_out"
BEFORE_ATTENTION = "input_layernorm attention_layernorm ln_attn ln_1 self_attn_layer_norm"
BEFORE_MLP = "post_attention_layernorm feedforward_layernorm ln_mlp ln_2 final_layer_norm"
ATTENTION_OUT, ACTIVATION = "o_proj dense out_proj c_proj", "act_fn activation_fn act"
MLP_IN, MLP_OUT = "up_proj fc1 c_fc fc_in dense_h_to_4h", "down_proj fc2 c_proj fc_out dense_4h_to_h"
"""Names of parts, of which a module has one."""
ONE_WINDOW = ("mistral", "ministral3", "phi3", "starcoder2")
"""Families that name one window for all layers."""
NEIGHBOURS = ("cohere", "cohere2", "ernie4_5", "glm", "glm4", "helium")
"""Families that turn neighbouring coordinates together."""
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
        return _block(layer, layer.attn, shape, Affine.from_module(layer.attn.c_attn).parts(rows))

    return _model(model, body, block, positions=body.wpe.weight)


def gpt_neo(model: Any) -> ModelParts:
    """GPT-Neo: learned positions, unscaled attention, every other layer through a local window."""
    body, config = model.transformer, model.config

    def block(layer: Any, k: int) -> TransformerBlock:
        window = config.window_size if layer.attn.attention_type == "local" else None
        width = config.hidden_size // config.num_heads
        shape = AttentionShape(config.num_heads, width, scale=1.0, window=window)
        return _block(layer, layer.attn.attention, shape)

    return _model(model, body, block, positions=body.wpe.weight)


def opt(model: Any) -> ModelParts:
    """OPT: learned positions counted from 2, ReLU."""
    body = model.model.decoder
    if not model.config.do_layer_norm_before or body.project_in is not None or body.final_layer_norm is None:
        raise _unsupported(
            "an OPT with layer norms after its branches, or with OPTDecoder.project_in (as in opt-350m),"
        )

    def block(layer: Any, k: int) -> TransformerBlock:
        module = layer.self_attn
        return _block(layer, module, AttentionShape(module.num_heads, module.head_dim, scale=module.scaling))

    return _model(model, body, block, positions=body.embed_positions.weight[body.embed_positions.offset :])


def gpt_neox(model: Any) -> ModelParts:
    """GPT-NeoX and Pythia: only a part of every head is turned."""
    body, config = model.gpt_neox, model.config
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    shape = AttentionShape(heads, width, rotary=parts.rotary(body.rotary_emb))

    def block(layer: Any, k: int) -> TransformerBlock:
        joined = Affine.from_module(layer.attention.query_key_value)  # rows by head, then q, k, v
        maps = joined.parts(lambda rows: rows.view(heads, 3, width).transpose(0, 1).flatten(1).unbind())
        return _block(layer, layer.attention, shape, maps, parallel=layer.use_parallel_residual)

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
        return _block(layer, module, shape, maps, neighbours=True)

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
        return _block(layer, module, shape, maps, parallel=hasattr(layer, "ln_attn"))

    return _model(model, body, block, context=parts.context(body.rotary_emb))


def llama(model: Any) -> ModelParts:
    """Llama and its relatives: rotary positions, grouped keys and values."""
    body, config = model.model, model.config
    if getattr(config, "clip_qkv", None) is not None:
        raise _unsupported(
            f"a {type(model).__name__} with config.clip_qkv, which clips queries, keys and values,"
        )
    if getattr(config, "use_bidirectional_attention", False):
        raise _unsupported(f"a {type(model).__name__} with config.use_bidirectional_attention")
    scale = config.hidden_size**0.5 if config.model_type.startswith("gemma") else 1.0
    scale = getattr(body, "embedding_multiplier", getattr(body.embed_tokens, "embed_scale", scale))
    logits = getattr(model, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    longest = parts.context(body.rotary_emb)
    if config.model_type == "ministral3":  # queries at later positions are multiplied
        longest = config.rope_parameters["original_max_position_embeddings"]

    def block(layer: Any, k: int) -> TransformerBlock:
        module = layer.self_attn
        kind = getattr(module, "attention_type", getattr(module, "layer_type", None))
        shape = AttentionShape(
            config.num_attention_heads,
            module.head_dim,
            scale=module.scaling,
            window=_window(module, config),
            cap=module.attn_logit_softcapping if config.model_type == "gemma2" else None,
            rotary=parts.rotary(body.rotary_emb, kind) if _turns(module, config) else None,
        )
        maps = None
        if hasattr(module, "qkv_proj"):
            queries = shape.heads * shape.width
            joined = Affine.from_module(module.qkv_proj)
            groups = (len(joined.weight) - queries) // 2
            maps = joined.parts(lambda rows: rows.split([queries, groups, groups]))
        norms, neighbours = _head_norms(module, config), config.model_type in NEIGHBOURS
        return _block(layer, module, shape, maps, norms=norms, neighbours=neighbours)

    return _model(model, body, block, context=longest, scale=scale, logits=logits)


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


def _head_norms(module: Any, config: Any) -> HeadNorms | None:
    """Norms of every head, with one gain for all of them or one for each; in OLMo 2 of all heads together."""
    query, key = (_stacked_norm(_part(module, f"{x}_norm {x}_layernorm", required=False)) for x in "qk")
    if query is None or key is None:
        return None
    together = query.gain.ndim == 1 and len(query.gain) != module.head_dim
    if query.gain.ndim == 1 and not together:
        heads = config.num_attention_heads, config.num_key_value_heads
        query, key = query.repeated(heads[0]), key.repeated(heads[1])
    query, key = (replace(norm, gain=norm.gain.flatten(), bias=norm.bias.flatten()) for norm in (query, key))
    return HeadNorms(query, key, together)


def _stacked_norm(module: Any) -> Norm | None:
    """Norm with gains of heads, [heads, h]; StableLM holds a norm for each head."""
    if not hasattr(module, "norms"):
        return None if module is None else Norm.from_module(module)
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
) -> ModelParts:
    """Model in parts; ``scale`` multiplies the embeddings and ``logits`` the logits."""
    tokens = parts.weights(_part(body, TOKENS).weight).mul_(scale)
    return ModelParts(
        model.config.model_type,
        TokenEmbedding(tokens, None if positions is None else parts.weights(positions), context=context),
        [block(layer, k) for k, layer in enumerate(_part(body, LAYERS))],
        Norm.from_module(_part(body, LAST_NORM)),
        Affine.from_module(_part(model, HEAD)).scaled(logits),
        getattr(model.config, "final_logit_softcapping", None),
    )


def _block(
    layer: Any,
    module: Any,
    shape: AttentionShape,
    maps: Sequence[Affine] | None = None,
    *,
    norms: HeadNorms | None = None,
    neighbours: bool = False,
    parallel: bool = False,
) -> TransformerBlock:
    """Block of a layer whose attention is ``module``, with the norms that it has.

    ``maps`` are queries, keys and values, where one matrix holds them. With one norm alone, both branches
    read what it puts out.
    """

    def norm(names: str) -> Norm | None:
        part = _part(layer, names, required=False)
        return None if part is None else Norm.from_module(part)

    if maps is None:
        maps = [Affine.from_module(getattr(module, name)) for name in ("q_proj", "k_proj", "v_proj")]
    (query, key, value), out = maps, Affine.from_module(_part(module, ATTENTION_OUT))
    first = parts.attention(shape, query, key, value, out, norms=norms, neighbours=neighbours)
    multiplier = getattr(layer, "residual_multiplier", 1.0)
    first, second = (replace(b, out=b.out.scaled(multiplier)) for b in (first, _mlp(layer)))
    before = norm(BEFORE_ATTENTION)
    if hasattr(layer, "post_feedforward_layernorm"):  # where `post_attention_layernorm` is no norm of the MLP
        middle = norm("pre_feedforward_layernorm")
        ends = norm("post_attention_layernorm"), norm("post_feedforward_layernorm")
    else:
        middle, ends = norm(BEFORE_MLP), (norm("post_self_attn_layernorm"), norm("post_mlp_layernorm"))
        parallel, middle = parallel or middle is None, middle or before
    return TransformerBlock(before, first, middle, second, parallel, *ends)


def _mlp(layer: Any) -> Branch:
    module = getattr(layer, "mlp", layer)
    activation, out = parts.frozen(_part(module, ACTIVATION)), Affine.from_module(_part(module, MLP_OUT))
    names = ("gate_up_proj",) if hasattr(module, "gate_up_proj") else ("gate_proj", "up_proj")
    if hasattr(module, names[0]):
        read = Affine.stack(*(Affine.from_module(getattr(module, name)) for name in names))
        return Branch(read, Gated(activation), out)
    return Branch(Affine.from_module(_part(module, MLP_IN)), Elementwise(activation), out)


def _part(module: Any, names: str, *, required: bool = True) -> Any:
    """Part of a module under the first of these names that it has; None where it has none."""
    found = (getattr(module, name, None) for name in names.split())
    part = next((part for part in found if part is not None), None)
    if part is None and required:
        raise AttributeError(f"{type(module).__name__} has no {' or '.join(names.split())}")
    return part


def _unsupported(description: str) -> InterbasisError:
    return InterbasisError(f"{description} is not supported; {GENERAL}")


FAMILIES: dict[str, Callable[[Any], ModelParts]] = {
    "gpt2": gpt2, "gpt_bigcode": gpt2, "gpt_neo": gpt_neo, "gpt_neox": gpt_neox, "gptj": gptj,
    "codegen": gptj, "opt": opt, "llama": llama, "mistral": llama, "ministral": llama, "ministral3": llama,
    "qwen2": llama, "qwen3": llama, "phi": llama, "phi3": llama, "gemma": llama, "gemma2": llama,
    "gemma3_text": llama, "olmo": llama, "olmo2": llama, "olmo3": llama, "smollm3": llama, "stablelm": llama,
    "starcoder2": llama, "granite": llama, "falcon": falcon, "cohere": llama, "cohere2": llama, "glm": llama,
    "glm4": llama, "helium": llama, "nemotron": llama, "exaone4": llama, "ernie4_5": llama, "seed_oss": llama,
    "arcee": llama, "apertus": llama,
}  # fmt: skip
"""Functions that read each of transformers' model types."""
