"""Networks with graphs that drop directions, an input of each, and their traces."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import interbasis
from cases import Case, mlp, modular_addition, normal
from interbasis.analysis.traces.records import Trace, TraceSettings
from interbasis.analysis.traces.targets import TargetRequest
from interbasis.analysis.traces.trace import trace as trace_inputs
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from tiny_models import random_model, tokens

ALL = {"max_nodes": 10**6, "node_threshold": 1.0, "edge_threshold": 1.0}


@dataclass(frozen=True)
class Traced:
    """A network with a graph that drops directions, and one input."""

    network: Network
    graph: InteractionGraph
    sample: Tensor
    left_out: int = 0
    """First positions that the bases do not describe."""


def language_model(name: str, left_out: int = 0) -> Traced:
    network = interbasis.from_hf(random_model(name)).double()
    data = tokens(samples=3, positions=5)  # fewer tokens than coordinates: directions are dropped
    graph = interbasis.build(network, data, dtype="float64", skip_positions=left_out).graph
    return Traced(network, graph, data[0][:3], left_out)


def from_case(case: Case) -> Traced:
    inputs = case.inputs[:5]
    return Traced(case.network, interbasis.build(case.network, inputs, dtype="float64").graph, case.inputs[7])


def from_module(module: nn.Module, inputs: Tensor) -> Traced:
    network = interbasis.from_torch(module.double().eval(), example=inputs[:2])
    graph = interbasis.build(network, inputs[:6], dtype="float64").graph
    return Traced(network, graph, inputs[7])


class Encoder(nn.Module):
    """An encoder over vectors, averaged over its positions at the end."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.read = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    """An LSTM, which has no closed form, read at its last position."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.read = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.cells(x)[0][:, -1])


def convolution() -> Traced:
    """Strides, zero padding, a maximum, and pixels that are flattened at the end."""
    torch.manual_seed(21)
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2),
        nn.GELU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(3, 4, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    return from_module(module, normal(8, 2, 6, 6, seed=22))


def seeded_module(make: Callable[[], nn.Module], inputs: Tensor) -> Traced:
    torch.manual_seed(23)
    return from_module(make(), inputs)


FAMILIES: dict[str, Callable[[], Traced]] = {
    "mlp": lambda: from_case(mlp(nn.GELU())),
    "modadd": lambda: from_case(modular_addition()),
    "gpt2": lambda: language_model("gpt2"),
    "llama": lambda: language_model("llama"),
    "gemma2": lambda: language_model("gemma2"),
    "convolution": convolution,
    "encoder": lambda: seeded_module(Encoder, normal(8, 4, 6, seed=24)),
    "lstm": lambda: seeded_module(Recurrent, normal(8, 4, 3, seed=25)),
    "llama, first token left out": lambda: language_model("llama", left_out=1),
}


@cache
def family(name: str) -> Traced:
    return FAMILIES[name]()


@cache
def traced(name: str, target: TargetRequest | None = None, **settings: Any) -> Trace:
    case = family(name)
    chosen = TraceSettings(**{"checks": 0, "effect_points": 0, **settings})
    return trace_inputs(case.network, case.graph, case.sample, target, settings=chosen)
