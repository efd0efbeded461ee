"""Attributions between dictionaries against automatic differentiation."""

from typing import Any

import pytest
import torch

import interbasis
from cases import seeded
from interbasis.dictionaries.chain import Chain
from interbasis.dictionaries.edges import SectionInDictionaries
from interbasis.dictionaries.layers import REMAINDERS
from interbasis.network.cores.core import Core
from interbasis.numerics.integration import Rule, rule
from placed_dictionaries import by_autograd, placed
from tiny_models import random_model

TOKENS = torch.randint(0, 23, (2, 7), generator=torch.Generator().manual_seed(5))
GRADIENT, QUADRATURE = rule("gradient"), rule("quadrature", 5)


PLACES = [
    ("gpt2", "mlp_in.0", "ln1.1"),
    ("gpt2", "ln2.0", "ln2_out.0"),
    ("gpt2", "ln2.0", "mlp_in.0"),
    ("gpt2", "attn_in.0", "ln2.0"),
    ("gpt2", "ln1.0", "ln1.1"),
    ("gpt2", "ln1.0", "ln_final"),
    ("gpt2", "attn_out.0", "mlp_out.0"),
    ("gpt2", "mlp_out.0", "attn_out.1"),
    ("gpt2", "transcoder mlp_in.0", "ln1.1"),
    ("gpt2", "transcoder mlp_in.0", "transcoder mlp_in.1"),
    ("llama", "mlp_in.0", "ln1.1"),
    ("llama", "attn_in.0", "ln2.0"),
    ("llama", "ln1.0", "ln1.1"),
    ("mistral", "ln1.0", "ln1.1"),
    ("qwen3", "ln1.0", "ln1.1"),
    ("gpt2", "ln1.0", "lib attn_in.0"),
    ("gpt2", "lib attn_in.0", "lib ln2.0"),
    ("gpt2", "attn_out.0", "lib ln2.0"),
    ("llama", "lib mlp_in.0", "ln1.1"),
]


@pytest.mark.parametrize("integral", [GRADIENT, QUADRATURE], ids=["gradient", "quadrature"])
@pytest.mark.parametrize(("model", "source", "target"), PLACES)
def test_attributions_are_those_of_autograd(model: str, source: str, target: str, integral: Rule) -> None:
    network = interbasis.from_hf(random_model(model)).to(torch.float64)
    a, b = placed(network, source, "topk", 1), placed(network, target, "relu", 2, features=30)
    chain = Chain((*network.sections[a.source_index : b.index], *b.through), integral)
    inputs = TOKENS[:1]
    activations = [f[0] for f in chain.activations(network.activations_at(a.source_index, inputs))]
    before = network.activations_at(a.index, inputs)
    z, out = a.encode(before), b.encode(network.activations_at(b.index, inputs))
    vectors = a.split(z, before, activations[0][None])[0]
    assert (vectors.sum(1) - activations[0]).abs().max() <= 1e-12 * activations[0].abs().max()
    positions = torch.tensor([2, 6])
    rows = b.rows(out.indices[0, positions])
    jacobian = by_autograd(chain.sections, activations, integral)[positions]  # [S, d_out, T, d_in]
    expected = torch.einsum("skd,sdte,tme->sktm", rows, jacobian, vectors)
    if not chain.mixes_positions:
        received = chain.attributions_at_tokens([f[positions] for f in activations], vectors[positions], rows)
        index = torch.arange(2)
        assert expected[index, :, positions].sub(received).abs().max() <= 1e-10 * expected.abs().max()
        return
    A = chain.attributions(activations, chain.push(activations, vectors), rows, positions)
    received = A["anywhere"].unflatten(2, rows.shape[:2]).permute(2, 3, 0, 1).clone()
    received[torch.arange(2), :, positions] += A["own"]
    assert (received - expected).abs().max() <= 1e-10 * expected.abs().max()


@pytest.mark.parametrize("kind", ["relu", "topk", "jumprelu", "gated"])
@pytest.mark.parametrize(("model", "source", "target"), [PLACES[0], PLACES[10], PLACES[1]])
def test_products_in_advance_give_the_same(model: str, source: str, target: str, kind: str) -> None:
    network = interbasis.from_hf(random_model(model)).to(torch.float64)
    a, b = placed(network, source, kind, 1), placed(network, target, kind, 2, features=30)
    section = network.sections[a.index]
    f = network.activations_at(a.index, TOKENS)
    z, out = a.encode(f), b.encode(section(f))
    assert out.real.any()
    assert z.real.any()
    vectors = a.split(z, f, f).flatten(0, 1)
    z, out = (
        type(x)(x.indices.flatten(0, 1), x.values.flatten(0, 1), x.real.flatten(0, 1)) for x in (z, out)
    )
    f = f.flatten(0, 1)
    following = section(f[:, None])[:, 0]
    for integral in (GRADIENT, rule("exact")):
        fast = SectionInDictionaries.from_layers(a, b, section, integral)
        blocks = list(fast.attributions(f, z, vectors[:, -len(REMAINDERS) :], out))
        received = torch.cat([block for _, block in blocks])
        chain = Chain((section,), integral)
        expected = chain.attributions_at_tokens([f, following], vectors, b.rows(out.indices))
        assert (received - expected).abs().max() <= 1e-10 * expected.abs().max()
    u = out.values
    total = (received.sum(-1) + b.dictionary.encoder_bias[out.indices]) * out.real
    assert (total - u).abs().max() <= 1e-8 * u.abs().max()


@pytest.mark.parametrize(
    ("model", "source", "target"),
    [
        *((model, "ln1.0", "ln1.1") for model in ("gpt2", "llama", "mistral")),
        ("gpt2", "ln1.0", "lib ln2.0"),
        ("llama", "lib attn_in.0", "lib mlp_in.0"),
        ("llama", "lib attn_in.0", "ln1.1"),
    ],
)
def test_attributions_are_complete(model: str, source: str, target: str) -> None:
    """Features, error, what is carried and the constant add up to the pre-activation."""
    network = interbasis.from_hf(random_model(model)).to(torch.float64)
    a, b = placed(network, source, "topk", 1), placed(network, target, "jumprelu", 2)
    chain = Chain(network.sections[a.index : b.index], rule("exact", 48))
    before = network.activations_at(a.index, TOKENS)
    activations = chain.activations(before)
    out, z = b.encode(activations[-1]), a.encode(before)
    sample = [f[1] for f in activations]
    positions = torch.arange(7)
    pushed = chain.push(sample, a.split(z, before, before)[1])
    A = chain.attributions(sample, pushed, b.rows(out.indices[1]), positions)
    total = A["own"].sum(-1) + A["anywhere"].sum((0, 1)).view(out.indices[1].shape)
    total = (total + b.dictionary.encoder_bias[out.indices[1]]) * out.real[1]
    assert (total - out.values[1]).abs().max() <= 1e-8 * out.values[1].abs().max()


@pytest.mark.parametrize("model", ["gpt2", "llama", "qwen3"])
def test_pushing_forward_is_the_transpose_of_pulling_back(model: str) -> None:
    network = interbasis.from_hf(random_model(model)).to(torch.float64)
    generator = seeded(3)
    for section, f in zip(network.sections, network.activations(TOKENS), strict=False):
        if section.core.mixes_positions:
            continue
        tokens = f.flatten(0, 1)
        tangents = torch.randn(len(tokens), 3, f.shape[2], generator=generator, dtype=f.dtype)
        rows = torch.randn(len(tokens), 2, section.target.width, generator=generator, dtype=f.dtype)
        for integral in (GRADIENT, rule("exact")):
            pushed = rows @ section.push_forward(tokens, tangents, integral).mT
            pulled = section.pull_back(tokens, rows, integral) @ tangents.mT
            assert (pushed - pulled).abs().max() <= 1e-10 * pulled.abs().max()
            slow = Core.push_forward(
                section.core, section.read_outs(tokens[None])[0], section.read_outs(tangents), GRADIENT
            )
            fast = section.core.push_forward(
                section.read_outs(tokens[None])[0], section.read_outs(tangents), GRADIENT
            )
            assert (slow - fast).abs().max() <= 1e-10 * fast.abs().max()


@pytest.mark.parametrize("model", ["gpt2", "llama", "mistral"])
def test_heads_and_paths_are_those_of_autograd(model: str) -> None:
    """Of each head, the gradient with respect to its values, keys and queries times the vector read there."""
    network = interbasis.from_hf(random_model(model)).to(torch.float64)
    a, b = placed(network, "attn_in.0", "topk", 1), placed(network, "attn_out.0", "relu", 2, features=30)
    chain = Chain(b.through, GRADIENT)
    section: Any
    (section,) = chain.sections
    before = network.activations_at(a.index, TOKENS[:1])
    activations = [f[0] for f in chain.activations(before)]
    vectors = a.split(a.encode(before), before, before)[0]
    positions = torch.tensor([3, 6])
    rows = b.rows(b.encode(before).indices[0, positions])[:, :2]
    shape, pushed = section.core.shape, chain.push(activations, vectors)
    assert chain.heads == shape.heads > 1
    tangents = [part.movedim(2, 0) for part in shape.parts(section.read_outs(vectors), 2)]  # [H, T, M, h]
    u = section.read_outs(activations[0][None]).requires_grad_()
    outputs = section.core(u, slice(0, u.shape[1]))
    largest, total = 0.0, 0.0
    for head in range(shape.heads):
        received = chain.paths(activations, pushed, rows, positions, head=head)
        for s, position in enumerate(positions.tolist()):
            g = (rows[s] @ section.write).unflatten(1, (shape.heads, shape.width)).clone()
            g[:, [h for h in range(shape.heads) if h != head]] = 0
            for row, cotangent in enumerate(g.flatten(1)):
                (slope,) = torch.autograd.grad(outputs[0, position], u, cotangent, retain_graph=True)
                sizes = slope[0].split(shape.sizes, 1)
                for name, part, tangent in zip(("query", "key", "value"), sizes, tangents, strict=True):
                    group = head * (part.shape[1] // shape.width) // shape.heads
                    mine = part[:, group * shape.width : (group + 1) * shape.width]  # [T, h]
                    expected = torch.einsum("th,tmh->tm", mine, tangent[head])
                    if name == "query":
                        found = received[name][s, row]
                        expected = expected[position]
                    else:
                        found = received[name].unflatten(2, rows.shape[:2])[..., s, row]
                        expected = expected[: len(found)]
                    largest = max(largest, expected.abs().max())
                    assert (found - expected).abs().max() <= 1e-10 * max(largest, 1.0)
        total = total + received["value"] + received["key"]
    whole = chain.paths(activations, pushed, rows, positions)
    assert (total - whole["value"] - whole["key"]).abs().max() <= 1e-10 * total.abs().max()
