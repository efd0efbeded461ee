"""Nothing is made on the CPU while a network computes elsewhere (other_device.py stands for a GPU)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from cases import CASES as SHARED_CASES
from compute.test_checkpoints import build_with_kills
from graphs import assert_same_graph, tensors_of
from interbasis.base import devices
from interbasis.base.devices import torch_device
from interbasis.base.errors import InterbasisError
from interbasis.models.residual import Residual
from interbasis.models.residual import network as residual_network
from interbasis.network.network import Network
from other_device import DEVICE, NoFloat64Error, OtherDevice, StrayTensorError
from placed_dictionaries import dictionary
from tiny_models import random_model, tokens


def mlp() -> tuple[Network, Tensor]:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
    return interbasis.from_torch(module), torch.randn(20, 5)


def convolution() -> tuple[Network, Tensor]:
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
def test_a_build_on_another_device_is_the_same(name: str, settings: dict[str, Any]) -> None:
    network, data = CASES[name]()
    wanted = interbasis.build(network, data, dtype="float64", **settings).graph
    with OtherDevice() as mode:
        found = interbasis.build(network, data, dtype="float64", device=str(DEVICE), **settings).graph
    assert mode.operations > 100
    for key, tensor in tensors_of(wanted).items():
        other = tensors_of(found)[key]
        assert other.device.type == "cpu"
        assert torch.allclose(tensor, other, rtol=1e-9, atol=1e-9 * tensor.abs().max().item()), key


def test_a_graph_between_dictionaries_on_another_device_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a basis of LIB between, through an MLP and attention, with and without float64 there."""
    network, data = interbasis.from_hf(random_model("gpt2")), tokens(40, 5)
    given: dict[str, Any] = {"ln1.0": dictionary(12, 40, "topk", 1), "mlp_in.0": "lib"}
    given |= {"ln1.1": dictionary(12, 30, "relu", 2)}
    options: dict[str, Any] = {"dictionaries": given, "edge_positions": 3, "dtype": "float32"}
    wanted: Any = interbasis.build(network, data, **options).graph
    for without in (set(), {DEVICE.type}):
        monkeypatch.setattr(devices, "WITHOUT_FLOAT64", without)
        with OtherDevice(float64=not without) as mode:
            found: Any = interbasis.build(network, data, device=str(DEVICE), **options).graph
        assert mode.operations > 100
        for a, b in zip(wanted.edges, found.edges, strict=True):
            assert b.rms.device.type == "cpu"
            assert a.rms.sum().item() == pytest.approx(b.rms.sum().item(), rel=1e-3)
            assert torch.allclose(
                a.remainders, b.remainders, rtol=1e-3, atol=1e-4 * a.remainders.max().item()
            )


@pytest.mark.parametrize("name", ["mlp", "gpt2", "convolution"])
def test_an_ablation_on_another_device_is_the_same(name: str) -> None:
    network, data = CASES[name]()
    network = network.double()
    data = data if data.ndim == 2 and not data.is_floating_point() else data.double()
    labels = network(data).argmax(-1)
    graph = interbasis.build(network, data).graph
    wanted = interbasis.open_run(graph, network, (data, labels)).ablate(tolerance=0.2, stable=False)
    graph = interbasis.build(network, data).graph
    with OtherDevice() as mode:
        found = (
            interbasis.open_run(graph, network, (data, labels))
            .on(str(DEVICE))
            .ablate(tolerance=0.2, stable=False)
        )
    assert mode.operations > 100
    assert found.counts == wanted.counts


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other device is one of those that have no float64."""
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", {DEVICE.type})


def pooled() -> tuple[Network, Tensor]:
    torch.manual_seed(0)
    head = torch.nn.Flatten(), torch.nn.Linear(12, 3)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), *head)
    data = torch.randn(8, 2, 6, 6)
    return interbasis.from_torch(module, data[:2]), data


def general() -> tuple[Network, Tensor]:
    return SHARED_CASES["general"]().network, SHARED_CASES["general"]().inputs.float()


FLOAT32 = [
    (mlp, {}),
    (mlp, {"basis": "jib"}),
    (mlp, {"basis": "gib", "edge_method": "exact"}),
    (CASES["gpt2"], {"edge_group": 4}),
    (CASES["gpt2"], {"basis": "gib", "skip_positions": 1}),
    (CASES["gpt2"], {"jacobian_queries": 2, "edge_group": 2, "edge_positions": 2, "edge_sources": 2}),
    (CASES["rotary"], {"skip_positions": 1}),
    (convolution, {"edge_group": 4}),
    (pooled, {}),
    (general, {"jacobian_sources": 2}),
]
"""Networks and settings that reach every kind of sum."""


@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize(("case", "settings"), FLOAT32)
def test_a_build_on_a_device_without_float64(
    case: Callable[[], tuple[Network, Tensor]], settings: dict[str, Any]
) -> None:
    """Its sums are float64 on the CPU; those of a batch are float32, as products are on the CPU."""
    network, data = case()
    settings = settings | {"dtype": "float32"}
    wanted = interbasis.build(network, data, **settings).graph
    with OtherDevice(float64=False) as mode:
        found = interbasis.build(network, data, device=str(DEVICE), **settings).graph
    assert mode.operations > 100
    for one, other in zip(wanted.layers, found.layers, strict=True):
        assert one.features == other.features
        assert same_to_float32(one.eigenvalues, other.eigenvalues), one.name
        assert same_to_float32(one.variances, other.variances), one.name
    for one, other in zip(wanted.edges, found.edges, strict=True):
        assert other.device.type == "cpu"
        assert same_to_float32(one, other)


def same_to_float32(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Up to some roundings to float32 of the largest number."""
    if one is None or other is None:
        return one is other
    return (one - other).abs().max().item() <= 1e-5 * one.abs().max().item()


STAGES = [
    (mlp, "ablate", {"tolerance": 0.2, "robust": True, "nodes": True, "stable": False}),
    (mlp, "curves", {}),
    pytest.param(mlp, "controls", {"bases": "lib", "stressed": "", "tolerance": 0.2}, marks=pytest.mark.slow),
    (mlp, "features", {"top": 2}),
    (convolution, "ablate", {"tolerance": 0.2, "stable": False}),
    (CASES["gpt2"], "ablate", {"tolerance": 0.2, "stable": False, "sections": ("attn_in.0",)}),
    (CASES["gpt2"], "features", {"top": 1}),
]


@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize(("case", "stage", "settings"), STAGES)
def test_stages_on_a_device_without_float64(
    case: Callable[[], tuple[Network, Tensor]], stage: str, settings: dict[str, Any]
) -> None:
    network, data = case()
    labels = network(data).argmax(-1)
    graph = interbasis.build(network, data, dtype="float32", edge_group=4).graph
    run = interbasis.open_run(graph, network, (data, labels))
    wanted = getattr(run, stage)(**settings).model_dump()
    with OtherDevice(float64=False) as mode:
        found = getattr(run.on(str(DEVICE)), stage)(**settings).model_dump()
    assert mode.operations > 100
    assert list(differences(wanted, found, stage)) == []


def differences(one: object, other: object, where: str) -> Iterator[str]:
    """Where two results are not the same as far as float32 goes."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from (
                differences(one[key], other[key], f"{where}.{key}") if "seconds" not in str(key) else ()
            )
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}.{number}")
    elif isinstance(one, float) and isinstance(other, float):
        if one != pytest.approx(other, rel=1e-4, abs=1e-5, nan_ok=True):
            yield f"{where}: {one} and {other}"
    elif one != other:
        yield f"{where}: {one} and {other}"


@pytest.mark.usefixtures("without_float64")
def test_float64_on_a_device_that_has_none_is_refused() -> None:
    network, data = mlp()
    with OtherDevice(float64=False):
        for dtype in ("float64", None):
            with pytest.raises(InterbasisError, match=r"meta has no float64.*the network"):
                interbasis.build(network, data, dtype=dtype, device=str(DEVICE))
        graph = interbasis.build(network, data).graph
        with pytest.raises(InterbasisError, match=r"\(--dtype float32\), or choose"):
            interbasis.open_run(graph, network, data).on(str(DEVICE))


@pytest.mark.slow
@pytest.mark.usefixtures("without_float64", "small_chunks")
def test_sums_are_taken_up_again_beside_a_device_without_float64(tmp_path: Path) -> None:
    network, data = CASES["gpt2"]()
    network = network.between(["attn_in.0", "ln2.0", "ln2_out.0", "mlp_in.0"])
    settings: dict[str, Any] = {"dtype": "float32", "device": str(DEVICE)}
    with OtherDevice(float64=False):
        wanted = interbasis.build(network, data, **settings).graph
        found, kills = build_with_kills(network, data, tmp_path / "run", **settings)
    assert kills > 3
    assert_same_graph(wanted, found)


def test_a_float64_tensor_is_seen() -> None:
    with OtherDevice(float64=False):
        there = torch.ones(3, device=DEVICE)
        assert there.cpu().double().dtype == torch.float64
        here = torch.zeros(3, dtype=torch.float64)
        for wrong in (
            there.double, lambda: there.sum(dtype=torch.float64), lambda: there.to("cpu", torch.float64),
            lambda: here.to(DEVICE), lambda: here.copy_(there),
        ):  # fmt: skip
            with pytest.raises(NoFloat64Error):
                wrong()


def test_a_stray_tensor_is_seen() -> None:
    with OtherDevice():
        there = torch.ones(3, device=DEVICE)
        assert (there + there).cpu().tolist() == [2, 2, 2]
        assert (there + torch.tensor(1.0)).cpu().tolist() == [2, 2, 2]
        with pytest.raises(StrayTensorError, match="on the CPU"):
            there + torch.ones(3)


def test_devices_by_name() -> None:
    assert torch_device("cpu").type == "cpu"
    with pytest.raises(InterbasisError, match="device that this machine has"):
        torch_device("nonsense")
    with pytest.raises(InterbasisError, match=r"\(cpu, cuda, cuda:1, mps\).*'mps'"):
        torch_device("mps")
