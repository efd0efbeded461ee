"""Networks that learnt nothing, of the same shape: what sparsity looks like without a function.

The weights are changed in the model that a network was made from, and the model is converted again
(`Network.remake`). What belongs to the architecture stays what it is: activations, residual paths, norms.
`interbasis.models.matrices` says what counts as a weight matrix.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from interbasis.base.devices import double
from interbasis.base.errors import InterbasisError
from interbasis.network.network import Change, Network


def shuffled(network: Network, seed: int = 0) -> Network:
    """Every weight matrix with its entries in random order; biases, norms and embeddings stay."""
    return _changed(network, seed, _permuted)


def reinitialised(network: Network, seed: int = 0) -> Network:
    """Every weight matrix drawn from a Gaussian with its own standard deviation."""
    return _changed(network, seed, _drawn)


def require_remake(network: Network) -> Callable[[Change], Network]:
    """What makes the network again with other weights, if it does make this network with its own ones."""
    if network.remake is None:
        raise InterbasisError(
            "expected a network that can be made again with other weights, received one put together from "
            "sections, whose weights cannot be distinguished from their structure; give the Network "
            "remake=function, where function(change) returns it with change(W) in place of every weight "
            "matrix W, or leave scrambled networks out with scrambles=0"
        )
    if network.remake(torch.clone).fingerprint() != network.fingerprint():
        raise InterbasisError(
            "the model that this network was made from now gives another network: its weights, or the "
            "network's sections, were changed since; convert the model again"
        )
    return network.remake


def _changed(network: Network, seed: int, change: Callable[[Tensor, torch.Generator], Tensor]) -> Network:
    generator = torch.Generator().manual_seed(seed)
    return require_remake(network)(lambda matrix: change(matrix, generator))


def _permuted(matrix: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(matrix.numel(), generator=generator)
    return matrix.flatten()[order.to(matrix.device)].view_as(matrix)


def _drawn(matrix: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
    return (drawn * double(matrix).std().cpu()).to(matrix)
