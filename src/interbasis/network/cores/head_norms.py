"""The core of norms on every head's queries and keys: an RMS norm, head by head."""

import torch
from torch import Tensor

from interbasis.network.cores.core import Counted, Moments, PassCore, Sums
from interbasis.numerics.integration import Rule, rule

SMALL_MEAN_SQUARE = 1e-2
"""Mean squares below this share of ε: there the closed form cancels, and few nodes do."""
SIX_NODES = rule("quadrature", 6)


class HeadNorm(PassCore):
    """core(u) = u r in every head of h coordinates, r = (m + ε)^-½ with m the head's mean square.

    With n = u r, a head's block of the Jacobian is N = r (I − n nᵀ/h), and for a pair of heads (p, q)

        Σ N_pᵀ Q N_q = Q Σ r_p r_q − (Σ r_p r_q n_p n_pᵀ) Q/h − Q (Σ r_p r_q n_q n_qᵀ)/h
                       + Σ r_p r_q (n_pᵀ Q n_q) n_p n_qᵀ/h²,

    of which the last term needs Q while the data pass. Along the line from 0 the mean Jacobian is
    a I − b u uᵀ/h, with a = ∫(α²m + ε)^-½ dα = asinh √(m/ε) / √m and b = (a − r)/m.
    """

    def __init__(self, width: int, epsilon: float):
        self.width = width
        self.epsilon = epsilon

    def __repr__(self) -> str:
        return f"HeadNorm(heads of {self.width}, epsilon {self.epsilon:.6g})"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        heads = u[:, outputs].unflatten(-1, (-1, self.width))
        return (heads * (_mean_square(heads) + self.epsilon).rsqrt()).flatten(-2)

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None = None
    ) -> Sums:
        """Compute exact sums, whatever the signs."""
        heads = self._heads(u, outputs)  # [tokens, H, h]
        r = (_mean_square(heads) + self.epsilon).rsqrt()  # [tokens, H, 1]
        n, r = heads * r, r[..., 0]
        squares = torch.einsum("xp,xpi,xpj->pij", r, n, n) / self.width
        identity = torch.eye(self.width).to(u)
        local = torch.block_diag(*(r.sum(0)[:, None, None] * identity - squares))
        Q = metric.to(u).unflatten(1, (-1, self.width)).unflatten(0, (-1, self.width)).transpose(1, 2)
        return {"local": local, "gram": self._gram(n, r, Q).transpose(1, 2).flatten(2, 3).flatten(0, 1)}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(**sums)

    def _gram(self, n: Tensor, r: Tensor, Q: Tensor) -> Tensor:
        """n [tokens, H, h], r [tokens, H], Q [H, H, h, h] -> [H, H, h, h], a row of pairs at a time."""
        both = r.T @ r  # [H, H]
        gram = both[..., None, None] * Q
        for p in range(n.shape[1]):
            mine = n[:, p]  # [tokens, h]
            weight = r[:, p, None] * r  # [tokens, H]
            squares = torch.einsum("xq,xi,xj->qij", weight, mine, mine) / self.width
            gram[p] -= squares @ Q[p]
            gram[:, p] -= Q[:, p] @ squares
            cross = torch.einsum("xi,qij,xqj->xq", mine, Q[p], n) * weight / self.width**2
            gram[p] += torch.einsum("xi,xq,xqj->qij", mine, cross, n)
        return gram

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        heads = self._heads(u, outputs)  # [tokens, H, h]
        a, b = rms_slopes(_mean_square(heads), self.epsilon, rule)
        by_head = read.unflatten(0, (-1, self.width))  # [H, h, r]
        along = torch.einsum("xpi,pij->pxj", heads, by_head) / self.width  # [H, tokens, r]
        turned = (b * heads).permute(1, 2, 0)[..., None]  # [H, h, tokens, 1]
        inner = a.permute(1, 2, 0)[..., None] * by_head[:, :, None] - turned * along[:, None]
        return inner.flatten(0, 1) * f[:, outputs].flatten(0, 1)

    def pull_back(self, u: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        heads, g = u.unflatten(-1, (-1, self.width))[:, None], cotangents.unflatten(-1, (-1, self.width))
        a, b = rms_slopes(_mean_square(heads), self.epsilon, rule)  # [tokens, 1, H, 1]
        return (a * g - b * heads * (heads * g).mean(-1, keepdim=True)).flatten(-2)

    def push_forward(self, u: Tensor, tangents: Tensor, rule: Rule) -> Tensor:
        return self.pull_back(u, tangents, rule)  # N̄ is symmetric

    def _heads(self, u: Tensor, outputs: slice) -> Tensor:  # [tokens, H, h]
        return u[:, outputs].flatten(0, 1).unflatten(-1, (-1, self.width))


def _mean_square(heads: Tensor) -> Tensor:  # [..., h] -> [..., 1]
    return heads.square().mean(-1, keepdim=True)


def rms_slopes(m: Tensor, epsilon: float, integral: Rule) -> tuple[Tensor, Tensor]:
    """∫ (α²m + ε)^-½ dα and ∫ α² (α²m + ε)^-3/2 dα from 0 to 1, or by another rule; shaped as m."""
    if not integral.closed_form:
        a, b = torch.zeros_like(m), torch.zeros_like(m)
        for node, weight in zip(integral.nodes, integral.weights, strict=True):
            r = (node**2 * m + epsilon).rsqrt()
            a += weight * r
            b += weight * node**2 * r**3
        return a, b
    small = m < SMALL_MEAN_SQUARE * epsilon
    safe = torch.where(small, epsilon, m)
    a = (safe / epsilon).sqrt().asinh() / safe.sqrt()
    b = (a - (safe + epsilon).rsqrt()) / safe
    few = rms_slopes(m, epsilon, SIX_NODES)
    return torch.where(small, few[0], a), torch.where(small, few[1], b)
