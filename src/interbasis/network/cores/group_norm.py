"""The core of group norms and instance norms: groups of channels, normed over all positions together."""

import torch
from torch import Tensor

from interbasis.network.cores.core import Counted, Moments, PassCore, Sums
from interbasis.network.cores.head_norms import rms_slopes
from interbasis.numerics.integration import Rule


class GroupNorm(PassCore):
    """core(u) = c r, c = u less the mean of its group, r = (m + ε)^-½ with m the mean square of c.

    A group has L numbers: c of its channels at each of T positions. With A_s = [1 | c_s r], two columns of a
    group's channels at position s, a group's block of the Jacobian is N_st = r (δ_st I − A_s A_tᵀ/L), hence
    for a pair of groups (p, q)

        Σ_st N_stᵀ Q N_st = r_p r_q [ Σ_s (Q − A_s A_sᵀ Q/L − Q A_s A_sᵀ/L) + Σ_t A_t K A_tᵀ/L² ],
        K = Σ_s A_sᵀ Q A_s

    with the left A of group p and the right one of q. Along the line from 0 the mean Jacobian is
    a (δ_st I − 1 1ᵀ/L) − b c_s c_tᵀ/L, with a and b as for `HeadNorm`.

    Args:
        groups: Number of groups of neighbouring channels; as many as channels for an instance norm.
        epsilon: ε.
    """

    mixes_positions = True

    def __init__(self, groups: int, epsilon: float):
        self.groups, self.epsilon = groups, epsilon

    def __repr__(self) -> str:
        return f"GroupNorm({self.groups} groups, epsilon {self.epsilon:.6g})"

    def _centred(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """c [n, T, G, k] and m [n, 1, G, 1] of u [n, T, G·k]."""
        u = u.unflatten(2, (self.groups, -1))
        c = u - u.mean((1, 3), keepdim=True)
        return c, c.square().mean((1, 3), keepdim=True)

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        c, m = self._centred(u)
        return (c * (m + self.epsilon).rsqrt()).flatten(2)[:, outputs]

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None = None
    ) -> Sums:
        """Compute exact sums, whatever the signs."""
        c, m = self._centred(u)
        r = (m + self.epsilon).rsqrt()
        n, T, G, k = c.shape
        counted_in, counted_out = u.new_ones(n, T), u.new_zeros(n, T)
        counted_out[:, outputs] = 1
        if counted is not None:
            counted_in, counted_out = counted.inputs.to(u), counted_out * counted.outputs.to(u)
        both, r = counted_in * counted_out, r[:, 0, :, 0]  # [n, T], [n, G]
        columns = torch.stack([torch.ones_like(c), c * r[:, None, :, None]], dim=-1)  # A [n, T, G, k, 2]
        squares = torch.einsum("ntgka,ntgla,nt->ngkl", columns, columns, both) / (T * k)
        count = both.sum(1)[:, None] * r  # [n, G]
        identity = torch.eye(k).to(u)
        local = count.sum(0)[:, None, None] * identity - torch.einsum("ng,ngkl->gkl", r, squares)
        Q = metric.to(u).unflatten(1, (G, k)).unflatten(0, (G, k)).transpose(1, 2)  # [G, G, k, k]
        gram = (r.T @ count)[..., None, None] * Q
        for p in range(G):  # a row of pairs at a time
            weight = r[:, p, None] * r  # [n, G]
            by_first = torch.einsum("nq,nkl->qkl", weight, squares[:, p])
            gram[p] -= by_first @ Q[p]
            gram[:, p] -= Q[:, p] @ by_first
            left = columns[:, :, p]
            K = torch.einsum("nska,qkl,nsqlb,ns->nqab", left, Q[p], columns, counted_out) / (T * k) ** 2
            gram[p] += torch.einsum("nq,ntka,nqab,ntqlb,nt->qkl", weight, left, K, columns, counted_in)
        return {"local": torch.block_diag(*local), "gram": gram.transpose(1, 2).flatten(2, 3).flatten(0, 1)}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(**sums)

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        c, m = self._centred(u)
        a, b = rms_slopes(m, self.epsilon, rule)
        by_group = read.unflatten(0, (self.groups, -1))  # [G, k, r]
        size = c.shape[1] * c.shape[3]
        mean = torch.einsum("gkj,ntj->ngj", by_group, f) / size
        along = torch.einsum("ntgk,gkj,ntj->ngj", c, by_group, f) / size
        scale, turned = a[:, 0, :, :, None], (b * c)[:, outputs, ..., None]  # [n, G, 1, 1], [n, S, G, k, 1]
        inner = scale[:, None] * (f[:, outputs, None, None] * by_group - mean[:, None, :, None])
        inner = inner - turned * along[:, None, :, None]
        return inner.flatten(2, 3).flatten(0, 1).transpose(0, 1)
