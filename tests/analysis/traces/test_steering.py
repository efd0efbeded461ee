"""Steering in models of every kind, against the feature changed by hand in the activations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import CASES
from interbasis.analysis.traces.steering import Steering
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network
from tiny_models import random_model, tokens


def convolutional() -> tuple[Network, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(36, 5),
    ).double()  # fmt: skip
    inputs = torch.randn(20, 1, 6, 6).double()
    return interbasis.from_torch(model, inputs[:2]), inputs


def vision_transformer() -> tuple[Network, Tensor]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **shape)
    model = transformers.ViTForImageClassification(config).double().eval()
    return interbasis.from_hf(model).double(), torch.randn(12, 3, 8, 8).double()


MODELS: dict[str, Callable[[], tuple[Network, Tensor]]] = {
    "convolutional": convolutional,
    "vision transformer": vision_transformer,
    "language model": lambda: (interbasis.from_hf(random_model("gpt2")).double(), tokens(12, 6)),
    "modular addition": lambda: (CASES["modadd"]().network, CASES["modadd"]().inputs),
    "rows": lambda: (CASES["relu"]().network, CASES["relu"]().inputs),
}


def by_hand(network: Network, basis: LayerBasis, inputs: Tensor, by: float, start: int) -> torch.Tensor:
    """The outputs with the feature changed at the layer's positions from ``start`` on."""
    k = network.layers.index(basis.name)
    f = network.activations(inputs)[k]
    f[:, start:] += by * basis.inverse[:, 1]
    for step in (*network.sections[k:], *network.tail):
        f = step(f)
    return f[..., network.output_layer.first_coordinate :]


@pytest.mark.parametrize("name", MODELS)
def test_all_positions_are_changed(name: str) -> None:
    network, inputs = MODELS[name]()
    graph = interbasis.build(network, inputs, dtype="float64", edge_method=None).graph
    for basis in graph.layers[:-1]:
        _, after = Steering.from_basis(network, basis, 1, 2.0).outputs(inputs[:3])
        assert torch.allclose(after, by_hand(network, basis, inputs[:3], 2.0, 0), atol=1e-12), basis.name


@pytest.mark.parametrize("name", ["convolutional", "vision transformer", "language model"])
def test_positions_are_changed_from_the_first_that_is_asked_for(name: str) -> None:
    network, inputs = MODELS[name]()
    graph = interbasis.build(network, inputs, dtype="float64", edge_method=None).graph
    for basis in graph.layers[:-1:3]:
        _, after = Steering.from_basis(network, basis, 1, 2.0, first=4).outputs(inputs[:3])
        assert torch.allclose(after, by_hand(network, basis, inputs[:3], 2.0, 4), atol=1e-12), basis.name


def test_layers_of_the_last_position_have_the_last_of_the_inputs() -> None:
    network, inputs = MODELS["modular addition"]()
    graph = interbasis.build(network, inputs, edge_method=None).graph
    layers = [basis for basis in graph.layers[:-1] if basis.features > 1]
    whole = [
        layer
        for layer in layers
        if network.activations(inputs)[network.layers.index(layer.name)].shape[1] > 1
    ]
    behind = [layer for layer in layers if layer not in whole]
    assert whole
    assert behind
    last = inputs.shape[1] - 1
    for cut in (network, network.between([*(layer.name for layer in behind), network.layers[-1]])):
        for basis in behind:
            before, after = Steering.from_basis(cut, basis, 1, 2.0, first=last).outputs(inputs[:3])
            assert torch.allclose(after, by_hand(cut, basis, inputs[:3], 2.0, 0))
            assert not torch.allclose(after, before)
            before, after = Steering.from_basis(cut, basis, 1, 2.0, first=last + 1).outputs(inputs[:3])
            assert torch.equal(after, before)


def test_a_position_that_a_picture_does_not_have_is_refused() -> None:
    for name, basis_at, first in (("convolutional", 2, 9), ("vision transformer", 0, 5), ("rows", 0, 1)):
        network, inputs = MODELS[name]()
        basis = interbasis.build(network, inputs, edge_method=None).graph.layers[basis_at]
        with pytest.raises(interbasis.InterbasisError, match=f"among 0 to {first - 1}, .*received {first}"):
            Steering.from_basis(network, basis, 1, 2.0, first).outputs(inputs[:2])


def test_a_run_of_a_convolutional_net_is_steered_at_every_pixel() -> None:
    network, inputs = convolutional()
    graph = interbasis.build(network, inputs, edge_method=None).graph
    basis = graph.layers[1]
    found = interbasis.open_run(graph, network, inputs).steer(
        feature=f"{basis.name}:1", by=2.0, sample=0, top=5
    )
    expected = by_hand(network, basis, inputs[:1], 2 * basis.deviation(1), 0)[0, -1]
    for output in found.outputs:
        assert output.before == pytest.approx(network(inputs[:1])[0, output.index].item())
        assert output.after == pytest.approx(expected[output.index].item())
