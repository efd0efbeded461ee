"""A transcoder in place of an MLP, and both Grams of the difference, against automatic differentiation."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from cases import normal
from interbasis import dictionaries, from_hf
from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.replacement import transcoder_section, with_transcoder
from interbasis.network.cores import Elementwise, Gated
from interbasis.network.difference import difference
from interbasis.network.network import NodeLayer, Section
from network.test_difference import expected, found
from reference import relative_error
from tiny_models import random_model, tokens

WIDTH, FEATURES = 4, 12


def mlp(gated: bool = False) -> Section:
    """[1; normalised; residual] → [1; residual + MLP]."""
    nodes = NodeLayer("mlp_in", 1 + 2 * WIDTH), NodeLayer("ln1", 1 + WIDTH)
    skip, write = torch.zeros(2, 1 + WIDTH, 1 + 2 * WIDTH, dtype=torch.float64).unbind()
    write = write.new_zeros(1 + WIDTH, 6)
    skip[0, 0] = 1
    skip[1:, 1 + WIDTH :] = torch.eye(WIDTH)
    skip[1:, 0], write[1:] = normal(WIDTH), normal(WIDTH, 6, seed=1)
    read = write.new_zeros(12 if gated else 6, 1 + 2 * WIDTH)
    read[:, : 1 + WIDTH] = normal(len(read), 1 + WIDTH, seed=2)
    return Section(*nodes, skip, read, write, Gated(nn.SiLU()) if gated else Elementwise(nn.GELU()))


def transcoder(kind: str = "relu", skip: bool = False) -> Dictionary:
    plain = Dictionary(
        normal(FEATURES, WIDTH, seed=3), normal(FEATURES, seed=4), normal(FEATURES, WIDTH, seed=5),
        normal(WIDTH, seed=6), skip=normal(WIDTH, WIDTH, seed=7) if skip else None,
        hook="mlp_in", output_hook="mlp_out",
    )  # fmt: skip
    if kind == "jumprelu":
        return replace(plain, threshold=normal(FEATURES, seed=8).abs())
    return replace(plain, active=3) if kind == "topk" else plain


def inputs() -> torch.Tensor:
    f = normal(6, 3, 1 + 2 * WIDTH, seed=9)
    f[..., 0] = 1
    return f


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("kind", ["relu", "jumprelu", "topk"])
def test_difference_to_the_mlp(kind: str, skip: bool, gated: bool) -> None:
    section, replacing, f = mlp(gated), transcoder(kind, skip), inputs()
    replaced = transcoder_section(section, replacing)
    x, residual = f[..., 1 : 1 + WIDTH], f[..., 1 + WIDTH :]
    assert relative_error(replaced(f)[..., 1:], residual + replacing.reconstruct(x)) <= 1e-12
    transform = normal(4, 1 + WIDTH, seed=77)
    results = found(difference(section, replaced), f, transform)
    for result, reference in zip(results, expected(section, replaced, f, transform), strict=True):
        assert relative_error(result, reference) <= 1e-10


def test_network_with_a_transcoder() -> None:
    network = from_hf(random_model("gpt2")).double()
    width = network.nodes[0].width - 1
    replacing = Dictionary(
        normal(30, width, seed=3), normal(30, seed=4), normal(30, width, seed=5), normal(width, seed=6),
        active=4, hook="mlp_in.1", output_hook="blocks.1.hook_mlp_out",
    )  # fmt: skip
    replaced = dictionaries.with_transcoder(network, replacing)
    before, after = (dict(zip(n.layers, n.activations(tokens()), strict=True)) for n in (network, replaced))
    following = network.layers[network.layers.index("mlp_in.1") + 1]
    assert torch.equal(before["mlp_in.1"], after["mlp_in.1"])
    stream = before["mlp_in.1"]
    wanted = stream[..., 1 + width :] + replacing.reconstruct(stream[..., 1 : 1 + width])
    assert relative_error(after[following][..., -width:], wanted) <= 1e-12
    assert network.fingerprint() != replaced.fingerprint()


def test_refusals() -> None:
    with pytest.raises(InterbasisError, match=r"4 to 4 coordinates, .* 5 to 4"):
        transcoder_section(mlp(), replace(transcoder(), encoder=normal(FEATURES, 5)))
    with pytest.raises(InterbasisError, match="transcoder without scaling"):
        transcoder_section(mlp(), replace(transcoder(), scaling="layer_norm"))
    network = from_hf(random_model("gpt2"))
    with pytest.raises(InterbasisError, match="expected an MLP"):
        with_transcoder(network, transcoder(), "attn_in.0")
