"""The models that the tests share: small, float64, seeded, each with inputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interbasis
from interbasis.models import modadd
from interbasis.network.cores import Attention, AttentionShape, General, Moments, PassCore
from interbasis.network.network import Network, NodeLayer, Section
from interbasis.network.section_jacobian import DenseJacobian
from interbasis_studies.training.modadd import Recipe, initial_weights
from reference import jacobian_gram, jacobians, relative_error

ACTIVATIONS = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "leaky": nn.LeakyReLU(0.2),
    "softplus": nn.Softplus(),
}


@dataclass(frozen=True)
class Case:
    """A network, the function it was made from, and inputs."""

    network: Network
    original: Any
    inputs: Tensor
    weights: dict[str, Tensor] | None = None


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def mlp(
    activation: nn.Module, widths: Sequence[int] = (6, 9, 7, 4), bias: bool = True, samples: int = 40
) -> Case:
    torch.manual_seed(1)
    modules: list[nn.Module] = []
    for i, o in pairwise(widths):
        modules += [nn.Linear(i, o, bias=bias), activation, nn.Dropout(0.5)]
    module = nn.Sequential(*modules[:-2]).double().eval()
    return Case(interbasis.from_torch(module), module, normal(samples, widths[0], seed=2) + 0.3)


def modular_addition(blocks: int = 1, p: int = 7, samples: int = 20) -> Case:
    """A random modular-addition transformer, with an independent plain forward pass beside it."""
    recipe = Recipe(seed=3, p=p, width=12, heads=3, hidden=17)
    weights = {name: w.double() for name, w in initial_weights(recipe).items()}
    for block in range(1, blocks):
        for name in [n for n in weights if n.startswith("blocks.0.")]:
            weights[name.replace("blocks.0.", f"blocks.{block}.")] = weights[name].flip(-1) * 0.9
    for k, name in enumerate(sorted(n for n in weights if ".b_" in n)):
        weights[name] = 0.3 * normal(*weights[name].shape, seed=100 + k)
    weights = {name: w * (2.0 if "attn" in name else 1.0) for name, w in weights.items()}

    def original(tokens: Tensor) -> Tensor:
        return plain_transformer(weights, blocks, tokens)[:, -1]

    tokens = modadd.pairs(p).inputs
    chosen = torch.randperm(len(tokens), generator=seeded(4))[:samples]
    return Case(modadd.from_weights(weights), original, tokens[chosen], weights)


def plain_transformer(w: dict[str, Tensor], blocks: int, tokens: Tensor) -> Tensor:
    """The transformer as a textbook would write it."""
    return plain_transformer_from_stream(
        w, blocks, w["embed.W_E"][tokens] + w["pos_embed.W_pos"][: tokens.shape[1]]
    )


def plain_transformer_from_stream(w: dict[str, Tensor], blocks: int, x: Tensor) -> Tensor:
    """The same from the embedded stream on."""
    mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    for b in range(blocks):
        part = {n.removeprefix(f"blocks.{b}."): t for n, t in w.items() if n.startswith(f"blocks.{b}.")}
        heads = []
        for h in range(len(part["attn.W_Q"])):
            q, k, v = (x @ part[f"attn.W_{n}"][h] + part[f"attn.b_{n}"][h] for n in "QKV")
            scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(mask, -math.inf)
            heads.append(scores.softmax(-1) @ v @ part["attn.W_O"][h])
        x = x + sum(heads) + part["attn.b_O"]
        hidden = torch.relu(x @ part["mlp.W_in"] + part["mlp.b_in"])
        x = x + hidden @ part["mlp.W_out"] + part["mlp.b_out"]
    return x @ w["unembed.W_U"] + w["unembed.b_U"]


def general_mlp() -> Case:
    """A layer norm and a softmax, neither of which has a closed form here."""
    torch.manual_seed(5)
    module = nn.Sequential(
        nn.Linear(5, 8),
        nn.LayerNorm(8),
        nn.Tanh(),
        nn.Linear(8, 6),
        nn.GELU(),
        nn.Linear(6, 4),
        nn.Softmax(-1),
    ).double()
    return Case(interbasis.from_torch(module, general=True), module, normal(30, 5, seed=6))


def per_feature() -> Case:
    """Batch norms in evaluation mode and slopes of every feature's own, with a kink that is not at 0."""
    torch.manual_seed(11)
    module = nn.Sequential(
        nn.Linear(5, 7),
        nn.BatchNorm1d(7),
        nn.ReLU(),
        nn.Linear(7, 6),
        nn.PReLU(6),
        nn.BatchNorm1d(6),
        nn.Linear(6, 4),
    ).double()
    for value in (*module.parameters(), *module.buffers()):
        if value.is_floating_point() and value.ndim == 1:
            value.data = torch.rand_like(value) + 0.2
    return Case(interbasis.from_torch(module.eval()), module, normal(30, 5, seed=12))


CASES: dict[str, Callable[[], Case]] = {
    **{name: partial(mlp, activation) for name, activation in ACTIVATIONS.items()},
    "no-bias": lambda: mlp(nn.GELU(), bias=False),
    "linear": lambda: mlp(nn.Identity()),
    "positionwise": lambda: positionwise(),
    "modadd": lambda: modular_addition(),
    "modadd-2-blocks": lambda: modular_addition(blocks=2),
    "per-feature": per_feature,
    "general": general_mlp,
    "gpt2": lambda: language_model("gpt2"),
    "gpt-neox": lambda: language_model("gpt_neox"),
    "llama": lambda: language_model("llama"),
}
LANGUAGE = ["gpt2", "gpt-neox", "llama"]
"""Those of them that take tokens and have layer norms."""


def language_model(name: str) -> Case:
    """One block cut out of a random Hugging Face model; tests/models has whole ones."""
    pytest.importorskip("transformers")
    from tiny_models import random_model, tokens

    network = interbasis.from_hf(random_model(name), 0)
    return Case(network, lambda inputs: interbasis.from_hf(random_model(name))(inputs), tokens(6, 6))


def positionwise() -> Case:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(5, 7), nn.SiLU(), nn.Linear(7, 3)).double()
    return Case(interbasis.from_torch(module), module, normal(9, 4, 5, seed=8))


HEADS_AND_KEY_HEADS = ((1, None), (3, None), (2, 1), (3, 1), (4, 2), (6, 2))
"""None is keys of its own for every head."""


def attention_section(shape: AttentionShape, last_only: bool = False, seed: int = 0) -> Section:
    """Attention with random weights and biases between layers of different widths."""
    d_in, d_out = 6, 5
    skip = normal(d_out, d_in, seed=seed)
    skip[0] = 0
    skip[0, 0] = 1
    write = normal(d_out, shape.heads * shape.width, seed=seed + 1)
    write[0] = 0
    read = normal(sum(shape.sizes), d_in, seed=seed + 2) / math.sqrt(d_in)
    return Section(
        NodeLayer("in", d_in),
        NodeLayer("out", d_out),
        skip,
        read,
        write,
        Attention(shape),
        last_only,
    )


def as_general(section: Section) -> Section:
    """The same section with a core that is only known as a function."""
    core = section.core
    general = General(lambda u: core(u, slice(0, u.shape[1])))
    return Section(
        section.source, section.target, section.skip, section.read, section.write, general, section.last_only
    )


def batch_moments(
    core: Any, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None = None
) -> Moments:
    """Both sums over one batch, whatever the kind of core."""
    if isinstance(core, PassCore):
        return core.moments(core.batch_sums(u, outputs, metric, signs), metric)
    return core.moments(core.statistics(u, outputs), metric)


def gram_error(section: Section, f: Tensor, jacobians: Callable[..., Tensor] = jacobians) -> float:
    """How far the Jacobian Gram, as a basis gets it, is from the definition with per-sample Jacobians."""
    u, outputs = section.read_outs(f), section.outputs(f)
    transform = normal(4, section.target.width, seed=77)
    jacobian = DenseJacobian.from_section(section, transform)
    moments = batch_moments(section.core, u, outputs, jacobian.metric)
    gram = jacobian.gram(moments, f[:, outputs].shape[:2].numel(), f.shape[:2].numel())
    expected = jacobian_gram(section, f, transform, jacobians=jacobians)[1:, 1:]
    return relative_error(gram.matrix, expected)


def activations(section: Section, samples: int, positions: int, seed: int = 9) -> Tensor:
    f = normal(samples, positions, section.source.width, seed=seed)
    f[..., 0] = 1
    return f
