"""The method in one file, by autograd alone, beside the library."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import CASES, mlp
from interbasis.analysis.ablation.search import edges_required
from interbasis.models import modadd
from interbasis.network.network import Network
from pages import ROOT

specification = importlib.util.spec_from_file_location(
    "lib_in_one_file", ROOT / "examples" / "lib_in_one_file.py"
)
one_file = importlib.util.module_from_spec(specification)
specification.loader.exec_module(one_file)


def transformer() -> tuple[Network, Tensor, Any, Tensor | Any]:
    case = CASES["modadd"]()
    bias = case.weights["unembed.b_U"] - case.network(case.inputs).mean(0)  # answers that differ
    case.weights["unembed.b_U"] = bias
    weights = {name.split(".")[-1]: value for name, value in case.weights.items()}
    stream = weights["W_E"][case.inputs] + weights["W_pos"]
    return modadd.from_weights(case.weights), case.inputs, one_file.transformer_sections(weights), stream


def perceptron() -> tuple[Network, Tensor, Any, Tensor]:
    case = mlp(nn.ReLU(), widths=(6, 9, 7, 4), samples=60)
    with torch.no_grad():  # answers that differ
        case.original[-1].bias -= case.original(case.inputs).mean(0)
    layers = [layer for layer in case.original if isinstance(layer, nn.Linear)]
    return (
        interbasis.from_torch(case.original),
        case.inputs,
        one_file.mlp_sections(layers, torch.relu),
        case.inputs[:, None],
    )


@pytest.mark.parametrize("example", [transformer, perceptron])
@torch.no_grad()
def test_bases_edges_and_counts_are_the_librarys(example: Callable[..., Any]) -> None:
    network, inputs, sections, x = example()
    graph = interbasis.build(network, inputs, progress=False).graph
    f = one_file.with_constant(x)
    bases = one_file.lib(sections, f, rotate_last=network.rotate_last)
    activations = one_file.activations(sections, f)
    answers = network(inputs).argmax(-1)
    required = edges_required(network, graph, (inputs, answers), tolerance=0.1, progress=False)
    for basis, layer in zip(bases, graph.layers, strict=True):
        assert basis.C.shape == (layer.features, layer.width)
        signs = (basis.C * layer.transform).sum(1).sign()
        for found, expected in (
            (basis.C * signs[:, None], layer.transform), (basis.C_plus * signs, layer.inverse)
        ):  # fmt: skip
            assert (found - expected).abs().max() <= 1e-8 * expected.abs().max()
    for k, section in enumerate(sections):
        edges = one_file.edges(section, activations[k], bases[k], bases[k + 1])
        assert (edges - graph.edges[k]).abs().max() <= 1e-8 * graph.edges[k].max()
        lost = len(answers) // 10
        found = one_file.edges_required(sections, bases, k, edges, f, answers, lost=lost)
        assert found == max(required[k].count, 1)  # the paper's bisection never asks for none at all


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    one_file.main()
    assert capsys.readouterr().out.count("edges suffice") == 2
