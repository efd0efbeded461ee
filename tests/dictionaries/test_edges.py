"""Edges between dictionaries against automatic differentiation, token by token."""

import pytest
import torch
from torch import Tensor

import interbasis
from cases import seeded
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.edges import DictionaryLayer, SectionInDictionaries
from interbasis.numerics.integration import rule
from tiny_models import random_model

TOKENS = torch.randint(0, 23, (3, 7), generator=torch.Generator().manual_seed(5))


def dictionary(width: int, features: int, kind: str, seed: int) -> Dictionary:
    generator = seeded(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    threshold = 0.3 + 0.2 * normal(features).abs() if kind == "jumprelu" else None
    return Dictionary(
        normal(features, width), 0.1 * normal(features), 0.3 * normal(features, width), 0.1 * normal(width),
        threshold=threshold, active=5 if kind == "topk" else None,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["relu", "topk", "jumprelu"])
@pytest.mark.parametrize("method", ["gradient", "exact"])
@pytest.mark.parametrize(("model", "layer"), [("gpt2", "mlp_in.0"), ("llama", "mlp_in.0"), ("gpt2", "ln2.0")])
def test_edges_are_those_of_autograd_and_add_up(model, layer, method, kind):
    network = interbasis.from_hf(random_model(model)).to(torch.float64)
    index = network.layers.index(layer)
    following = network.layers[index + 1]
    sections = network.sections
    widths = [s.columns_read[1] - s.columns_read[0] for s in (sections[index], sections[index + 1])]
    source = DictionaryLayer.from_network(network, layer, dictionary(widths[0], 40, kind, 1))
    target = DictionaryLayer.from_network(network, following, dictionary(widths[1], 30, kind, 2))
    f = network.activations_at(index, TOKENS).flatten(0, 1)
    section, integral = sections[index], rule(method, 32)
    (edges,) = SectionInDictionaries.from_layers(network, source, target).token_edges(f, integral)
    u = target.dictionary.preactivations(section(f[:, None])[:, 0][:, target.columns])
    active = target.dictionary.is_active(u)
    assert edges.target.real.sum() == active.sum() > 0
    total = edges.features.sum(2) + edges.error + edges.constant
    expected = torch.where(edges.target.real, u.gather(1, edges.target.indices), 0.0)
    if method == "exact":
        assert (total - expected).abs().max() <= 1e-8 * expected.abs().max()
    decoder = source.dictionary.decoder
    for token in range(0, len(f), 5):
        for place in edges.target.real[token].nonzero()[:, 0].tolist()[:3]:
            i = edges.target.indices[token, place]
            slope = _mean_gradient(
                section,
                f[token],
                target,
                i,
                rule(method, 32) if method == "gradient" else rule("quadrature", 60),
            )
            wanted = (decoder[edges.source.indices[token]] @ slope[source.columns]) * edges.source.values[
                token
            ]
            tolerance = 1e-10 if method == "gradient" else 1e-7
            scale = wanted.abs().max().clamp_min(1e-12)
            assert (edges.features[token, place] - wanted).abs().max() <= tolerance * scale


def _mean_gradient(section, f: Tensor, target: DictionaryLayer, i: Tensor, integral) -> Tensor:
    """∫ dα ∂u′_i/∂f at αf, by backward passes."""
    total = torch.zeros_like(f)
    for node, weight in zip(integral.nodes, integral.weights, strict=True):
        at = (node * f).detach().requires_grad_()
        u = target.dictionary.preactivations(section(at[None, None])[0, 0][target.columns])[i]
        total += weight * torch.autograd.grad(u, at)[0]
    return total
