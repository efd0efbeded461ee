"""A transcoder that reproduces an MLP by another mechanism: low error, high share of the Jacobian."""

from dataclasses import replace

import torch
from torch import nn

import interbasis
from cases import normal
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.replacement import transcoder_section
from interbasis.network.network import Network


def network_of_two_equal_inputs() -> tuple[Network, torch.Tensor]:
    """An MLP that reads the first of two inputs, and data on which both are always equal."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    hidden = module[0]
    hidden.weight.data[:, 1] = 0  # reads inputs 0, 2 and 3
    x = normal(400, 4, seed=1)
    x[:, 1] = x[:, 0]
    return interbasis.from_torch(module), x


def test_low_error_and_another_mechanism() -> None:
    network, x = network_of_two_equal_inputs()
    mlp = network.sections[0]
    same = Dictionary(
        mlp.read[:, 1:].clone(), mlp.read[:, 0].clone(), torch.eye(6, dtype=torch.float64),
        torch.zeros(6, dtype=torch.float64),
    )  # fmt: skip
    encoder = same.encoder.clone()
    encoder[:, 1], encoder[:, 0] = encoder[:, 0].clone(), 0  # the other of the two equal inputs
    shares = {}
    for name, dictionary in {"same": same, "other": replace(same, encoder=encoder)}.items():
        replaced = replace(network, sections=(transcoder_section(mlp, dictionary), *network.sections[1:]))
        record = interbasis.diff(network, replaced, x, progress=False).record
        shares[name] = record.sections[network.layers[0]]
    assert shares["same"].outputs.value <= 1e-20
    assert shares["same"].jacobian.value <= 1e-20
    assert shares["other"].outputs.value <= 1e-20  # the outputs are the same on these data
    assert shares["other"].jacobian.value > 0.1  # by another computation
    other = x.clone()
    other[:, 1] = normal(400, seed=2)
    replaced = replace(
        network,
        sections=(transcoder_section(mlp, replace(same, encoder=encoder)), *network.sections[1:]),
    )
    elsewhere = interbasis.diff(network, replaced, other, progress=False).record
    assert elsewhere.sections[network.layers[0]].outputs.value > 0.1  # and not on others
