"""Edges required by bisection: one full forward pass per different mask, against kept columns and tables.

    python ablation.py [CHECKPOINT]        a modular-addition checkpoint; the shipped one without it

All three walk the same path on the same data in one process, and must end at the same number of edges.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

import interbasis
from common import machine, report, seconds
from interbasis import modadd
from interbasis.analysis.ablation import masked_pass
from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.ablation.search import edges_required
from interbasis.data.modadd import Labelled
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_models import SHIPPED
from interbasis.lib.coordinates import sections_in_bases
from interbasis.network.network import Network

SECTION = 0


def naive(network: Network, graph: InteractionGraph, data: Labelled) -> int:
    """The reference: features that may not be seen are set to 0, the section runs whole for every mask."""
    section = sections_in_bases(network, graph.layers)[SECTION]
    features = graph.layers[SECTION].to_features(network.activations_at(SECTION, data.inputs))
    edges = graph.edges[SECTION]

    def ablated(mask: Tensor) -> Tensor:
        result = None
        different, which = mask.unique(dim=0, return_inverse=True)
        for k, row in enumerate(different):
            output = section(features * row)
            result = torch.empty_like(output) if result is None else result
            result[..., which == k] = output[..., which == k]
        return result

    def accuracy(kept: int) -> float:
        f = graph.layers[SECTION + 1].from_features(ablated(top_edges(edges, kept)))
        for later in network.sections[SECTION + 1 :]:
            f = later(f)
        return 1 - (f[:, -1].argmax(-1) != data.labels).double().mean().item()

    limit = 1 - (network(data.inputs).argmax(-1) != data.labels).double().mean().item() - 0.001
    whole = graph.provenance.widths[SECTION] * graph.provenance.widths[SECTION + 1]
    low, high = 0, whole
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accuracy(whole - middle) >= limit else (low, middle)
    return whole - low


def ours(network: Network, graph: InteractionGraph, data: Labelled) -> int:
    return edges_required(network, graph, data, sections=[SECTION], stable=False)[0].count


def without_tables(network: Network, graph: InteractionGraph, data: Labelled) -> int:
    original, masked_pass.tabulate = masked_pass.tabulate, lambda f: None
    try:
        return ours(network, graph, data)
    finally:
        masked_pass.tabulate = original


def main() -> None:
    checkpoint = sys.argv[1] if len(sys.argv) > 1 else SHIPPED
    network = modadd.load(checkpoint).double()
    train, test = modadd.split()
    graph = interbasis.build(network, train).graph
    counts: dict[str, int] = {}
    times = {}
    with torch.no_grad():
        for way in (ours, without_tables, naive):

            def work(way: Callable[..., int] = way) -> None:
                counts[way.__name__] = way(network, graph, test)

            times[way.__name__] = seconds(work, repeat=1 if way is naive else 2)
    if len(set(counts.values())) != 1:
        raise SystemExit(f"the three do not agree: {counts}")
    report(
        "bisection of the attention section",
        machine()
        | {
            "edges required": counts["ours"],
            "full pass per mask, s": times["naive"],
            "kept columns, s": times["without_tables"],
            "kept columns and tables, s": times["ours"],
            "ratio, kept columns": times["naive"] / times["without_tables"],
            "ratio, with tables": times["naive"] / times["ours"],
        },
    )


if __name__ == "__main__":
    main()
