"""Networks with graphs that drop directions, an input of each, and their traces."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from torch import Tensor, nn

import interbasis
from cases import mlp, modular_addition
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


def from_case(case) -> Traced:
    inputs = case.inputs[:5]
    return Traced(case.network, interbasis.build(case.network, inputs, dtype="float64").graph, case.inputs[7])


FAMILIES: dict[str, Callable[[], Traced]] = {
    "mlp": lambda: from_case(mlp(nn.GELU())),
    "modadd": lambda: from_case(modular_addition()),
    "gpt2": lambda: language_model("gpt2"),
    "llama": lambda: language_model("llama"),
    "gemma2": lambda: language_model("gemma2"),
    "llama, first token left out": lambda: language_model("llama", left_out=1),
}


@cache
def family(name: str) -> Traced:
    return FAMILIES[name]()


@cache
def traced(name: str, target: TargetRequest | None = None, **settings) -> Trace:
    case = family(name)
    chosen = TraceSettings(**{"checks": 0, "effect_points": 0, **settings})
    return trace_inputs(case.network, case.graph, case.sample, target, settings=chosen)
