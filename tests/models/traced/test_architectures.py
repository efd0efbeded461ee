"""Whole architectures: their outputs, their Jacobian Grams and edges, node layers by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases import normal
from interbasis import InterbasisError, build, from_torch
from interbasis.analysis.ablation.masked_pass import ablated
from interbasis.lib.coordinates import sections_in_bases
from interbasis.network.cores import General
from interbasis.network.network import Section
from models.traced import networks
from reference import jacobian_gram, relative_error

CASES = {
    "ResNet-18": (networks.ResNet18, (3, 16, 16)),
    "VGG": (networks.VGG, (3, 12, 12)),
    "MobileNetV2": (networks.MobileNetV2, (3, 16, 16)),
    "U-Net": (networks.UNet, (2, 8, 8)),
    "pre-norm": (lambda: networks.encoder(True), (4, 12)),
    "post-norm": (lambda: networks.encoder(False), (4, 12)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "ResNet-18" else ()) for name in CASES]
)  # its parts are those of the others, and of cifar10-conv
def test_outputs_are_the_modules_own_and_nothing_is_general(name: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[name]
    module = networks.with_statistics(make())
    network = from_torch(module, normal(2, *shape))
    inputs = normal(4, *shape, seed=1)
    assert relative_error(network(inputs), module(inputs)) <= 1e-9
    assert not any(isinstance(section.core, General) for section in network.sections)
    if "norm" in name:  # sequences of any length
        assert relative_error(network(inputs[:, :3]), module(inputs[:, :3])) <= 1e-9


def test_layers_by_name_and_general_sections_between_them() -> None:
    torch.manual_seed(0)
    module = networks.with_statistics(networks.VGG())
    inputs = normal(3, 3, 12, 12)
    network = from_torch(module, inputs, layers=["features.4", "features.10", "classifier.0", "classifier.3"])
    assert network.layers == ["features.4", "features.10", "classifier.0", "classifier.3", "output"]
    section = network.sections[1]  # over two layers, to a coarser grid
    f = network.activations(inputs)[1]
    _check_gram(section, f)
    part = network.between(network.layers[1:4])
    graph = build(part, inputs).graph
    assert all(edges.isfinite().all() for edges in graph.edges)
    in_bases = sections_in_bases(part, graph.layers)[0]
    features = graph.layers[0].to_features(f)
    mask = normal(len(graph.edges[0]), features.shape[2]) > 0
    expected = [in_bases(features * kept)[..., i] for i, kept in enumerate(mask)]
    assert relative_error(ablated(in_bases, features, mask), torch.stack(expected, -1)) <= 1e-10
    assert relative_error(network(inputs), module(inputs)) <= 1e-9
    with pytest.raises(InterbasisError, match=r"no module 'features\.44'; .* 'features\.4'"):
        from_torch(module, inputs, layers=["features.44"])


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.write(torch.softmax(self.read(x), -1))


def test_a_general_section_is_named_with_its_line_and_is_exact() -> None:
    torch.manual_seed(0)
    module, inputs = Gate().double(), normal(5, 4)
    network = from_torch(module, inputs)
    section: Any = next(section for section in network.sections if isinstance(section.core, General))
    assert "test_architectures.py" in section.core.name
    assert "softmax" in section.core.name
    with pytest.raises(InterbasisError, match=r"softmax .* no closed form.*general=True"):
        from_torch(module, inputs, general=False)
    _check_gram(section, network.activations(inputs)[network.sections.index(section)])


def _check_gram(section: Section, f: torch.Tensor) -> None:
    from interbasis.network.section_jacobian import DenseJacobian

    core, identity = section.core, torch.eye(section.target.width, dtype=torch.float64)
    assert isinstance(core, General)
    jacobian = DenseJacobian.from_section(section, None)
    sums = core.batch_sums(section.read_outs(f), section.outputs(f), jacobian.metric, None)
    count = len(f) * f.shape[1]
    gram = jacobian.gram(core.moments(sums, jacobian.metric), count, count)
    expected = jacobian_gram(section, f, identity)[1:, 1:]
    assert relative_error(gram.matrix, expected) <= 1e-10
    assert section(torch.zeros_like(f)).abs().max() <= 1e-12


def test_a_graph_is_built_of_a_traced_network() -> None:
    torch.manual_seed(0)
    module = networks.with_statistics(networks.UNet())
    network = from_torch(module, normal(2, 2, 4, 4))
    graph = build(network, normal(6, 2, 4, 4, seed=2)).graph
    assert len(graph.edges) == len(network.sections)
    assert all(edges.isfinite().all() for edges in graph.edges)


@pytest.mark.slow
def test_mobilenet(real_model: Callable[[str], Path]) -> None:
    from safetensors.torch import load_file

    module = networks.MobileNetV2(networks.FULL, (32, 1280), 1000)
    module.load_state_dict(load_file(real_model("mobilenet") / "mobilenet_v2.safetensors"))
    module.double().eval()
    images = normal(2, 3, 64, 64)
    assert relative_error(from_torch(module, images)(images), module(images)) <= 1e-9
