"""Networks whose activations are replaced on the way, and what uses them."""

import pytest
import torch
from torch import nn

from cases import mlp, normal
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.scores import score
from interbasis.network.replacement import replaced_output
from reference import relative_error


def test_layers_are_replaced_where_they_are_named() -> None:
    case = mlp(nn.GELU())
    network, x = case.network, case.inputs
    assert torch.equal(replaced_output(network, 0, network.prefix(x), x, {}), network(x))

    def scaled(f: torch.Tensor) -> torch.Tensor:
        return torch.cat([f[..., :1], 0.5 * f[..., 1:]], -1)

    first, second, last = (part for part in case.original if isinstance(part, nn.Linear))
    act = nn.GELU()
    expected = last(act(second(0.5 * act(first(0.5 * x)))))
    found = replaced_output(network, 0, network.prefix(x), x, {0: scaled, 1: scaled})
    assert relative_error(found, expected) < 1e-10
    end = replaced_output(network, 1, network.activations_at(1, x), x, {3: scaled})
    assert relative_error(end, 0.5 * network(x)) < 1e-10


def test_a_dictionary_is_scored_by_the_loss_of_its_reconstruction() -> None:
    case = mlp(nn.GELU())
    network, x = case.network, case.inputs
    labels = torch.arange(len(x)) % 4
    encoder = normal(10, 6, seed=3)
    dictionary = Dictionary(encoder, torch.zeros(10).double(), 0.2 * encoder, x.mean(0))
    scores = score(network, dictionary, (x, labels), layer=network.layers[0])
    stages = {"loss": x, "replaced_loss": dictionary.reconstruct(x), "mean_loss": x.mean(0).expand_as(x)}
    for name, inputs in stages.items():
        expected = nn.functional.cross_entropy(case.original(inputs), labels).item()
        assert getattr(scores, name) == pytest.approx(expected, rel=1e-10)
