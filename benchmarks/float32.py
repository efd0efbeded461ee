"""What float32 keeps: a language model built in float32 and in float64 on the same tokens, layer by layer.

    python float32.py FOLDER TOKENS [--massive] [--block N]

FOLDER is a Hugging Face model, TOKENS a file of uint16 tokens of which 12 windows of 256 are read. With
``--massive`` one coordinate of the first position is raised by 1,000, as real models have it (GPT-2 only).
All tokens count in the sums unless a ``--norm-limit`` is given.
The tables are Markdown, as in docs/results/float32.md.
"""

import argparse

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from interbasis import build, from_hf
from interbasis.graph.layer_basis import LayerBasis


def main(options: argparse.Namespace) -> None:
    windows = options.windows
    stream = np.fromfile(options.tokens, dtype=np.uint16)[: windows * 256].astype(np.int64)
    inputs = torch.from_numpy(stream).view(windows, 256)
    model = AutoModelForCausalLM.from_pretrained(options.folder)
    if options.massive:
        with torch.no_grad():
            model.transformer.wpe.weight[0, 3] += 1000
    network = from_hf(model, options.block)
    settings = {"norm_limit": options.norm_limit, "edge_group": options.edge_group}
    single, double = (
        build(network, inputs, dtype=dtype, **settings).graph for dtype in ("float32", "float64")
    )
    titles = "layer | kept in float32 | in float64 | smallest Λ / largest | error of Λ | error of Ê"
    print(f"| {titles} | dropped D / floor | kept D / floor |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for k, (mine, theirs) in enumerate(zip(single.layers[:-1], double.layers[:-1], strict=True)):
        first = 1 + theirs.isolated
        ranked = theirs.eigenvalues[first:]
        error = "differ" if mine.features != theirs.features else f"{of_eigenvalues(mine, theirs):.1e}"
        print(
            f"| {theirs.name} | {mine.features} | {theirs.features} | {ranked.min() / ranked.max():.1e} "
            f"| {error} | {of_edges(single.edges[k], double.edges[k])} | {multiple(mine, 'largest_dropped')} "
            f"| {multiple(mine, 'smallest_kept')} |"
        )


def of_eigenvalues(mine: LayerBasis, theirs: LayerBasis) -> float:
    """The largest error of any Λ, relative to itself."""
    return ((mine.eigenvalues - theirs.eigenvalues).abs() / theirs.eigenvalues).max().item()


def of_edges(mine: Tensor, theirs: Tensor) -> str:
    """‖ΔÊ‖ / ‖Ê‖, the constant's edges left out; eigenvectors of nearly equal Λ mix freely."""
    if mine.shape != theirs.shape:
        return "differ"
    return f"{((mine - theirs)[1:, 1:].norm() / theirs[1:, 1:].norm()).item():.1e}"


def multiple(layer: LayerBasis, which: str) -> str:
    """The variance that is dropped (kept) nearest to its floor, in multiples of it."""
    cut = layer.variance_cut
    value = getattr(cut, which)
    return "–" if value is None else f"{value / cut.floor:.1e}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("tokens")
    parser.add_argument("--massive", action="store_true")
    parser.add_argument("--block", type=int, help="one block alone; default: the whole model")
    parser.add_argument("--windows", type=int, default=12, help="of 256 tokens")
    parser.add_argument("--norm-limit", type=float, default=0.0, help="default: all tokens count")
    parser.add_argument("--edge-group", choices=["positions"], help="estimate the edges; default: exact")
    main(parser.parse_args())
