"""Networks that learnt nothing, of the same shape: what sparsity looks like without a function."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from interbasis.network import Network, Section

Change = Callable[[Tensor, torch.Generator], Tensor]


def shuffled(network: Network, seed: int = 0) -> Network:
    """Every weight matrix with its entries in random order; biases, embeddings and skips stay."""
    return _changed(network, seed, _permuted)


def reinitialised(network: Network, seed: int = 0) -> Network:
    """Every weight matrix drawn anew from a Gaussian with its own standard deviation."""
    return _changed(network, seed, _drawn)


def _changed(network: Network, seed: int, change: Change) -> Network:
    generator = torch.Generator().manual_seed(seed)

    def section(old: Section) -> Section:
        first_in = 1 if old.source.constant else 0
        first_out = 1 if old.target.constant else 0
        new = {}
        if len(old.read):
            new["read"] = _inside(old.read, (0, first_in), generator, change)
            new["write"] = _inside(old.write, (first_out, 0), generator, change)
        else:
            new["skip"] = _inside(old.skip, (first_out, first_in), generator, change)
        return replace(old, **new)

    return replace(
        network, sections=tuple(map(section, network.sections)), tail=tuple(map(section, network.tail))
    )


def _inside(matrix: Tensor, first: tuple[int, int], generator: torch.Generator, change: Change) -> Tensor:
    """Change all but the constant's row and column."""
    result = matrix.clone()
    inner = result[first[0] :, first[1] :]
    inner.copy_(change(inner, generator))
    return result


def _permuted(matrix: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(matrix.numel(), generator=generator)
    return matrix.flatten()[order.to(matrix.device)].view_as(matrix)


def _drawn(matrix: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
    return (drawn * matrix.double().std().cpu()).to(matrix)
