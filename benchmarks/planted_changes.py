"""Planted changes in a language model: is the section found, and the input directions?

    python benchmarks/planted_changes.py MODEL-FOLDER TOKENS --out FILE [--block 1] [--samples 4]
        [--context 96] [--dtype float32] [--noise 0 0.001] [--memory 4GB]

Three models that differ from MODEL-FOLDER in one block, whose neighbours are measured with it: what one
neuron reads, the query matrix of one head, and a rank-1 update of what the MLP reads; with noise, all weights
of attention and MLPs in the three blocks are changed by this much of their size as well. TOKENS is data as
`interbasis build` takes it, without samples and context. Every result is a line of FILE; the same command
resumes.

Overlaps are shares of the planted space in a span: of as many leading directions as were planted, and of as
many as the Jacobian of the change has rows (a neuron 2, with a gate 3, a query matrix 4 per coordinate of
the head: its old and new rows, keys and values), in which the planted space lies whole by construction.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import interbasis
from interbasis.data.batches import Data
from interbasis.graph.named_models import open_model
from interbasis.network.network import Network, Section

HEAD, NEURON, SIZE = 1, 7, 0.5


def reading(block: Any, mlp: bool) -> tuple[Tensor, Tensor]:
    """W [d_in, d_out] that an MLP (its gate, if any) or queries read with, and the gain of the norm."""
    if hasattr(block, "ln_1"):
        weight = block.mlp.c_fc.weight if mlp else block.attn.c_attn.weight
        return weight.data, (block.ln_2 if mlp else block.ln_1).weight.data
    weight = block.mlp.gate_proj.weight if mlp else block.self_attn.q_proj.weight
    return weight.data.T, (block.post_attention_layernorm if mlp else block.input_layernorm).weight.data


def neuron(weight: Tensor, width: int, noise: Callable[..., Tensor]) -> Tensor:
    change = SIZE * noise(len(weight)) * weight[:, NEURON].std()
    weight[:, NEURON] += change
    return change[:, None]


def query(weight: Tensor, width: int, noise: Callable[..., Tensor]) -> Tensor:
    change = SIZE * noise(len(weight), width) * weight[:, : weight.shape[1]].std()
    weight[:, HEAD * width : (HEAD + 1) * width] += change
    return change


def rank_1(weight: Tensor, width: int, noise: Callable[..., Tensor]) -> Tensor:
    change = noise(len(weight), 1)
    weight += 0.2 * weight.std() * change @ noise(1, weight.shape[1])
    return change


def overlap(directions: Tensor, planted: Tensor) -> float:  # [k, d_in], [d, r]
    """Share of the planted space in the span of directions; the stream follows the constant."""
    span = torch.linalg.qr(directions[:, 1 : 1 + len(planted)].T.double()).Q
    return float((span.T @ torch.linalg.qr(planted.double()).Q).square().sum() / planted.shape[1])


def with_noise(section: Section, noise: float, generator: torch.Generator) -> Section:
    """The section with every weight that reads or writes times 1 + noise · normal."""
    changed: dict[str, Any] = {
        name: matrix * (1 + noise * torch.randn(matrix.shape, generator=generator))
        for name, matrix in (("read", section.read), ("write", section.write))
    }
    return replace(section, **changed)


def measure(
    model: nn.Module, first: Network, name: str, noise: float, options: argparse.Namespace, data: Data
) -> dict[str, Any]:
    """Plant a change, measure the difference, and take the change back."""
    block = (model.transformer.h if hasattr(model, "transformer") else model.model.layers)[options.block]
    heads = getattr(model.config, "num_attention_heads", None)
    weight, gain = reading(block, mlp=name != "query")
    before, generator = weight.clone(), torch.Generator().manual_seed(0)
    plant = {"neuron": neuron, "query": query, "rank_1": rank_1}[name]
    change = plant(weight, model.config.hidden_size // heads, lambda *s: torch.randn(*s, generator=generator))
    near = interbasis.from_hf(model, options.block)
    weight.copy_(before)
    moved = dict(zip(near.layers, near.sections, strict=False))
    place = f"{'attn_in' if name == 'query' else 'mlp_in'}.{options.block}"
    sections = [
        moved[layer] if layer == place else section
        for layer, section in zip(first.layers, first.sections, strict=False)
    ]
    if noise:
        sections = [
            with_noise(section, noise, generator) if layer.startswith(("attn_in", "mlp_in")) else section
            for layer, section in zip(first.layers, sections, strict=False)
        ]
    planted = change.shape[1]
    rank = {"neuron": 3 if hasattr(block.mlp, "gate_proj") else 2, "query": 4 * planted, "rank_1": 1}[name]
    began = time.process_time()
    result = interbasis.diff(
        first, replace(first, sections=tuple(sections), remake=None), data, directions=rank,
        examples=1, dtype=options.dtype, memory=options.memory, progress=False,
    )  # fmt: skip
    record, space = result.record, gain[:, None] * change
    treated, read = (result.tensors[f"{place}.{side}"] for side in ("inputs", "reading"))
    after = zip(record.sections, list(record.layers.values())[1:], strict=True)
    arising = {name: layer.arising for name, layer in after}
    here, section = arising.pop(place), record.sections[place]
    return {
        "change": name, "noise": noise, "section": place, "arising": here, "next": max(arising.values()),
        "outputs": section.outputs.model_dump(), "jacobian": section.jacobian.model_dump(),
        "directions": planted, "rank": rank, "reading": overlap(read[:planted], space),
        "inputs": overlap(treated[:planted], space), "inputs of the rank": overlap(treated, space),
        "head": section.heads[0].model_dump() if section.heads else None,
        "seconds": round(time.process_time() - began, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--block", type=int, default=1)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--context", type=int, default=96)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.001])
    parser.add_argument("--memory", help="of the comparison; default: no limit")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = [(row["change"], row["noise"]) for row in map(json.loads, lines)]
    blocks = f"{max(0, options.block - 1)}-{options.block + 1}"  # all others are the same
    named = open_model(f"hf:{options.model},blocks={blocks}")
    data = named.open_data(f"{options.tokens},samples={options.samples},context={options.context}")
    model = AutoModelForCausalLM.from_pretrained(options.model).float().eval()
    for noise, name in itertools.product(options.noise, ("query", "neuron", "rank_1")):
        if (name, noise) not in done:
            row = measure(model, named.network, name, noise, options, data)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
