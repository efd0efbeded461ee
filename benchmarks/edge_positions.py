"""Errors of attention's edges from signed sums over all positions of a sequence, and over some of them.

    python edge_positions.py FOLDER TEXT [--block N] [--windows N] [--context T] [--positions Q …]

FOLDER is a Hugging Face model with its tokenizer. The bases are LIB's of one block. Estimates are compared
with exact edges, from every token by itself, for 16 output features and 64 input features of attention,
spread over all of them.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from interbasis import build, from_hf
from interbasis.data.batches import Batches
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.coordinates import sections_in_bases
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.edges import EdgeSettings, measure
from interbasis.network.cores import Attention
from interbasis.network.network import Network
from interbasis.numerics.integration import rule
from interbasis.numerics.random_signs import Sources

ROWS, COLUMNS, QUERIES = 16, 64, 64
FITTED_ON = 10
"""Sequences that the bases are fitted on."""


@torch.no_grad()
def main(options: argparse.Namespace) -> None:
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    count = options.windows * options.context
    tokens = tokenizer(Path(options.text).read_text(encoding="utf-8")[: 12 * count])
    inputs = torch.tensor(tokens["input_ids"][:count]).view(options.windows, options.context)
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32)
    network = from_hf(model, options.block)
    graph = build(network, inputs[:FITTED_ON], jacobian_queries=64, edge_method=None).graph
    network = network.to(torch.float32)
    k = next(k for k, section in enumerate(network.sections) if isinstance(section.core, Attention))
    rows, columns = (
        torch.linspace(1, layer.features - 1, some).long()
        for layer, some in ((graph.layers[k + 1], ROWS), (graph.layers[k], COLUMNS))
    )
    wanted = exact(network, graph, inputs, k, rows, columns)
    print(f"{count} tokens in {options.windows} sequences, section {graph.layer_names[k]}")
    for positions in (*options.positions, None):
        settings = EdgeSettings(
            rule("gradient"),
            Sources("positions", 1, positions=positions),
            CountedTokens.from_layers(network, graph.layers),
        )
        edges = measure(network, graph.layers, Batches(inputs), settings)[k].edges
        found, claimed = (part[rows][:, columns] for part in (edges.rms, edges.error))
        error = (found / wanted - 1).abs()
        high = error.flatten().quantile(0.9)
        print(
            f"{positions or 'all'} positions: median error of Ê {error.median():.1%}, nine of ten below "
            f"{high:.1%}; claimed standard error {(claimed / found).median():.1%} (median)",
            flush=True,
        )


def exact(
    network: Network, graph: InteractionGraph, inputs: Tensor, k: int, rows: Tensor, columns: Tensor
) -> Tensor:
    """Ê of some features, token by token."""
    section, counted = (
        sections_in_bases(network, graph.layers)[k],
        CountedTokens.from_layers(network, graph.layers),
    )
    transform = graph.layers[k].transform.to(section.like)
    write, skip = section.write[rows], section.skip[rows][:, columns]
    total, tokens = torch.zeros(len(rows), len(columns), dtype=torch.float64), 0
    for one in inputs.split(1):
        activations = network.activations(one)
        f = activations[k] @ transform.T
        u, some = f @ section.read.T, f[..., columns]
        masks = counted.between(network, k, activations[k], activations[k + 1])
        told = torch.ones(f.shape[1])
        if masks is not None:
            some, told = some * masks.inputs[..., None], masks.outputs[0].to(f)
        tokens += f.shape[1] if masks is None else int(masks.inputs.sum())
        for start in range(0, f.shape[1], QUERIES):
            here = slice(start, min(start + QUERIES, f.shape[1]))
            inner = section.core.attributions(u, some, section.read[:, columns], here, rule("gradient"))
            block = torch.einsum("oc,csj->osj", write, inner) + skip[:, None] * some[0, here]
            total += (block * told[here, None]).square().double().sum(1)
    return (total / tokens).sqrt()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--block", type=int, default=14)
    parser.add_argument("--windows", type=int, default=100, help="sequences")
    parser.add_argument("--context", type=int, default=1024, help="tokens in each")
    parser.add_argument("--positions", type=int, nargs="+", default=[16, 32, 64], help="of a sequence")
    main(parser.parse_args())
