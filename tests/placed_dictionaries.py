"""Random dictionaries at places of a network, and mean Jacobians by autograd."""

from functools import reduce
from typing import Any

import torch
from torch import Tensor

import interbasis
from cases import seeded
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.layers import DictionaryLayer
from interbasis.dictionaries.lib_bases import LibBasis
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import Rule


def dictionary(width: int, features: int, kind: str, seed: int, **more: Any) -> Dictionary:
    generator = seeded(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    threshold = 0.3 + 0.2 * normal(features).abs() if kind == "jumprelu" else None
    encoder, bias = normal(features, width), 0.1 * normal(features)
    decoder, decoder_bias = 0.3 * normal(features, width), 0.1 * normal(width)
    if kind == "gated":  # active where W x + b_gate > 0, with the value ReLU(e^r W x + b)
        scale, gate = (0.2 * normal(features)).exp(), 0.1 * normal(features)
        encoder, threshold = scale[:, None] * encoder, (bias - scale * gate).clamp_min(0)
    return Dictionary(
        encoder, bias, decoder, decoder_bias,
        threshold=threshold, active=5 if kind == "topk" else None, **more,
    )  # fmt: skip


def placed(network: Network, place: str, kind: str, seed: int, features: int = 40) -> DictionaryLayer:
    """A dictionary of as many coordinates as the place has; LIB's basis at "lib LAYER"."""
    if place.startswith("lib "):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, 23, (8, 7), generator=generator)
        layers = interbasis.build(network, tokens, norm_limit=0, edge_method=None, progress=False).layers
        place = place.split()[1]
        basis = LibBasis.from_layer(layers[network.layers.index(place)])
        return DictionaryLayer.from_network(network, place, basis)
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


def mean_jacobian(section: Section, f: Tensor, integral: Rule) -> Tensor:
    """∫dα ∂F/∂f at αf of one sample by autograd, [S, d_out, T, d_in]."""
    total = torch.zeros(())
    for node, weight in zip(integral.nodes, integral.weights, strict=True):
        total = total + weight * torch.autograd.functional.jacobian(lambda x: section(x[None])[0], node * f)
    return total


def by_autograd(sections: tuple[Section, ...], activations: list[Tensor], integral: Rule) -> Tensor:
    """The product of the sections' mean Jacobians, [S, d_out, T, d_in]."""
    if not sections:
        f = activations[0]
        return torch.eye(f.numel(), dtype=f.dtype).view(*f.shape, *f.shape)
    jacobians = [mean_jacobian(s, f, integral) for s, f in zip(sections, activations, strict=False)]
    return reduce(lambda total, more: torch.einsum("abtd,tdce->abce", more, total), jacobians)
