"""Hugging Face families as networks: logits, names, streams, cuts, refusals, and builds on them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import gram_error
from interbasis import InterbasisError, build, from_hf
from interbasis.graph.store import load
from interbasis.network.network import Network
from reference import relative_error

pytest.importorskip("transformers")

from tiny_models import configs, random_model, tokens

FAMILIES = sorted(configs())


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name: str, all_in_float64: None) -> None:
    model, inputs = random_model(name), tokens()
    network = from_hf(model)
    with torch.no_grad():
        expected = model(inputs).logits
    assert expected.dtype == network.dtype == torch.double
    assert (network(inputs) - expected).abs().max() <= 1e-9
    assert expected.abs().max() > 0.1
    earlier = network(inputs[:, :5])
    assert (earlier - expected[:, :5]).abs().max() <= 1e-9


@pytest.mark.parametrize("name", FAMILIES)
def test_every_section_in_closed_form_against_per_sample_jacobians(name: str) -> None:
    network = from_hf(random_model(name))
    for section, f in zip(network.sections, network.activations(tokens(2, 5)), strict=False):
        assert gram_error(section, f) <= 1e-10, section


def test_normed_queries_and_keys_are_a_node_layer() -> None:
    """4 heads of 4 for the queries, 2 each for keys and values; in a whole build, too."""
    network = from_hf(random_model("qwen3"))
    assert network.layers[:5] == ["ln1.0", "ln1_out.0", "attn_in.0", "heads.0", "ln2.0"]
    f = dict(zip(network.layers, network.activations(tokens()), strict=True))["heads.0"]
    assert f.shape[-1] == 1 + 16 + 8 + 8 + 12
    heads = f[..., 1:25].unflatten(-1, (6, 4))
    assert (heads.square().mean(-1) - 1).abs().max() <= 1e-3
    graph = build(from_hf(random_model("gemma3"), 0), tokens(12)).graph
    assert [layer.name for layer in graph.layers][3:5] == ["heads.0", "post1.0"]
    assert all(edges.isfinite().all() for edges in graph.edges)


def test_node_layers_and_their_streams() -> None:
    network = from_hf(random_model("gpt2"))
    block = ["ln1", "ln1_out", "attn_in", "ln2", "ln2_out", "mlp_in"]
    names = [f"{part}.{k}" for k in range(2) for part in block]
    assert network.layers == [*names, "ln_final", "ln_final_out", "unembed"]
    assert [node.width for node in network.nodes] == [13, 14, 25] * 4 + [13, 14, 13]
    assert [node.isolated for node in network.nodes] == [0, 1, 0] * 5
    assert network.rotate_last
    assert network.tail[-1].target.name == "output"
    inputs = tokens()
    for node, f in zip(network.nodes, network.activations(inputs), strict=True):
        assert torch.equal(f[..., 0], torch.ones_like(f[..., 0]))
        if node.isolated:
            x = f[..., 2:]
            assert (f[..., 1] - x.var(-1, correction=0)).abs().max() <= 1e-12
        if node.name.startswith("attn_in"):
            assert (f[..., 1:13].mean(-1)).abs().max() <= 1e-12


def test_parallel_blocks_keep_both_streams() -> None:
    network = from_hf(random_model("gpt_neox"))
    widths = dict(zip(network.layers, (node.width for node in network.nodes), strict=True))
    assert (widths["ln1.0"], widths["attn_in.0"], widths["ln2.0"], widths["ln2_out.0"]) == (13, 25, 25, 26)
    assert (widths["mlp_in.0"], widths["ln1.1"]) == (25, 13)
    f = dict(zip(network.layers, network.activations(tokens()), strict=True))
    assert torch.equal(f["ln2.0"][..., 1:13], f["ln1.0"][..., 1:])


@pytest.mark.parametrize(("blocks", "ends"), [("0", ("ln1.0", "ln1.1")), ("0-1", ("ln1.0", "ln_final"))])
def test_blocks_are_cut_out(blocks: str, ends: tuple[str, str]) -> None:
    model = random_model("gpt2")
    network = from_hf(model, blocks)
    assert (network.layers[0], network.layers[-1]) == ends
    assert (network(tokens()) - from_hf(model)(tokens())).abs().max() <= 1e-12
    assert from_hf(model, range(1, 2)).layers == from_hf(model, 1).layers


@pytest.mark.parametrize("blocks", ["2", "1-0", "x", range(0), -1, "0-2"])
def test_blocks_that_are_not_there(blocks: str | range | int) -> None:
    with pytest.raises(InterbasisError, match="between 0 and 1"):
        from_hf(random_model("gpt2"), blocks)


def test_the_output_may_be_asked_for_and_is_never_rotated(tmp_path: Path) -> None:
    model = random_model("gemma2")
    network = from_hf(model, output=True)
    assert network.layers[-2:] == ["unembed", "output"]
    assert (network(tokens()) - from_hf(model)(tokens())).abs().max() <= 1e-12
    graph = build(network, tokens(6)).graph
    assert graph.layers[-1].identity
    graph.save(tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.layers[-1].identity
    assert again.layers[-1].width == 23
    assert torch.equal(again.edges[-1], graph.edges[-1])
    assert [layer.isolated for layer in again.layers] == [layer.isolated for layer in graph.layers]


def test_a_vocabulary_is_never_made_dense() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=30_000, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=1
    )
    network = from_hf(GPT2LMHeadModel(config).eval(), output=True)
    graph = build(network, tokens(2, 6, 30_000), basis="lib").graph
    assert graph.edges[-1].shape == (30_000, graph.layers[-2].features)
    with pytest.raises(InterbasisError, match="not made dense"):
        _ = graph.layers[-1].transform
    with pytest.raises(InterbasisError, match="never rotated"):
        build(network, tokens(2, 6, 30_000), rotate_last=True)


def test_folders_and_what_is_not_a_model(tmp_path: Path) -> None:
    model = random_model("llama", torch.float32)
    model.save_pretrained(tmp_path / "model")
    network = from_hf(tmp_path / "model")
    assert network.build_dtype == "float32"
    assert (network(tokens()) - model(tokens()).logits).abs().max() <= 1e-4
    with pytest.raises(InterbasisError, match=r"config\.json"):
        from_hf(tmp_path)
    with pytest.raises(InterbasisError, match=r"config\.json"):
        from_hf("./nowhere")


def test_what_is_not_supported_is_named() -> None:
    changed = random_model("gpt2")
    changed.transformer.h[1].ln_2 = torch.nn.BatchNorm1d(12)
    with pytest.raises(InterbasisError, match="BatchNorm1d"):
        from_hf(changed)
    hooked = random_model("gpt2")
    hooked.transformer.h[0].mlp.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(InterbasisError, match="off by"):
        from_hf(hooked)


def last_of_an_mlp(model: nn.Module) -> nn.Module:
    """What scales an MLP's part of the stream; a norm after it takes the MLP's own scale away (Gemma)."""
    found = [m for name, m in model.named_modules() if name.endswith((".0.mlp", ".0.fc2"))]
    last = (".0.post_feedforward_layernorm", ".0.post_mlp_layernorm")
    after = [m for name, m in model.named_modules() if name.endswith(last)]
    return (after or found)[0]


HALVES = torch.bfloat16, torch.float16
TABLES = "codegen", "gptj"
BY_TURNS = [(name, HALVES[k % 2]) for k, name in enumerate(FAMILIES) if name not in TABLES]
"""Every family in one of them, but for those that hold rotary positions as a table, which is rounded, too."""


@pytest.mark.parametrize(("name", "dtype"), [*BY_TURNS, ("gpt2", HALVES[1 - FAMILIES.index("gpt2") % 2])])
def test_models_in_half_precision_are_checked_as_sharply_as_others(name: str, dtype: torch.dtype) -> None:
    """A tenth or a fiftieth more of one MLP is refused, what was not changed is taken and left as it was."""
    model, inputs = random_model(name, dtype), tokens()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    part = last_of_an_mlp(model)
    part.training = False
    network = from_hf(model)
    assert model.training
    assert not part.training
    for key, value in model.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])
    with torch.no_grad():
        assert relative_error(network(inputs), model.eval().float()(inputs).logits) <= 1e-4
        model.to(dtype)
    for factor in (1.1, 1.02):
        hook = part.register_forward_hook(lambda module, inputs, output, factor=factor: factor * output)
        with pytest.raises(InterbasisError, match="off by"):
            from_hf(model)
        hook.remove()


def test_a_hook_that_insists_on_half_precision_is_refused_in_one_sentence() -> None:
    model = random_model("gpt2", torch.bfloat16)
    model.transformer.h[0].mlp.c_fc.register_forward_pre_hook(lambda module, inputs: (inputs[0].bfloat16(),))
    with pytest.raises(InterbasisError, match=r"not be run in float32 .*\.float\(\)") as caught:
        from_hf(model)
    assert "\n" not in str(caught.value)
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_opt_with_norms_that_have_neither_gain_nor_bias(dtype: torch.dtype) -> None:
    from transformers import OPTForCausalLM

    config = configs()["opt"]
    config.layer_norm_elementwise_affine = False
    torch.manual_seed(0)
    model = OPTForCausalLM(config).to(dtype).eval()
    network = from_hf(model)
    with torch.no_grad():
        expected = model.to(network.dtype)(tokens()).logits
    assert network.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert relative_error(network(tokens()), expected) <= (1e-10 if dtype == torch.float64 else 1e-5)


def test_activations_that_mix_neurons_are_refused_by_whatever_way_they_came() -> None:
    """The logits would agree, since the network calls the same activation, but not the derivatives."""
    replaced, hooked, patched = (random_model("gpt2-odd") for _ in range(3))
    replaced.transformer.h[1].mlp.act = torch.nn.Softmax(-1)
    with pytest.raises(InterbasisError, match=r"Softmax of GPT2LMHeadModel reads several"):
        from_hf(replaced)
    patched.transformer.h[1].mlp.act.forward = lambda u: u - u.mean(-1, keepdim=True)
    with pytest.raises(InterbasisError, match="reads several neurons"):
        from_hf(patched)
    act = hooked.transformer.h[1].mlp.act
    act.register_forward_hook(lambda module, inputs, output: output - output.mean(-1, keepdim=True))
    with pytest.raises(InterbasisError, match="off by"):
        from_hf(hooked)


def test_hooks_on_all_modules_are_refused() -> None:
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    try:
        with pytest.raises(InterbasisError, match="register_module_forward_hook"):
            from_hf(random_model("gpt2"))
    finally:
        hook.remove()


def test_attention_both_ways_is_named() -> None:
    model = random_model("gemma3")
    model.config.use_bidirectional_attention = True
    with pytest.raises(InterbasisError, match=r"use_bidirectional_attention.*General"):
        from_hf(model)


@pytest.mark.parametrize("inputs", [torch.zeros(2, 3), torch.tensor([[0, 23]]), torch.zeros(1, 17).long()])
def test_inputs_that_are_no_tokens(inputs: Tensor) -> None:
    with pytest.raises(InterbasisError, match="tokens"):
        from_hf(random_model("gpt2"))(inputs)


def test_float32_agrees_with_float64() -> None:
    model = random_model("gpt2", torch.float32)
    inputs = tokens(40)
    single = build(from_hf(model), inputs).graph
    double = build(from_hf(model), inputs, dtype="float64").graph
    assert single.config.dtype == "float32"
    assert [layer.features for layer in single.layers] == [layer.features for layer in double.layers]
    for mine, theirs in zip(single.layers, double.layers, strict=True):
        assert relative_error(mine.eigenvalues, theirs.eigenvalues) <= 1e-4
    for mine, theirs in zip(single.edges, double.edges, strict=True):
        assert (mine[1:, 1:].square().sum() / theirs[1:, 1:].square().sum() - 1).abs() <= 1e-3
        assert relative_error(mine[1:4, 1:4], theirs[1:4, 1:4]) <= 2e-3


@pytest.fixture(scope="module")
def tinystories(shared: Path) -> Path:
    return shared / "tinystories-gpt-280k"


@pytest.fixture(scope="module")
def all_windows(tinystories: Path) -> Tensor:
    stream = np.fromfile(tinystories / "tokens_test.uint16", dtype=np.uint16).astype(np.int64)
    count = len(stream) // 513
    return torch.from_numpy(stream[: count * 513].reshape(count, 513))


@pytest.fixture(scope="module")
def windows(all_windows: Tensor) -> Tensor:
    return all_windows[:24]


def cross_entropy(network: Network | Callable[..., Any], windows: Tensor) -> float:
    total = sum(
        torch.nn.functional.cross_entropy(
            network(some[:, :-1]).flatten(0, 1), some[:, 1:].flatten(), reduction="sum"
        ).item()
        for some in windows.split(8)
    )
    return total / windows[:, 1:].numel()


def test_the_real_tinystories_model_logits(tinystories: Path, windows: Tensor) -> None:
    """Both float32 computations are about as far from float64, at most 3e-4 where logits reach 35.

    They cannot be nearer to each other: transformers' own two ways of computing attention are 3.6e-4 apart,
    and half a unit in the last place of the position embeddings moves its logits by 4e-4.
    """
    from transformers import AutoModelForCausalLM

    def logits(attention: str, dtype: torch.dtype) -> torch.Tensor:
        load = AutoModelForCausalLM.from_pretrained
        model = load(tinystories, attn_implementation=attention, dtype=dtype).eval()
        return model(windows[:2, :-1]).logits

    with torch.no_grad():
        expected, other = logits("sdpa", torch.float32), logits("eager", torch.float32)
        truth = logits("eager", torch.float64)
        exact = from_hf(AutoModelForCausalLM.from_pretrained(tinystories, dtype=torch.float64))
    network = from_hf(tinystories)
    found = network(windows[:2, :-1])
    assert found.dtype == expected.dtype == torch.float32
    theirs = max((expected - truth).abs().max(), (other - truth).abs().max())
    assert (found - truth).abs().max() <= 1.5 * theirs
    # how far transformers' two ways are from each other depends on the processor's kernels, less than either
    # one's error does
    assert (found - expected).abs().max() <= 1.5 * theirs
    assert relative_error(found, expected) <= 2e-5
    assert (exact(windows[:2, :-1]) - truth).abs().max() <= 1e-9
    assert (network.double()(windows[:2, :-1]) - truth).abs().max() <= 1e-4


def test_the_real_tinystories_model_cross_entropy(tinystories: Path, windows: Tensor) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tinystories).eval()
    with torch.no_grad():
        found = cross_entropy(from_hf(tinystories), windows)
        theirs = cross_entropy(lambda tokens: model(tokens).logits, windows)
    assert found == pytest.approx(theirs, abs=1e-5)


@pytest.mark.slow
def test_the_real_tinystories_model_cross_entropy_over_all_windows(
    tinystories: Path, all_windows: Tensor
) -> None:
    assert len(all_windows) == 2336
    with torch.no_grad():
        assert cross_entropy(from_hf(tinystories), all_windows) == pytest.approx(1.3542, abs=5e-5)


def test_the_real_tinystories_model_builds_with_edges(tinystories: Path, windows: Tensor) -> None:
    network = from_hf(tinystories, "1")
    for basis in ("lib", "pca"):
        graph = build(network, windows[:4, :-1], basis=basis, edge_data=windows[:1, :64]).graph
        assert all(edges.isfinite().all() for edges in graph.edges)
        assert [layer.isolated for layer in graph.layers] == [0, 1, 0, 0, 1, 0, 0]


def test_the_real_tinystories_model_in_float32_and_float64(tinystories: Path, windows: Tensor) -> None:
    """Λ spans seven decades before attention; float32 drops none of the features and keeps their Λ."""
    network, inputs = from_hf(tinystories, "4"), windows[:2, :256]
    single = build(network, inputs, edge_method=None).graph.layers
    double = build(network, inputs, edge_method=None, dtype="float64").graph.layers
    assert [layer.features for layer in single] == [layer.features for layer in double]
    for mine, theirs in zip(single, double, strict=True):
        assert ((mine.eigenvalues - theirs.eigenvalues).abs() / theirs.eigenvalues).max() <= 1e-3
