"""Small random models of every causal type of transformers, by which `families_table.py` knows what is taken.

A type's default configuration is made small by the names of its settings (`SIZES`); what is left is said
type by type (`SPECIAL`). Windows are shorter than the example, so that they are seen.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError

Settings = dict[str, object]
VOCABULARY = 23
POSITIONS = 6
MAX_PARAMETERS = 5_000_000
SMALL = {
    VOCABULARY: "vocab_size decoder_vocab_size text_vocab_size",
    64: "max_position_embeddings n_positions max_seq_len",
    20: "intermediate_size ffn_dim n_inner ffn_hidden_size decoder_ffn_dim encoder_ffn_dim dff d_ff dim_ff "
    "block_ff_dim dense_intermediate_size intermediate_size_mlp",
    16: "hidden_size d_model n_embd dim embed_dim word_embed_proj_dim embedding_size dim_model hidden_dim "
    "projection_dim",
    12: "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
    "moe_shared_expert_intermediate_size expert_ffn_hidden_size expert_ffn_size",
    8: "q_lora_rank kv_lora_rank qk_head_dim image_size",
    4: "num_attention_heads num_heads n_head n_heads decoder_attention_heads encoder_attention_heads "
    "attention_heads num_local_experts num_experts n_routed_experts moe_num_experts head_dim patch_size "
    "attention_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim",
    3: "sliding_window",
    2: "num_hidden_layers num_layers n_layer n_layers decoder_layers num_key_value_heads num_experts_per_tok "
    "moe_topk moe_k top_k_experts moe_top_k",
    1: "encoder_layers depth num_decoder_layers num_encoder_layers n_shared_experts num_shared_experts "
    "n_group topk_group eos_token_id",
    0: "bos_token_id pad_token_id decoder_start_token_id",
}
SIZES = {name: size for size, names in SMALL.items() for name in names.split()}
"""Small values of settings; a default of None stays."""
LATENT = "axk1 deepseek_v3 glm4_moe_lite minicpm3 youtu"
ENCODER_TOO = "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart"
HYBRID: Settings = {"layer_types": ["linear_attention", "full_attention"]}
LINEAR: Settings = {
    "linear_num_heads": 2, "linear_head_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 4, "linear_value_head_dim": 4,
}  # fmt: skip
INDEXED: Settings = {"num_key_value_heads": 4, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 3}
BY_LAYER: Settings = {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": VOCABULARY}
QWEN4: Settings = {
    "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 4, "indexer_budget": 4,
    "indexer_compress_ratio": 2, "ngram_vocab_size_base": 20, "heads_per_ngram": 2, "hc_lowrank": 4,
    "split_ngram_parts": 1, "make_ngram_vocab_size_divisible_by": 4,
}  # fmt: skip
GROUPS: Settings = {"num_expert_group": 1, "num_experts_per_token": 2}
SLID: Settings = {"layer_types": ["sliding_attention", "full_attention"]}
MAMBA: Settings = {
    "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_expand": 2,
}  # fmt: skip
ZAMBA: Settings = {
    "layers_block_type": ["linear_attention", "hybrid"], "mamba_d_state": 4, "n_mamba_heads": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "attention_head_dim": 8, "attention_hidden_size": 32,
}  # fmt: skip
SPECIAL: dict[str, Settings] = {
    **{kind: {"num_key_value_heads": 4} for kind in LATENT.split()},
    **{kind: {"encoder_layers": 2} for kind in ENCODER_TOO.split()},
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), HYBRID | LINEAR),
    **{kind: {"text_config": HYBRID | LINEAR} for kind in ("qwen3_5", "qwen3_5_moe")},
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa"), INDEXED),
    **dict.fromkeys(
        ("bailing_hybrid", "kimi_linear"),
        HYBRID | LINEAR | GROUPS | {"num_key_value_heads": 4, "mlp_layer_types": ["dense", "sparse"]},
    ),
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": SLID | {
        "num_key_value_heads": 2,
        "rope_parameters": {f"{x}_attention": {"rope_theta": 100.0} for x in ("full", "sliding")},
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 1.0}},
    "gptj": {"rotary_dim": 4},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 32, "mamba_chunk_size": 8},
    "gemma3n_text": SLID | BY_LAYER | {
        "num_kv_shared_layers": 0, "laurel_rank": 4, "activation_sparsity_pattern": [0.0, 0.0],
    },
    "gemma4": {"text_config": BY_LAYER},
    "gemma4_text": BY_LAYER,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 3},
    "granitemoehybrid": MAMBA | {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 4},
    "hunyuan_v1_moe": {"head_dim": 4},
    "inkling_text": {
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 4,
        "sliding_window_size": 3, "d_rel": 4, "rel_extent": 8,
    },
    "jetmoe": {"kv_channels": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {"num_key_value_heads": 4, "zero_expert_num": 2},
    "mamba2": {"num_heads": 4, "head_dim": 8, "state_size": 4, "n_groups": 1},
    "ministral": {"head_dim": 4},
    "nemotron": {"head_dim": 4, "num_key_value_heads": 2},
    "nemotron_h": {
        "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 4, "chunk_size": 8,
    },
    "qwen4_exp": {"text_config": HYBRID | LINEAR | QWEN4},
    "qwen4_exp_text": HYBRID | LINEAR | QWEN4,
    "recurrent_gemma": {"attention_window_size": 3},
    "reformer": {
        "is_decoder": True, "axial_pos_embds_dim": [8, 8], "axial_pos_shape": [8, 8],
        "attn_layers": ["local"] * 2, "attention_head_size": 4, "feed_forward_size": 20,
        "local_attn_chunk_length": 6,
    },
    "roc_bert": {"pronunciation_vocab_size": 9, "shape_vocab_size": 9, "enable_pronunciation": False},
    "stablelm": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "xlm": {"n_words": VOCABULARY, "emb_dim": 16},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": ZAMBA | {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "zamba2": ZAMBA | {"mamba_headdim": 16, "chunk_size": 8},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""What types require beyond small sizes."""


def tiny_config(kind: str, **settings: Any) -> Any:
    """Small configuration of a model type; ``settings`` go first.

    Raises:
        InterbasisError: transformers has no such type.
    """
    from transformers import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        raise InterbasisError(f"transformers has no model type {kind!r}")
    small = _shrunk(CONFIG_MAPPING[kind]())
    for name, value in (SPECIAL.get(kind, {}) | settings).items():
        inner = small.get(name)
        small[name] = inner | value if isinstance(value, dict) and isinstance(inner, dict) else value
    return CONFIG_MAPPING[kind](**small)


def _shrunk(config: Any) -> Settings:
    """Settings that are made small, those of configurations inside it among them."""
    from transformers import PretrainedConfig

    small: Settings = {}
    for name, value in vars(config).items():
        if name == "use_cache":
            small[name] = False
        elif name in SIZES and isinstance(value, int) and not isinstance(value, bool):
            small[name] = SIZES[name]
        elif isinstance(value, PretrainedConfig):
            small[name] = _shrunk(value) | {"model_type": value.model_type}
    return small


def tiny_model(kind: str, dtype: torch.dtype = torch.float32, **settings: Any) -> nn.Module:
    """Small random causal language model; no parameter is trivially 0 or 1."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(kind, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.device("meta"):
            count = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if count > MAX_PARAMETERS:
            raise InterbasisError(f"the small model of type {kind!r} has {count} parameters")
        torch.manual_seed(0)
        config._experts_implementation = "eager"  # others do not know float64
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return randomise(model).to(dtype).eval()


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Draw all parameters anew, small ones about their values; biases of routers are buffers."""
    generator = torch.Generator().manual_seed(0)
    for name, buffer in model.named_buffers():
        if name.endswith("bias") and buffer.ndim == 1:
            buffer.add_(0.3 * torch.randn(buffer.shape, generator=generator))
    for parameter in dict.fromkeys(model.parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            parameter.add_(0.3 * noise)
        else:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    return model


def tiny_tokens() -> Tensor:  # [2, POSITIONS]
    return torch.arange(2, 2 + 2 * POSITIONS).view(2, POSITIONS) * 7 % VOCABULARY
