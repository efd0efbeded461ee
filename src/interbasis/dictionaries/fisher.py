"""Mean Fisher metric of the output, by backward passes.

For x_t a token's activations and p_s the distribution that the network puts out at position s,

    F = E_t Σ_s Σ_y p_s(y) g gᵀ,    g = ∂ log p_s(y) / ∂x_t  [d].

With y_s drawn from p_s at every position, the gradient of Σ_s log p_s(y_s) has the mean square F: scores of
different positions have mean 0 and are independent. So a backward pass per batch gives a sample for every
token and layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from interbasis.compute.executor import Chunk, SumsPass, add_sums
from interbasis.dictionaries.streams import StreamPlace
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.network.network import Network


@dataclass(eq=False)
class FisherPass(SumsPass):
    """Σ g gᵀ [d, d] and the number of tokens, of every stream."""

    network: Network
    places: Sequence[StreamPlace]
    counted: CountedTokens = ALL_TOKENS
    seed: int = 0
    name: str = field(default="fisher", init=False)
    phase: str = field(default="Fisher metric", init=False)
    file: str = field(default="fisher", init=False)

    def update(self, state: dict[str, Tensor], chunk: Chunk) -> None:
        *layers, last = _differentiable_activations(self.network, self.places, chunk.inputs)
        outputs = self.network.finish(last, chunk.inputs)
        log_p = (outputs if outputs.ndim == 3 else outputs[:, None]).log_softmax(-1)  # [n, S, classes]
        drawn = self._drawn(log_p.detach(), chunk.first)
        gradients = torch.autograd.grad(log_p.gather(-1, drawn[..., None]).sum(), layers)
        for place, f, gradient in zip(self.places, layers, gradients, strict=True):
            counts = self.counted.at(place.index, self.network.nodes[place.index], f.detach())
            g = gradient[..., place.columns][counts].double()
            add_sums(state, {f"{place.layer}.squares": g.T @ g, f"{place.layer}.tokens": counts.sum()})

    def _drawn(self, log_p: Tensor, first: int) -> Tensor:  # [n, S, classes] -> [n, S]
        """A class per position, drawn from p with random numbers that belong to the sample."""
        keys = [np.random.Philox(key=[self.seed, first + k]) for k in range(len(log_p))]
        uniform = torch.from_numpy(
            np.stack([np.random.Generator(key).random(log_p.shape[1]) for key in keys])
        )
        cumulative = log_p.double().exp().cumsum(-1)
        target = uniform.to(log_p.device)[..., None] * cumulative[..., -1:]
        return torch.searchsorted(cumulative, target).clamp(max=log_p.shape[-1] - 1)[..., 0]


def _differentiable_activations(
    network: Network, places: Sequence[StreamPlace], inputs: Tensor
) -> list[Tensor]:
    """Activations at every place, and at the last node layer, in one graph of autograd."""
    start = min(place.index for place in places)
    with torch.no_grad():
        f = network.activations_at(start, inputs).clone()
    with torch.enable_grad():
        kept = {start: f.requires_grad_()}
        for k in range(start, len(network.sections)):
            kept[k + 1] = network.sections[k](kept[k])
    return [*(kept[place.index] for place in places), kept[len(network.sections)]]


def fisher_grams(state: dict[str, Tensor], places: Sequence[StreamPlace]) -> dict[str, Tensor]:
    """F [d, d] of every stream, from the sums of a `FisherPass`."""
    return {place.layer: state[f"{place.layer}.squares"] / state[f"{place.layer}.tokens"] for place in places}
