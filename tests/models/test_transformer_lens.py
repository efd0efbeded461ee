"""A HookedTransformer as a network: its own logits, its weights folded or not, and what is refused."""

import warnings
from typing import Any

import pytest
import torch

from cases import gram_error
from interbasis import InterbasisError, build, from_hf
from interbasis.analysis.ablation.controls import shuffled
from interbasis.network.hooks import hook_names
from tiny_models import tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformer_lens", reason="TransformerLens is not installed")
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
    except ImportError:
        pytest.skip("this TransformerLens (4 or later) has no HookedTransformer", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROTARY = {"positional_embedding_type": "rotary"}
GROUPED = ROTARY | {"n_key_value_heads": 2, "normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu"}
LLAMA3 = {
    "use_NTK_by_parts_rope": True,
    "NTK_by_parts_factor": 4.0,
    "NTK_original_ctx_len": 16,
    "rotary_base": 100,
}
KINDS = {
    "gpt2": {"act_fn": "gelu_new"},
    "gpt2-scaled-by-layer": {"scale_attn_by_inverse_layer_idx": True, "act_fn": "gelu_fast"},
    "unscaled-local": {
        "use_attn_scale": False,
        "use_local_attn": True,
        "window_size": 3,
        "attn_types": ["global", "local"],
    },
    "own-scale": {"attn_scale": 3.0, "act_fn": "gelu"},
    "folded": {"normalization_type": "LNPre"},
    "no-norm": {"normalization_type": None},
    "no-norm-parallel": {"normalization_type": None, "parallel_attn_mlp": True},
    "attention-only": {"attn_only": True},
    "attention-only-no-norm": {"attn_only": True, "normalization_type": None},
    "bidirectional": {"attention_dir": "bidirectional"},
    "final-rms": {"final_rms": True},
    "folded-final-rms": {"final_rms": True, "normalization_type": "LNPre"},
    "embedding-norm": {"post_embedding_ln": True},
    "fewer-outputs": {"d_vocab_out": 7},
    "split-inputs": {"use_split_qkv_input": True, "use_attn_result": True, "use_hook_mlp_in": True},
    "neox": ROTARY | {"parallel_attn_mlp": True, "rotary_dim": 2},
    "gpt-j": ROTARY | {"parallel_attn_mlp": True, "rotary_adjacent_pairs": True},
    "gpt-j-partial": ROTARY | {"rotary_adjacent_pairs": True, "rotary_dim": 2, "d_head": 6},
    "llama": GROUPED,
    "llama-folded": GROUPED | {"normalization_type": "RMSPre"},
    "llama3": GROUPED | LLAMA3,
    "yarn": ROTARY | {"use_yarn_rope": True, "yarn_factor": 4.0, "yarn_attention_factor": 1.2},
    "gemma2": GROUPED
    | {
        "use_normalization_before_and_after": True,
        "attn_scores_soft_cap": 2.0,
        "output_logits_soft_cap": 3.0,
        "use_local_attn": True,
        "window_size": 3,
        "attn_types": ["local", "global"],
    },
    "qk-norm-adjacent-parallel": ROTARY
    | {"use_qk_norm": True, "rotary_adjacent_pairs": True, "parallel_attn_mlp": True},
    "qk-norm-no-norm": {"use_qk_norm": True, "normalization_type": None},
    "gemma3": GROUPED
    | {
        "use_qk_norm": True,
        "use_normalization_before_and_after": True,
        "use_local_attn": True,
        "window_size": 3,
        "attn_types": ["local", "global"],
        "rotary_base_local": 100.0,
        "rotary_scaling_factor": 8.0,
    },
}


def hooked(name: str, dtype: torch.dtype = torch.float64, **changed: Any) -> Any:
    """Small and random, nothing in it trivially 0."""
    settings = {
        "n_layers": 2, "d_model": 12, "n_ctx": 16, "n_heads": 4, "d_head": 4, "d_mlp": 18, "d_vocab": 23,
        "act_fn": "relu", "device": "cpu", "dtype": dtype, "seed": 0,
    }  # fmt: skip
    model = HookedTransformer(HookedTransformerConfig(**settings | KINDS[name] | changed)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            small = (1.0 if (parameter == 1).all() else 0.0) + 0.3 * noise
            parameter.copy_(small if parameter.ndim == 1 else noise * (1.5 / parameter.shape[-2] ** 0.5))
    return model


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_the_hooked_transformer(name: str) -> None:
    model, inputs = hooked(name), tokens()
    network = from_hf(model)
    with torch.no_grad():
        expected = model(inputs)
    assert expected.dtype == network.dtype == torch.double
    assert expected.abs().max() > 0.1
    assert (network(inputs) - expected).abs().max() <= 1e-9


@pytest.mark.parametrize("name", ["gpt2", "embedding-norm", "llama", "gpt-j", "gemma2"])
def test_processed_weights_are_taken_as_they_are(name: str) -> None:
    model, inputs = hooked(name), tokens()
    plain = model(inputs).detach()
    layer_norm = model.cfg.normalization_type == "LN"
    model.load_and_process_state_dict(
        model.state_dict(),
        fold_ln=True,
        center_writing_weights=layer_norm,
        center_unembed=name != "gemma2",
        fold_value_biases=name == "gpt2",
        refactor_factored_attn_matrices=False,
    )
    assert model.cfg.normalization_type == ("LNPre" if layer_norm else "RMSPre")
    for block in model.blocks:
        if model.cfg.positional_embedding_type == "rotary":  # rounded to float32 on the way
            block.attn._extend_rotary_embeddings(16)
    expected = model(inputs).detach()
    assert (expected - plain).abs().max() > 1e-12
    assert (expected.log_softmax(-1) - plain.log_softmax(-1)).abs().max() <= 1e-5
    network = from_hf(model)
    assert (network(inputs) - expected).abs().max() <= 1e-9
    if layer_norm and name != "embedding-norm":
        x = network.activations(inputs)[0][..., 1:]
        assert x.mean(-1).abs().max() <= 1e-6  # TransformerLens centres in float32


def test_node_layers_are_named_as_for_other_models() -> None:
    block = ["ln1.0", "ln1_out.0", "attn_in.0", "ln2.0", "ln2_out.0", "mlp_in.0"]
    assert from_hf(hooked("gpt2")).layers[:6] == block
    assert from_hf(hooked("no-norm")).layers == ["attn_in.0", "mlp_in.0", "attn_in.1", "mlp_in.1", "unembed"]
    assert from_hf(hooked("attention-only")).layers[3:] == [
        "ln1.1", "ln1_out.1", "attn_in.1", "ln_final", "ln_final_out", "unembed"
    ]  # fmt: skip
    assert from_hf(hooked("attention-only-no-norm"), 1).layers == ["attn_in.1", "unembed"]
    assert from_hf(hooked("no-norm-parallel"), 0).layers == ["attn_in.0", "mlp_in.0", "attn_in.1"]
    assert from_hf(hooked("gpt2"), output=True).layers[-1] == "output"


@pytest.mark.parametrize("name", ["gpt2", "folded", "no-norm", "llama", "gpt-j", "attention-only"])
def test_hooks_see_what_node_layers_hold(name: str) -> None:
    model, inputs = hooked(name), tokens()
    network = from_hf(model)
    with torch.no_grad():
        _, cache = model.run_with_cache(inputs)
    hooks = hook_names(network.layers)
    assert hooks
    for layer, f in zip(network.layers, network.activations(inputs), strict=True):
        if layer not in hooks or (model.cfg.parallel_attn_mlp and "ln2" in layer):
            continue  # a parallel block has no stream between attention and MLP in TransformerLens
        seen = cache[hooks[layer]]
        if hooks[layer].endswith("hook_scale"):
            ours = (f[..., 1:2] + model.cfg.eps).sqrt()
        else:  # what TransformerLens calls normalized is before the norm's gain, as here
            ours = f[..., 1 : 1 + seen.shape[-1]]
        assert (ours - seen).abs().max() <= 1e-9, layer


@pytest.mark.parametrize(
    "name", ["no-norm-parallel", "attention-only", "gpt-j-partial", "yarn", "gemma2", "gemma3"]
)
def test_every_section_in_closed_form_against_per_sample_jacobians(name: str) -> None:
    network = from_hf(hooked(name))
    for section, f in zip(network.sections, network.activations(tokens(2, 5)), strict=False):
        assert gram_error(section, f) <= 1e-10, section


def test_a_basis_and_edges_of_one() -> None:
    graph = build(from_hf(hooked("no-norm")), tokens(12)).graph
    assert all(edges.isfinite().all() and edges.abs().max() > 0 for edges in graph.edges)


def test_the_fingerprint_is_that_of_the_weights() -> None:
    assert from_hf(hooked("gpt2")).fingerprint() == from_hf(hooked("gpt2")).fingerprint()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"act_fn": "solu_ln"}, "cfg.act_fn 'solu_ln'"),
        ({"positional_embedding_type": "shortformer"}, "'shortformer'"),
        ({"positional_embedding_type": "alibi"}, "'alibi'"),
        ({"num_experts": 2, "experts_per_token": 1}, "mixture of experts"),
        ({"clip_qkv": 1.0}, "cfg.clip_qkv"),
    ],
)
def test_what_is_not_read_is_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(InterbasisError, match=named) as caught:
        from_hf(hooked("gpt2", **changed))
    assert "General" in str(caught.value)


def test_a_hook_that_stays_is_noticed() -> None:
    model = hooked("gpt2")
    model.blocks[0].hook_mlp_out.add_perma_hook(lambda value, hook: 2 * value)
    with pytest.raises(InterbasisError, match="off by"):
        from_hf(model)


@pytest.mark.parametrize("name", KINDS)
def test_scrambled_weights_are_those_of_the_scrambled_model(name: str) -> None:
    model, inputs = hooked(name), tokens()
    network = from_hf(model)
    before = network(inputs)
    other = shuffled(network, 5)
    stored = {n: p.detach().clone() for n, p in model.named_parameters()}
    stay = {"embed.W_E", "pos_embed.W_pos"}
    names = sorted(n for n in stored if n.split(".")[-1].lstrip("_").startswith("W_") and n not in stay)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for n in names:
            order = torch.randperm(stored[n].numel(), generator=generator)
            model.get_parameter(n).copy_(stored[n].flatten()[order].view_as(stored[n]))
        expected = model(inputs)
    assert (other(inputs) - expected).abs().max() <= 1e-9
    assert not torch.allclose(expected, before)
    assert torch.equal(network(inputs), before)
