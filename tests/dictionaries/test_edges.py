"""Attributions between dictionaries against automatic differentiation."""

from functools import reduce

import pytest
import torch
from torch import Tensor

import interbasis
from cases import seeded
from interbasis.dictionaries.chain import Chain
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.edges import SectionInDictionaries
from interbasis.dictionaries.layers import REMAINDERS, DictionaryLayer
from interbasis.network.cores.core import Core
from interbasis.numerics.integration import rule
from tiny_models import random_model

TOKENS = torch.randint(0, 23, (2, 7), generator=torch.Generator().manual_seed(5))
GRADIENT, QUADRATURE = rule("gradient"), rule("quadrature", 5)


def dictionary(width: int, features: int, kind: str, seed: int, **more: object) -> Dictionary:
    generator = seeded(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    threshold = 0.3 + 0.2 * normal(features).abs() if kind == "jumprelu" else None
    return Dictionary(
        normal(features, width), 0.1 * normal(features), 0.3 * normal(features, width), 0.1 * normal(width),
        threshold=threshold, active=5 if kind == "topk" else None, **more,
    )  # fmt: skip


def placed(network, place: str, kind: str, seed: int, features: int = 40) -> DictionaryLayer:
    """A dictionary of as many coordinates as the place has."""
    if place.startswith("transcoder "):
        place, width = place.split()[1], network.nodes[0].width - 1
        generator = seeded(seed + 50)
        skip = torch.randn(width, width, generator=generator, dtype=torch.float64)
        hooks = {"hook": place, "output_hook": place.replace("mlp_in", "mlp_out"), "skip": skip}
        return DictionaryLayer.from_network(network, place, dictionary(width, features, kind, seed, **hooks))
    layer = place.replace("attn_out", "attn_in").replace("mlp_out", "mlp_in")
    section = network.sections[network.layers.index(layer)]
    width = section.target.width - 1 if layer != place else section.columns_seen
    return DictionaryLayer.from_network(network, place, dictionary(width, features, kind, seed))


def mean_jacobian(section, f: Tensor, integral) -> Tensor:
    """∫dα ∂F/∂f at αf of one sample by autograd, [S, d_out, T, d_in]."""
    total = 0.0
    for node, weight in zip(integral.nodes, integral.weights, strict=True):
        total = total + weight * torch.autograd.functional.jacobian(lambda x: section(x[None])[0], node * f)
    return total


def by_autograd(sections, activations, integral) -> Tensor:
    """The product of the sections' mean Jacobians, [S, d_out, T, d_in]."""
    if not sections:
        f = activations[0]
        return torch.eye(f.numel(), dtype=f.dtype).view(*f.shape, *f.shape)
    jacobians = [mean_jacobian(s, f, integral) for s, f in zip(sections, activations, strict=False)]
    return reduce(lambda total, more: torch.einsum("abtd,tdce->abce", more, total), jacobians)


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
]


@pytest.mark.parametrize("integral", [GRADIENT, QUADRATURE], ids=["gradient", "quadrature"])
@pytest.mark.parametrize(("model", "source", "target"), PLACES)
def test_attributions_are_those_of_autograd(model, source, target, integral):
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
    paths = chain.attributions(activations, vectors, rows, positions)
    received = torch.zeros_like(expected)
    for path, part in paths.items():
        if path in ("skip", "query"):
            received[torch.arange(2), :, positions] += part
        else:
            received += part
    assert (received - expected).abs().max() <= 1e-10 * expected.abs().max()


@pytest.mark.parametrize("kind", ["relu", "topk", "jumprelu"])
@pytest.mark.parametrize(("model", "source", "target"), [PLACES[0], PLACES[10], PLACES[1]])
def test_products_in_advance_give_the_same(model, source, target, kind):
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


@pytest.mark.parametrize("model", ["gpt2", "llama", "mistral"])
def test_a_block_is_complete(model):
    """Features, error, what is carried and the constant add up to the pre-activation across a block."""
    network = interbasis.from_hf(random_model(model)).to(torch.float64)
    a, b = placed(network, "ln1.0", "topk", 1), placed(network, "ln1.1", "jumprelu", 2)
    chain = Chain(network.sections[a.index : b.index], rule("exact", 48))
    before = network.activations_at(a.index, TOKENS)
    activations = chain.activations(before)
    z, out = a.encode(before), b.encode(activations[-1])
    sample = [f[1] for f in activations]
    positions = torch.arange(7)
    paths = chain.attributions(sample, a.split(z, before, before)[1], b.rows(out.indices[1]), positions)
    total = paths["skip"].sum(-1) + paths["query"].sum(-1) + (paths["value"] + paths["key"]).sum((-1, -2))
    total = (total + b.dictionary.encoder_bias[out.indices[1]]) * out.real[1]
    assert (total - out.values[1]).abs().max() <= 1e-8 * out.values[1].abs().max()


@pytest.mark.parametrize("model", ["gpt2", "llama", "qwen3"])
def test_pushing_forward_is_the_transpose_of_pulling_back(model):
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
