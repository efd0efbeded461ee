"""Nothing is made on the CPU while a network computes elsewhere (other_device.py stands for a GPU)."""

import pytest
import torch

import interbasis
from graphs import tensors_of
from interbasis.models.residual import Residual
from interbasis.models.residual import network as residual_network
from interbasis.runtime.devices import torch_device
from interbasis.runtime.errors import InterbasisError
from other_device import DEVICE, OtherDevice, StrayTensorError
from tiny_models import random_model, tokens


def mlp():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
    return interbasis.from_torch(module), torch.randn(20, 5)


def convolution():
    torch.manual_seed(0)
    module = Residual(channels=2, size=6, widths=(3, 4), classes=3).eval()
    return residual_network(module), torch.randn(6, 2 * 36)


CASES = {
    "mlp": mlp,
    "gpt2": lambda: (interbasis.from_hf(random_model("gpt2"), 0), tokens(4, 5)),
    "rotary": lambda: (interbasis.from_hf(random_model("llama"), 0), tokens(4, 5)),
    "convolution": convolution,
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("mlp", {}), ("gpt2", {"edge_group": 4}), ("rotary", {}), ("convolution", {"edge_group": 4})],
)
def test_a_build_on_another_device_is_the_same(name, settings):
    network, data = CASES[name]()
    wanted = interbasis.build(network, data, dtype="float64", **settings)
    with OtherDevice() as mode:
        found = interbasis.build(network, data, dtype="float64", device=str(DEVICE), **settings)
    assert mode.operations > 100
    for key, tensor in tensors_of(wanted).items():
        other = tensors_of(found)[key]
        assert other.device.type == "cpu"
        assert torch.allclose(tensor, other, rtol=1e-9, atol=1e-9 * tensor.abs().max().item()), key


@pytest.mark.parametrize("name", ["mlp", "gpt2", "convolution"])
def test_an_ablation_on_another_device_is_the_same(name):
    network, data = CASES[name]()
    network = network.double()
    data = data if data.ndim == 2 and not data.is_floating_point() else data.double()
    labels = network(data).argmax(-1)
    graph = interbasis.build(network, data)
    wanted = interbasis.open_run(graph, network, (data, labels)).ablate(tolerance=0.2, stable=False)
    graph = interbasis.build(network, data)
    with OtherDevice() as mode:
        found = (
            interbasis.open_run(graph, network, (data, labels))
            .on(str(DEVICE))
            .ablate(tolerance=0.2, stable=False)
        )
    assert mode.operations > 100
    assert found.counts == wanted.counts


def test_a_stray_tensor_is_seen():
    with OtherDevice():
        there = torch.ones(3, device=DEVICE)
        assert (there + there).cpu().tolist() == [2, 2, 2]
        assert (there + torch.tensor(1.0)).cpu().tolist() == [2, 2, 2]
        with pytest.raises(StrayTensorError, match="on the CPU"):
            there + torch.ones(3)


def test_devices_by_name():
    assert torch_device("cpu").type == "cpu"
    with pytest.raises(InterbasisError, match="expected a device that this machine has"):
        torch_device("nonsense")
    with pytest.raises(InterbasisError, match="no float64"):
        torch_device("mps")
