"""Rewritten as sections, a network computes what it computed before."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import interbasis
from cases import CASES, LANGUAGE, mlp, modular_addition, normal, plain_transformer_from_stream
from interbasis import InterbasisError
from reference import relative_error


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_the_models_own(name: str) -> None:
    case = CASES[name]()
    assert relative_error(case.network(case.inputs), case.original(case.inputs)) <= 1e-12


@pytest.mark.parametrize("name", [name for name in CASES if "modadd" not in name and name not in LANGUAGE])
def test_input_gradients_are_the_models_own(name: str) -> None:
    case = CASES[name]()
    x = case.inputs.clone().requires_grad_()
    weights = torch.randn_like(case.original(x))
    (expected,) = torch.autograd.grad((case.original(x) * weights).sum(), x)
    (found,) = torch.autograd.grad((case.network(x) * weights).sum(), x)
    assert relative_error(found, expected) <= 1e-10


@pytest.mark.parametrize("blocks", [1, 2])
def test_gradients_by_the_stream_are_the_transformers_own(blocks: int) -> None:
    case = modular_addition(blocks)
    stream = case.network.prefix(case.inputs).requires_grad_()
    f = stream
    for section in case.network.sections:
        f = section(f)
    x = stream.detach()[..., 1:].requires_grad_()
    expected = plain_transformer_from_stream(case.weights, blocks, x)[:, -1]
    weights = normal(*expected.shape, seed=33)
    (found,) = torch.autograd.grad((f[:, -1] * weights).sum(), stream)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), x)
    assert relative_error(found[..., 1:], wanted) <= 1e-10


@pytest.mark.parametrize("name", CASES)
def test_the_constant_is_one_at_every_node_layer_and_zero_maps_to_zero(name: str) -> None:
    case = CASES[name]()
    for node, f in zip(case.network.nodes, case.network.activations(case.inputs), strict=True):
        assert f.shape[2] == node.width
        if node.constant:
            assert torch.equal(f[..., 0], torch.ones_like(f[..., 0]))
    for section in case.network.sections:
        nothing = torch.zeros(2, 3, section.source.width, dtype=torch.float64)
        assert section(nothing).abs().max() <= 1e-15


def test_a_longer_context_leaves_earlier_positions_unchanged() -> None:
    case = modular_addition(blocks=2)
    before_last_attention = case.network.layers.index("attn_in.1")
    full = case.network.activations_at(before_last_attention, case.inputs)
    shorter = case.network.activations_at(before_last_attention, case.inputs[:, :2])
    assert relative_error(full[:, :2], shorter) <= 1e-14


def test_node_layers_have_the_documented_names() -> None:
    assert mlp(nn.ReLU()).network.layers == ["linear.0", "linear.1", "linear.2", "output"]
    assert modular_addition(2).network.layers == [
        "attn_in.0", "mlp_in.0", "attn_in.1", "mlp_in.1", "unembed", "output",
    ]  # fmt: skip


def test_positions_come_and_go_with_the_inputs() -> None:
    assert CASES["positionwise"]().network(torch.zeros(2, 3, 5, dtype=torch.float64)).shape == (2, 3, 3)
    assert CASES["positionwise"]().network(torch.zeros(2, 5, dtype=torch.float64)).shape == (2, 3)
    case = modular_addition()
    assert case.network(case.inputs).shape == (20, 8)
    assert [f.shape[1] for f in case.network.activations(case.inputs)] == [3, 1, 1, 1]


@pytest.mark.parametrize(
    "cut", [("attn_in.0", "mlp_in.0"), ("mlp_in.0", "attn_in.1", "mlp_in.1"), ("unembed", "output")]
)
def test_a_cut_network_still_gives_the_models_output(cut: tuple[str, ...]) -> None:
    case = modular_addition(blocks=2)
    part = case.network.between(cut)
    assert part.layers == list(cut)
    assert relative_error(part(case.inputs), case.original(case.inputs)) <= 1e-12
    assert relative_error(part.to(torch.float32)(case.inputs).double(), case.original(case.inputs)) <= 1e-4


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["attn_in.0", "unembed"], "without gaps"),
        (["unembed", "mlp_in.0"], "in the network's order"),
        (["mlp_in.0", "mlp_in.0"], "repeats"),
        (["mlp_in.0"], "at least two"),
        (["attn_in.0", "mlp_in.O"], "did you mean 'mlp_in.0'"),
    ],
)  # fmt: skip
def test_node_layers_that_make_no_chain_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(InterbasisError, match=message):
        modular_addition().network.between(names)


def test_sections_that_do_not_follow_each_other_are_refused() -> None:
    network = modular_addition().network
    with pytest.raises(InterbasisError, match="follow each other"):
        interbasis.Network(network.prefix, (network.sections[0], network.sections[2]))


def test_a_section_in_a_basis_is_the_section_seen_from_there() -> None:
    case = mlp(nn.GELU())
    section = case.network.sections[0]
    f = case.network.activations(case.inputs)[0]
    there, out = normal(7, 7, seed=31), normal(3, 10, seed=32)
    found = section.in_basis(torch.linalg.inv(there), out)(f @ there.T)
    assert relative_error(found, section(f) @ out.T) <= 1e-10


def test_inputs_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(InterbasisError, match=r"\[samples, 6\].*received \[2, 5\]"):
        mlp(nn.ReLU()).network(torch.zeros(2, 5, dtype=torch.float64))
    with pytest.raises(InterbasisError, match="integer tokens"):
        modular_addition().network(torch.zeros(2, 3))
    tokens = modular_addition().inputs
    assert torch.equal(modular_addition().network(tokens.to(torch.uint8)), modular_addition().network(tokens))
    with pytest.raises(InterbasisError, match="between 0 and 7"):
        modular_addition().network(torch.full((2, 3), 8))


def test_changing_the_dtype_makes_a_copy() -> None:
    network = mlp(nn.PReLU().double()).network
    single = network.to(torch.float32)
    assert (network.dtype, single.dtype) == (torch.float64, torch.float32)
    assert single(torch.zeros(1, 6)).dtype == torch.float32
    assert network(torch.zeros(1, 6)).dtype == torch.float64


def test_things_show_themselves_in_a_line() -> None:
    case = modular_addition()
    graph = interbasis.build(case.network, case.inputs).graph
    assert repr(case.network) == "Network(modadd: attn_in.0 (13) → mlp_in.0 (13) → unembed (13) → output (8))"
    assert repr(case.network.sections[0]) == (
        "Section(attn_in.0 → mlp_in.0: Attention(3 heads of 4, causal), 13 → 13, last position)"
    )
    assert repr(graph.layers[-1]) == "LayerBasis(output: 8 features of 8 coordinates)"
    assert repr(graph).startswith("InteractionGraph(lib: attn_in.0 (")


def test_a_branch_reads_one_stream_of_several() -> None:
    for section in CASES["gpt2"]().network.sections:
        first, end = section.columns_read
        outside = torch.ones(section.source.width, dtype=torch.bool)
        outside[first:end] = False
        outside[: section.source.first_coordinate] = False
        assert not section.read[:, outside].any()
        if section.core.mixes_positions:
            assert end - first < section.source.width / 2


def test_nobody_outside_the_package_asks_for_the_kind_of_a_section() -> None:
    package = Path(interbasis.__file__).parent
    asking = [
        str(file)
        for file in package.rglob("*.py")
        if file.parent != package / "network"
        and re.search(r"isinstance\(.*(Stencil|Stored)Section", file.read_text(encoding="utf-8"))
    ]
    assert asking == []
