"""Networks with scrambled weights: as if the model was scrambled and converted again, or refused."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import interbasis
from cases import ACTIVATIONS, CASES, mlp, modular_addition, normal, plain_transformer, seeded
from interbasis import InterbasisError, Network
from interbasis.analysis.ablation.controls import ControlPlan, reinitialised, shuffled
from interbasis.analysis.stages.controls import ControlsRequest
from interbasis.models import modadd
from small_runs import control_rows

pytest.importorskip("transformers")

from tiny_models import configs, random_model, tokens

KINDS = {"shuffled": shuffled, "reinitialised": reinitialised}
BY_TURNS = {(name, [*KINDS][k % 2]) for k, name in enumerate(configs())} | {("gpt2", kind) for kind in KINDS}
"""Every family with one kind, and one with both."""
LLAMA = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
FALCON = "query_key_value dense dense_h_to_4h dense_4h_to_h"
MATRICES = {
    "gpt2": "c_attn c_proj c_fc",
    "gpt2-odd": "c_attn c_proj c_fc lm_head",
    "gpt_neo": "q_proj k_proj v_proj out_proj c_fc c_proj",
    "gpt_neox": "query_key_value dense dense_h_to_4h dense_4h_to_h embed_out lm_head",
    "gpt_neox-sequential": "query_key_value dense dense_h_to_4h dense_4h_to_h embed_out lm_head",
    "llama3-tied": LLAMA,
    "gemma": LLAMA,
    "gemma2": LLAMA,
    "gemma3": LLAMA,
    "gemma3-images": LLAMA,
    "phi3": "qkv_proj o_proj gate_up_proj down_proj lm_head",
    "phi3-long": "qkv_proj o_proj gate_up_proj down_proj lm_head",
    "opt": "q_proj k_proj v_proj out_proj fc1 fc2",
    "gpt_bigcode": "c_attn c_proj c_fc lm_head",
    "gpt_bigcode-heads": "c_attn c_proj c_fc lm_head",
    "gptj": "q_proj k_proj v_proj out_proj fc_in fc_out lm_head",
    "codegen": "qkv_proj out_proj fc_in fc_out lm_head",
    "falcon": FALCON,
    "falcon-groups": FALCON,
    "falcon-plain": FALCON,
    "phi": "q_proj k_proj v_proj dense fc1 fc2 lm_head",
    "phi-normed": "q_proj k_proj v_proj dense fc1 fc2 lm_head",
    "starcoder2": "q_proj k_proj v_proj o_proj c_fc c_proj lm_head",
    "glm": "q_proj k_proj v_proj o_proj gate_up_proj down_proj lm_head",
    "glm4": "q_proj k_proj v_proj o_proj gate_up_proj down_proj lm_head",
    "cohere": LLAMA,
    "cohere2": LLAMA,
    "smollm3": LLAMA,
}
"""The modules whose weights are the model's matrices, where they are others than Llama's and an unembedding
of its own; a tied one is an embedding."""


OTHERS = {
    "wte", "wpe", "embed_tokens", "embed_positions", "embed_in", "word_embeddings", "q_norm", "k_norm",
    "multi_modal_projector",
}  # fmt: skip
"""Modules that hold tensors which are no matrices of the language model."""


def scramble(kind: str, matrices: list[Tensor], seed: int) -> list[Tensor]:
    """As one would do it by hand."""
    generator = seeded(seed)
    if kind == "shuffled":
        orders = [torch.randperm(w.numel(), generator=generator) for w in matrices]
        return [w.flatten()[order].view_as(w) for w, order in zip(matrices, orders, strict=True)]
    return [torch.randn(w.shape, generator=generator, dtype=torch.float64) * w.std() for w in matrices]


@torch.no_grad()
def scramble_module(kind: str, module: nn.Module, names: list[str], seed: int) -> nn.Module:
    module = deepcopy(module)
    matrices = [module.get_parameter(name) for name in names]
    for matrix, new in zip(matrices, scramble(kind, [*matrices], seed), strict=True):
        matrix.copy_(new)
    return module


def matrices_of(model: nn.Module, name: str) -> list[str]:
    last = MATRICES.get(name, LLAMA + " lm_head").split()
    return sorted(
        n
        for n, _ in model.named_parameters()
        if n.split(".")[-2] in last and n.endswith(".weight") and "vision" not in n
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*ACTIVATIONS, "no-bias", "linear", "positionwise", "general"])
def test_an_mlp_is_the_scrambled_module(name: str, kind: str) -> None:
    case = CASES[name]()
    linears = [n for n, m in case.original.named_modules() if isinstance(m, nn.Linear)]
    expected = scramble_module(kind, case.original, [f"{n}.weight" for n in linears], 5)
    before = case.network(case.inputs)
    found = KINDS[kind](case.network, 5)
    assert (found(case.inputs) - expected(case.inputs)).abs().max() <= 1e-12
    assert torch.equal(found(case.inputs), KINDS[kind](case.network, 5)(case.inputs))
    assert not torch.allclose(found(case.inputs), before)
    assert not torch.allclose(found(case.inputs), KINDS[kind](case.network, 6)(case.inputs))
    assert torch.equal(case.network(case.inputs), before)
    assert torch.allclose(case.original(case.inputs), before)


def test_an_mlp_keeps_its_structure() -> None:
    case = mlp(nn.ReLU(), widths=(30, 64, 64, 10))
    for change in KINDS.values():
        other = change(case.network, 1)
        for mine, theirs in zip(case.network.sections[:2], other.sections[:2], strict=True):
            assert torch.equal(mine.write, theirs.write)
            assert torch.equal(mine.skip, theirs.skip)
        for f in other.activations(case.inputs)[1:3]:
            assert (f >= 0).all()
            assert (f > 0).flatten(0, 1).any(0).float().mean() > 0.9  # no units that the scrambling killed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [1, 2])
def test_modular_addition_is_the_scrambled_checkpoint(blocks: int, kind: str) -> None:
    case = modular_addition(blocks)
    names = sorted(n for n in case.weights if ".W_" in n and n not in ("embed.W_E", "pos_embed.W_pos"))
    assert len(names) == 6 * blocks + 1
    new = dict(zip(names, scramble(kind, [case.weights[n] for n in names], 5), strict=True))
    expected = plain_transformer(case.weights | new, blocks, case.inputs)[:, -1]
    assert (KINDS[kind](case.network, 5)(case.inputs) - expected).abs().max() <= 1e-12
    cut = case.network.between(case.network.layers[1:])
    assert (KINDS[kind](cut, 5)(case.inputs) - expected).abs().max() <= 1e-12
    turned = dict(reversed(case.weights.items()))
    again = modadd.from_weights(turned)
    assert torch.equal(KINDS[kind](again, 5)(case.inputs), KINDS[kind](case.network, 5)(case.inputs))


@pytest.mark.parametrize(("name", "kind"), sorted(BY_TURNS))
def test_a_language_model_is_the_scrambled_module(name: str, kind: str) -> None:
    model, inputs = random_model(name), tokens()
    network = interbasis.from_hf(model)
    names = matrices_of(model, name)
    others = {n for n, p in model.named_parameters() if p.ndim > 1 and "vision" not in n} - set(names)
    assert {n.split(".")[-2] for n in others} <= OTHERS
    expected = interbasis.from_hf(scramble_module(kind, model, names, 5))
    found = KINDS[kind](network, 5)
    assert (found(inputs) - expected(inputs)).abs().max() <= 1e-12
    assert found.fingerprint() == expected.fingerprint()
    assert not torch.allclose(found(inputs), network(inputs))
    assert torch.equal(network(inputs), interbasis.from_hf(random_model(name))(inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_neox"])
def test_a_language_model_keeps_its_structure(name: str, kind: str) -> None:
    """The variance of a layer norm is the variance of its stream, whatever the weights are."""
    other = KINDS[kind](interbasis.from_hf(random_model(name)), 2)
    activations = dict(zip(other.layers, other.activations(tokens()), strict=True))
    checked = 0
    for layer, f in activations.items():
        assert (f[..., 0] == 1).all()
        if layer.startswith(("ln1_out", "ln_final_out")):
            x = f[..., 2:]
            true = x.square().mean(-1) - (x.mean(-1).square() if name in ("gpt2", "gpt_neox") else 0)
            assert (f[..., 1] - true).abs().max() <= 1e-12 * true.max()
            checked += 1
    assert checked == 3


def test_a_cut_and_another_dtype_are_those_of_the_scrambled_whole(tmp_path: Path) -> None:
    model, inputs = random_model("gpt2"), tokens()
    whole = shuffled(interbasis.from_hf(model), 3)
    cut = shuffled(interbasis.from_hf(model, 1), 3)
    assert cut.layers == whole.layers[6:13]
    assert (cut(inputs) - whole(inputs)).abs().max() <= 1e-12
    assert torch.equal(cut.activations(inputs)[0], whole.activations(inputs)[6])
    rounded = shuffled(interbasis.from_hf(model, 1).to(torch.float32).double(), 3)
    assert rounded.dtype == torch.float64
    assert rounded.fingerprint() == cut.fingerprint()
    model.save_pretrained(tmp_path)
    loaded = shuffled(interbasis.from_hf(tmp_path, output=True), 3)
    assert loaded.layers[-1] == "output"
    assert (loaded(inputs) - whole(inputs)).abs().max() <= 1e-12


def test_what_is_shared_is_changed_once_and_embeddings_not() -> None:
    torch.manual_seed(0)
    twice = nn.Linear(4, 4)
    module = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm((1, 4)), twice, nn.Tanh(), twice).double()
    with torch.no_grad():
        module[1].weight.copy_(normal(1, 4))
    network = interbasis.from_torch(module)
    inputs = torch.arange(8).view(8, 1)
    expected = scramble_module("shuffled", module, ["2.weight"], 7)
    assert (shuffled(network, 7)(inputs) - expected(inputs)).abs().max() <= 1e-12


def by_hand(change: Callable[..., Any] = torch.clone) -> Network:
    made = interbasis.from_torch(mlp(nn.ReLU()).original)
    weight = change(made.sections[0].read[:, 1:])
    first = replace(made.sections[0], read=torch.cat([made.sections[0].read[:, :1], weight], 1))
    return replace(made, sections=(first, *made.sections[1:]), remake=None)


def test_a_network_put_together_by_hand_says_how_or_is_refused() -> None:
    inputs = mlp(nn.ReLU()).inputs
    network = by_hand()
    for change in KINDS.values():
        with pytest.raises(InterbasisError, match="give the Network remake=function"):
            change(network)
    with pytest.raises(InterbasisError, match="scrambles=0"):
        control_rows(network, inputs, (inputs, network(inputs).argmax(-1)))
    request = ControlsRequest(metric="accuracy", scrambles=0)
    plan = ControlPlan(network, inputs, (inputs, network(inputs).argmax(-1)), request)
    assert all("weights" not in name for name, _ in plan.rows())
    told = replace(network, remake=by_hand)
    generator = seeded(4)
    order = torch.randperm(54, generator=generator)
    expected = by_hand(lambda w: w.flatten()[order].view_as(w))
    assert torch.equal(shuffled(told, 4)(inputs), expected(inputs))


def test_a_network_that_is_no_longer_its_model_is_refused() -> None:
    case = mlp(nn.ReLU())
    other = replace(case.network, sections=by_hand(lambda w: 2 * w).sections)
    with pytest.raises(InterbasisError, match="convert the model again"):
        shuffled(other)
    with torch.no_grad():
        case.original[0].weight[0, 0] += 1
    with pytest.raises(InterbasisError, match="convert the model again"):
        reinitialised(case.network)


class Offset(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(normal(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


def test_weights_that_cannot_be_told_are_refused_by_name() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    for module, name in (
        (nn.Sequential(Offset(), nn.Linear(6, 4).double()), "0.offset of Offset"),
        (nn.Sequential(normed), "0.weight of ParametrizedLinear"),
        (nn.Sequential(prune.identity(nn.Linear(6, 4), "weight")), "0.weight of Linear"),
    ):
        network = interbasis.from_torch(module)
        with pytest.raises(InterbasisError, match=name):
            shuffled(network)


def test_several_scrambled_networks_have_seeds_of_their_own() -> None:
    case = mlp(nn.ReLU(), widths=(6, 9, 4), samples=60)
    data = (case.inputs, case.network(case.inputs).argmax(-1))
    rows = control_rows(case.network, case.inputs, data, bases=("pca",), stressed=(), seed=3, scrambles=2)
    assert [row.name for row in rows[2:]] == [
        f"pca, {kind} weights, seed {seed}" for kind in KINDS for seed in (3, 4)
    ]
    assert [row.network for row in rows[2:]] == ["shuffled"] * 2 + ["reinitialised"] * 2
    assert rows[2].curves.whole.values != rows[3].curves.whole.values
    alone = control_rows(case.network, case.inputs, data, bases=("pca",), stressed=(), seed=4)
    assert alone[2].name == "pca, shuffled weights"
    assert alone[2].sparsity == rows[3].sparsity
    for settings, word in (
        ({"scrambles": -1}, "scrambles"),
        ({"bases": ("lip",)}, "lip"),
        ({"stressed": ("lop",)}, "lop"),
        ({"bases": ()}, "bases cannot be"),
    ):
        with pytest.raises(InterbasisError, match=word):
            control_rows(case.network, case.inputs, data, **settings)
