"""core(u) = the largest of K values for every channel: max pooling."""

import torch
from torch import Tensor

from interbasis.base.devices import double
from interbasis.network.cores.core import Moments, StatisticsCore, Sums
from interbasis.numerics.integration import Rule


class Largest(StatisticsCore):
    """The read-outs are K blocks of c channels, one per tap. N = [diag(e_1) | … | diag(e_K)] is a selection:

        e_kc = 1 for the first tap k at which channel c is largest, 0 for all others,

        Σ N = [diag Σe_1 | …],    (Σ NᵀQN)_kk = Q ∘ Σ e_k e_kᵀ.

    Blocks of two different taps are left out (0): taps of a maximum lie on different pixels or, where a
    window meets the border, the first of those on one pixel is the only one ever selected, so no pixel
    needs these blocks. It is the core of `maximum_section` alone. Along a line from 0 the selection does
    not change, so the gradient is the exact integral.
    """

    def __init__(self, taps: int):
        self.taps = taps

    def __repr__(self) -> str:
        return f"Largest({self.taps})"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:  # [n, S, K·c] -> [n, S, c]
        return self._by_tap(u[:, outputs]).max(-2).values

    def _by_tap(self, u: Tensor) -> Tensor:  # [..., K·c] -> [..., K, c]
        return u.unflatten(-1, (self.taps, -1))

    def selected(self, u: Tensor) -> Tensor:  # [..., K·c] -> [..., c]
        """The first tap with the largest value."""
        return self._by_tap(u).max(-2).indices

    def statistics(self, u: Tensor, outputs: slice) -> Sums:
        chosen = self.selected(u[:, outputs]).flatten(0, 1)  # [tokens, c]
        products = []
        for k in range(self.taps):
            e = (chosen == k).to(u.dtype)
            products.append(e.T @ e)
        result = double(torch.stack(products))  # [K, c, c]
        return {"selected": result.diagonal(dim1=1, dim2=2).clone(), "selected_products": result}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        local = torch.cat([torch.diag(counts) for counts in sums["selected"]], dim=1)
        return Moments(local, torch.block_diag(*(metric * sums["selected_products"])))

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        chosen = self.selected(u[:, outputs]).flatten(0, 1).T  # [c, tokens]
        channel = torch.arange(len(chosen), device=u.device)[:, None]
        chosen_read = self._by_tap(read.T).permute(1, 2, 0)[chosen, channel]  # [c, tokens, r]
        return chosen_read * f[:, outputs].flatten(0, 1)
