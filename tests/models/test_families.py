"""Model types of transformers on small random models: logits, derivatives, options, and the table of all."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cases import gram_error
from interbasis import InterbasisError, build, from_hf, open_run
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.plan import make_plan
from interbasis.network.cores import Experts, General
from interbasis.numerics.integration import rule
from interbasis.show.tables import result_tables
from models.odd_options import check_odd
from pages import ROOT
from reference import edges, jacobian_gram, looped_jacobians, relative_error
from widths import printed

pytest.importorskip("transformers")

from interbasis.models.hf.families_table import causal_types, families_table, family_row
from interbasis.models.hf.tiny import tiny_model, tiny_tokens

OTHERS = {
    "aria_text", "axk1", "dots1", "exaone_moe", "flex_olmo", "glm4_moe_lite", "granitemoe_swa", "hy_v3",
    "kolibri1", "mellum", "minimax_m2", "solar_open", "vaultgemma", "youtu", "whisper", "openai-gpt",
}  # fmt: skip
ODD: dict[str, Any] = {
    "olmoe": {"norm_topk_prob": True, "num_experts_per_tok": 3},
    "qwen2_moe": {"norm_topk_prob": True, "decoder_sparse_step": 2},
    "qwen3_moe": {"norm_topk_prob": False, "sliding_window": None, "attention_bias": True},
    "mixtral": {"num_experts_per_tok": 1, "sliding_window": 2},
    "deepseek_v3": {"n_group": 2, "topk_group": 1, "norm_topk_prob": False, "first_k_dense_replace": 0},
    "deepseek_v2": {
        "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1, "q_lora_rank": None,
        "v_head_dim": 6, "first_k_dense_replace": 1, "num_key_value_heads": 4, "num_experts_per_tok": 2,
    },
    "glm4_moe": {"use_qk_norm": True, "n_group": 2, "topk_group": 1, "norm_topk_prob": False},
    "gpt_oss": {"swiglu_limit": 0.5, "num_experts_per_tok": 3, "sliding_window": 2},
    "cohere2_moe": {"expert_selection_fn": "sigmoid", "norm_topk_prob": False},
    "granitemoe": {"residual_multiplier": 0.4, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "granitemoeshared": {"residual_multiplier": 0.4, "attention_multiplier": 0.3},
    "hyperclovax": {"residual_multiplier": 0.4, "logits_scaling": 2.0, "embedding_multiplier": 3.0},
    "llama4_text": {"use_qk_norm": False, "no_rope_layers": [1, 0], "interleave_moe_layer_step": 2},
    "ernie4_5_moe": {"use_bias": True, "moe_num_shared_experts": 0},
    "minicpm3": {"q_lora_rank": 6, "kv_lora_rank": 10, "v_head_dim": 10, "num_key_value_heads": 4},
    "bart": {"scale_embedding": True, "activation_function": "relu", "encoder_layers": 2},
    "mbart": {"scale_embedding": True, "encoder_layers": 2},
    "bloom": {"n_head": 8},
    "mpt": {"n_heads": 8},
    "nanochat": {"attention_bias": True, "final_logit_softcapping": 2.0},
    "bitnet": {"hidden_act": "silu", "attention_bias": True},
}  # fmt: skip
"""Options beyond the defaults of small models."""
SAMPLE = ("gpt_oss", "deepseek_v3", "llama4_text", "bloom", "bart", "bitnet", "afmoe", "nanochat")
RANDOM_SAMPLE = (
    "gemma2", "qwen3_moe", "stablelm", "falcon", "blenderbot-small", "cohere2", "minicpm3", "mpt",
    "recurrent_gemma", "falcon_h1", "doge", "olmo_hybrid",
)  # fmt: skip
"""Types whose options are drawn in `make test`; those of all are in `make slow`."""
WITHOUT_A_SMALL_MODEL = {
    "blt", "gemma3n", "gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody",
}  # fmt: skip
GENERAL = {"state space": "mamba", "linear attention": "qwen3_next", "recurrence": "rwkv"}


def check_type(kind: str, **options: Any) -> None:
    """Logits of both, and every section's Jacobian Gram against per-sample Jacobians, in float64."""
    model = tiny_model(kind, torch.float64, **options)
    network = from_hf(model)
    with torch.no_grad():
        expected = model(tiny_tokens()).logits
        assert relative_error(network(tiny_tokens()), expected) <= 1e-9
        assert relative_error(network(tiny_tokens()[:, :4]), model(tiny_tokens()[:, :4]).logits) <= 1e-9
    assert not any(isinstance(section.core, General) for section in network.sections)
    for section, f in zip(network.sections, network.activations(tiny_tokens()[:, :4]), strict=False):
        assert gram_error(section, f) <= 1e-10, section


@pytest.mark.parametrize("kind", SAMPLE)
def test_types_of_a_sample(kind: str, all_in_float64: None) -> None:
    check_type(kind, **ODD.get(kind, {}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(ODD.keys() | OTHERS))
def test_types_with_odd_options(kind: str, all_in_float64: None) -> None:
    check_type(kind, **ODD.get(kind, {}))


@pytest.mark.parametrize("kind", RANDOM_SAMPLE)
def test_random_options_of_a_sample(kind: str, all_in_float64: None) -> None:
    check_odd(kind, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", causal_types())
def test_random_options_of_every_type(kind: str, all_in_float64: None) -> None:
    """Logits, their gradients by the embedded tokens and Jacobian Grams, or a refusal."""
    try:
        tiny_model(kind)(tiny_tokens())
    except Exception:  # whatever a configuration may cause in somebody else's code
        assert kind in WITHOUT_A_SMALL_MODEL
        return
    for seed in range(2):
        check_odd(kind, seed)


@pytest.mark.slow
def test_every_type_of_the_table() -> None:
    """None is silently wrong (`family_row` fails if one is), and the page says what was found."""
    table = families_table()
    assert len(table.rows) == len(causal_types())
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    written = dict(re.findall(r"^\| `([^`]+)` \| ([a-z ]+?) \|", page, re.MULTILINE))
    assert written == {row.kind: row.way for row in table.rows}
    assert table.count("closed form") >= 90
    assert table.count("closed form") + table.count("general") >= 150


@pytest.mark.parametrize("kind", GENERAL.values(), ids=GENERAL)
def test_types_without_a_closed_form_have_a_section_for_each_block(kind: str, all_in_float64: None) -> None:
    model = tiny_model(kind, torch.float64)
    network = from_hf(model)
    assert network.layers == ["block.0", "block.1", "end"]
    assert all(isinstance(section.core, General) for section in network.sections)
    tokens = tiny_tokens()[:, :4]
    with torch.no_grad():
        assert relative_error(network(tokens), model(tokens).logits) <= 1e-9
    assert from_hf(model, "1").layers == ["block.1", "end"]
    graph = build(network, tokens, exact=True, norm_limit=0).graph
    for k, (section, f) in enumerate(zip(network.sections, network.activations(tokens), strict=False)):
        source, target = graph.layers[k : k + 2]
        assert relative_error(graph.edges[k], edges(section, f, source, target)) <= 1e-10
        # the two conditions that define the basis: JᵀJ is the identity between features, their covariance Λ
        gram = jacobian_gram(section, f, target.transform, jacobians=looped_jacobians)
        identity = (source.inverse.T @ gram @ source.inverse)[1:, 1:]
        assert relative_error(identity, torch.eye(len(identity)).double()) <= 1e-10
        features = (f @ source.transform.T).flatten(0, 1)[:, 1:]
        expected = torch.diag(source.eigenvalues[1:])
        assert relative_error(features.T @ features / len(features), expected) <= 1e-10


@pytest.mark.parametrize("kind", GENERAL.values(), ids=GENERAL)
def test_plans_of_types_without_a_closed_form(kind: str) -> None:
    """Time and memory of an exact build and of others."""
    network, tokens = from_hf(tiny_model(kind)), torch.randint(23, (16, 8))
    config = with_network_defaults(network, BuildConfig())
    plan = make_plan(kind, network.to(config.torch_dtype), BuildData.from_data(tokens), config)
    assert all(choice.seconds.processor > 0 for choice in (plan.exact, *plan.targets.values()))
    assert plan.exact.settings != plan.targets[0.2].settings
    assert plan.memory > 0


def test_build_ablation_and_trace_of_a_general_model_and_one_of_experts() -> None:
    for kind in ("mamba2", "olmoe"):
        network = from_hf(tiny_model(kind), 0)
        run = build(network, tiny_tokens(), basis="lib", exact=True)
        assert all(rms.isfinite().all() for rms in run.graph.edges)
        everything = {network.layers[-2]: torch.ones_like(run.graph.edges[-1]).bool()}
        masked = run.masked_output(tiny_tokens(), edges=everything)
        assert relative_error(masked, network(tiny_tokens())) <= 1e-6
    assert any(isinstance(section.core, Experts) for section in network.sections)
    assert run.trace(sample=0, checks=1, method="gradient").trace.nodes


def test_changed_choices_and_experts_of_an_edge(tmp_path: Path) -> None:
    """Counted in the build, stored, shown; the shares of an edge add up, and its Ê is the graph's."""
    model = tiny_model("deepseek_v3", torch.float64, first_k_dense_replace=0)
    network, tokens = from_hf(model, 0), tiny_tokens()
    run = build(network, tokens, exact=True, edge_method="quadrature", edge_points=4, norm_limit=0)
    core: Any = network.sections[-1].core
    layer = run.graph.layers[-2]
    f = network.activations(tokens)[-2] @ layer.transform.T @ layer.inverse.T
    u, nodes = network.sections[-1].read_outs(f).flatten(0, 1), rule("quadrature", 4).nodes
    choices = [core.router.visits(a * u @ core.router.weight.T).experts.sort(1).values for a in (*nodes, 1.0)]
    expected = torch.stack([(choice != choices[-1]).any(1) for choice in choices]).any(0).double().mean()
    run.save(tmp_path / "run")
    again = open_run(tmp_path / "run", network=network, data=tokens)
    assert 0 < expected < 1
    assert again.graph.provenance.changed_choices == {"mlp_in.0": pytest.approx(expected.item())}
    assert "other experts" in printed(result_tables(again.summary()), None)
    rms = run.graph.edges[-1]
    i, j = divmod(int(rms[1:, 1:].argmax()), rms.shape[1] - 1)
    found = again.edge_experts(f"mlp_in.0:{j + 1}", f"ln1.1:{i + 1}")
    assert found.rms == pytest.approx(rms[i + 1, j + 1].item(), rel=1e-9)
    assert found.skip + sum(row.share for row in found.experts) == pytest.approx(1)
    assert "past the experts" in printed(result_tables(found), None)
    with pytest.raises(InterbasisError, match=r"across experts, .* feature of mlp_in\.0"):
        again.edge_experts("ln1.0:1", "ln1_out.0:2")


def test_types_that_are_refused_say_why() -> None:
    row = family_row("xlnet")
    assert (row.way, "list of blocks" in row.reason) == ("refused", True)
    with pytest.raises(InterbasisError, match=r"no causal language model .*'vit'"):
        family_row("vit")
    with pytest.raises(InterbasisError, match=r"MambaForCausalLM.*leave out output=True"):
        from_hf(tiny_model("mamba"), output=True)
