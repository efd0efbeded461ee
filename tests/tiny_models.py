"""A small random causal language model of every Hugging Face family, nothing in it trivially 0."""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL = {"vocab_size": 23, "bos_token_id": 0, "eos_token_id": 1}
ROTARY = {"hidden_size": 12, "intermediate_size": 18, "num_hidden_layers": 2, "pad_token_id": 0}
GROUPED = ROTARY | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}


def configs() -> dict[str, Any]:
    import transformers as t

    neo = {"hidden_size": 12, "num_layers": 2, "num_heads": 3, "max_position_embeddings": 16}
    neox = ROTARY | {"num_attention_heads": 2}
    gemma2 = {"query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    opt = {"hidden_size": 12, "ffn_dim": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
    return {
        "gpt2": t.GPT2Config(n_embd=12, n_layer=2, n_head=3, n_positions=16, **SMALL),
        "gpt2-odd": t.GPT2Config(
            n_embd=12, n_layer=2, n_head=3, n_positions=16, scale_attn_by_inverse_layer_idx=True,
            activation_function="relu", tie_word_embeddings=False, **SMALL,
        ),
        "gpt_neo": t.GPTNeoConfig(attention_types=[[["global", "local"], 1]], window_size=3, **neo, **SMALL),
        "gpt_neox": t.GPTNeoXConfig(rotary_pct=0.5, **neox, **SMALL),
        "gpt_neox-sequential": t.GPTNeoXConfig(use_parallel_residual=False, **neox, **SMALL),
        "llama": t.LlamaConfig(attention_bias=True, mlp_bias=True, **GROUPED, **SMALL),
        "llama3-tied": t.LlamaConfig(
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
            },
            **GROUPED, **SMALL,
        ),
        "mistral": t.MistralConfig(sliding_window=3, **GROUPED, **SMALL),
        "qwen2": t.Qwen2Config(
            use_sliding_window=True, sliding_window=3, max_window_layers=1,
            **{k: v for k, v in (GROUPED | {"hidden_size": 16}).items() if k != "head_dim"}, **SMALL,
        ),
        "gemma": t.GemmaConfig(**GROUPED, **SMALL),
        "gemma2": t.Gemma2Config(sliding_window=3, **gemma2, **GROUPED, **SMALL),
        "gemma3": t.Gemma3TextConfig(
            sliding_window=3, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=5,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 300.0},
            },
            **GROUPED, **SMALL,
        ),
        "llama-linear": t.LlamaConfig(
            rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}, **GROUPED, **SMALL
        ),
        "llama-yarn": t.LlamaConfig(
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
            **GROUPED, **SMALL,
        ),
        "qwen3": t.Qwen3Config(
            use_sliding_window=True, sliding_window=3, max_window_layers=1, **GROUPED, **SMALL
        ),
        "phi3": t.Phi3Config(
            sliding_window=3,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
            **{k: v for k, v in (GROUPED | {"hidden_size": 16}).items() if k != "head_dim"}, **SMALL,
        ),
        "opt": t.OPTConfig(word_embed_proj_dim=12, max_position_embeddings=16, **opt, **SMALL),
    } | _relatives(t)  # fmt: skip


def _relatives(t: Any) -> dict[str, Any]:
    """Of Llama, GPT-J and Falcon, each with what is odd about it."""
    ungrouped = {k: v for k, v in (GROUPED | {"hidden_size": 16}).items() if k != "head_dim"}
    one_key = GROUPED | {"num_key_value_heads": 1}
    half = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    slid = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
    gptj = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16, "tie_word_embeddings": False}
    falcon = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 20}
    long = {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "partial_rotary_factor": 1.0,
        "short_factor": [1.0, 1.5],
        "long_factor": [2.0, 3.0],
        "original_max_position_embeddings": 16,
    }
    ministral3 = {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.1,
    }
    return {
        "gpt_bigcode": t.GPTBigCodeConfig(**gptj, **SMALL),
        "gpt_bigcode-heads": t.GPTBigCodeConfig(multi_query=False, **gptj, **SMALL),
        "gptj": t.GPTJConfig(rotary_dim=2, **gptj, **SMALL),
        "codegen": t.CodeGenConfig(rotary_dim=4, **gptj, **SMALL),
        "falcon": t.FalconConfig(bias=True, **falcon, **SMALL),
        "falcon-groups": t.FalconConfig(new_decoder_architecture=True, num_kv_heads=2, **falcon, **SMALL),
        "falcon-plain": t.FalconConfig(multi_query=False, parallel_attn=False, **falcon, **SMALL),
        "llama-dynamic": t.LlamaConfig(
            rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0},
            max_position_embeddings=16, **one_key, **SMALL,
        ),
        "phi3-long": t.Phi3Config(
            rope_parameters=long, original_max_position_embeddings=16, max_position_embeddings=64,
            **ungrouped, **SMALL,
        ),
        "ministral": t.MinistralConfig(**slid, **GROUPED, **SMALL),
        "ministral3": t.Ministral3Config(rope_parameters=ministral3, **GROUPED, **SMALL),
        "phi": t.PhiConfig(rope_parameters=half, **ungrouped, **SMALL),
        "phi-normed": t.PhiConfig(qk_layernorm=True, rope_parameters=half, **ungrouped, **SMALL),
        "olmo": t.OlmoConfig(**ungrouped, **SMALL),
        "olmo2": t.Olmo2Config(**ungrouped, **SMALL),
        "olmo3": t.Olmo3Config(
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 300.0, "factor": 8.0,
                    "original_max_position_embeddings": 16,
                },
            },
            **slid, **ungrouped, **SMALL,
        ),
        "smollm3": t.SmolLM3Config(
            no_rope_layers=[1, 0], use_sliding_window=True, sliding_window=3, **GROUPED, **SMALL
        ),
        "stablelm": t.StableLmConfig(use_qkv_bias=True, rope_parameters=half, **ungrouped, **SMALL),
        "stablelm-parallel": t.StableLmConfig(
            use_parallel_residual=True, qk_layernorm=True, rope_parameters=half, **ungrouped, **SMALL
        ),
        "starcoder2": t.Starcoder2Config(sliding_window=3, **ungrouped, **SMALL),
        "granite": t.GraniteConfig(
            attention_multiplier=0.3, embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=2.0,
            **ungrouped, **SMALL,
        ),
        "cohere": t.CohereConfig(use_qk_norm=True, logit_scale=0.3, **ungrouped, **SMALL),
        "cohere2": t.Cohere2Config(logit_scale=0.3, **slid, **GROUPED, **SMALL),
        "glm": t.GlmConfig(attention_bias=True, rope_parameters=half, **GROUPED, **SMALL),
        "glm4": t.Glm4Config(rope_parameters=half, **GROUPED, **SMALL),
        "helium": t.HeliumConfig(**(GROUPED | {"hidden_size": 16}), **SMALL),
        "nemotron": t.NemotronConfig(rope_parameters=half, **GROUPED, **SMALL),
        "exaone4": t.Exaone4Config(**slid, **GROUPED, **SMALL),
        "ernie4_5": t.Ernie4_5Config(use_bias=True, **GROUPED, **SMALL),
        "seed_oss": t.SeedOssConfig(attention_out_bias=True, **GROUPED, **SMALL),
        "arcee": t.ArceeConfig(mlp_bias=True, **GROUPED, **SMALL),
        "apertus": t.ApertusConfig(**ungrouped, **SMALL),
        "gemma3-images": t.Gemma3Config(
            text_config=t.Gemma3TextConfig(sliding_window=3, **GROUPED, **SMALL),
            vision_config=t.SiglipVisionConfig(
                hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                image_size=8, patch_size=4,
            ),
            mm_tokens_per_image=4,
        ),
    }  # fmt: skip


def random_model(name: str, dtype: torch.dtype = torch.float64) -> "PreTrainedModel":
    """With every parameter drawn anew: gains about 1, biases and all else not small."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what transformers' GPT-BigCode is made with
        model = AutoModelForCausalLM.from_config(configs()[name], attn_implementation="eager")
    model = model.to(dtype).eval()
    gemma = name.startswith("gemma")
    with torch.no_grad():
        for parameter in dict.fromkeys(model.parameters()):
            noise = torch.randn_like(parameter)
            if parameter.ndim == 1:
                gain = (parameter == 1).all() and not gemma
                parameter.copy_((1.0 if gain else 0.0) + 0.3 * noise)
            else:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
    return model


def tokens(samples: int = 3, positions: int = 8, vocabulary: int = 23, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (samples, positions), generator=generator)
