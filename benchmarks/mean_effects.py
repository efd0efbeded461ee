"""Share of the mean effect on the output that leading directions carry.

    python benchmarks/mean_effects.py hf:FOLDER TOKENS --layers ln1.1,ln1.2

J̄ = E[Σ_s ∂u_s / ∂h_t] is the mean over tokens of what a change of the residual stream h at a position does
to the last node layer u at this and all later positions, exact, by backward passes. Of uncorrelated
directions d_j of the stream, scaled to their standard deviations, the leading r carry Σ_j≤r ‖J̄ d_j‖² of
tr(J̄ΣJ̄ᵀ). No other r of them carry more than the r largest eigenvalues of Σ^½ J̄ᵀJ̄ Σ^½ add up to.
"""

import argparse

import torch
from torch import Tensor

import interbasis
from interbasis.base.records import Basis
from interbasis.graph.named_models import open_model
from interbasis.network.network import Network

LEADING = (4, 8, 16)


def mean_effect(network: Network, layer: int, windows: Tensor) -> Tensor:  # [n, T] -> [outputs, width]
    """J̄, over all tokens of some windows."""
    total: Tensor | None = None
    for window in windows:
        f = network.activations_at(layer, window[None]).requires_grad_()
        u = f
        for section in network.sections[layer:]:
            u = section(u)
        sums = u[0].sum(0)
        rows = [torch.autograd.grad(value, f, retain_graph=True)[0][0].mean(0) for value in sums]
        total = torch.stack(rows) if total is None else total + torch.stack(rows)
    assert total is not None
    return total / len(windows)


def main() -> None:
    """Print the shares of every layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--layers", required=True)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--windows", type=int, default=30)
    arguments = parser.parse_args()
    named = open_model(arguments.model)
    network = named.network.to(torch.float64)
    data = named.open_data(f"tokens:{arguments.tokens},context=128,part=all,samples={arguments.samples}")
    windows, _ = data.read(0, arguments.windows)
    bases: tuple[Basis, ...] = ("lib", "pca", "random")
    graphs = {
        basis: interbasis.build(
            network, data, basis=basis, edge_method=None, norm_limit=0, dtype="float64", jacobian_queries=16,
            progress=False,
        ).graph
        for basis in bases
    }  # fmt: skip
    for name in arguments.layers.split(","):
        index = network.layers.index(name)
        effect = mean_effect(network, index, windows)[:, 1:]
        f = network.activations_at(index, windows).flatten(0, 1)
        covariance = torch.cov(f[:, 1:].T, correction=0)
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
        best = torch.linalg.svdvals(effect @ root).square()
        line = [f"{name}: best {', '.join(f'{best[:r].sum() / best.sum():.2f}' for r in LEADING)}"]
        for basis, graph in graphs.items():
            layer = graph.layers[index]
            spread = layer.to_features(f)[:, 1:].std(0, correction=0)
            carried = (effect @ layer.inverse[1:, 1:] * spread).square().sum(0)
            line.append(f"{basis} {', '.join(f'{carried[:r].sum() / best.sum():.2f}' for r in LEADING)}")
        print("; ".join(line), flush=True)


if __name__ == "__main__":
    main()
