"""core(v, u) = u / √(v + ε): the division of a layer norm or an RMS norm."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.network.cores.abilities import ClosedFormSquares
from interbasis.network.cores.core import Moments, StatisticsCore, Sums
from interbasis.numerics.integration import Rule
from interbasis.numerics.linalg import symmetric_product
from interbasis.runtime.devices import double, double_sum

if TYPE_CHECKING:
    from interbasis.network.network import Section


class Normalize(StatisticsCore, ClosedFormSquares):
    """Reads [v | u]: the variance, and u = Hx, centred by the read (layer norm) or not (RMS norm).

    With r = (v + ε)^-½ the Jacobian is N = [−½ r³ u | r I], and positions do not mix, hence

        Σ N = [−½ Σ r³u | Σ r I],     Σ NᵀQN = | ¼ ⟨Q, Σ r⁶ u uᵀ⟩    −½ (Σ r⁴u)ᵀQ |
                                               |       ·                  Σ r² Q   |.

    Along the line from 0, with s = √(v + ε) and e = √ε, both integrals have closed forms without
    cancellation, ∫(αv+ε)^-½ dα = 2/(s+e) and ∫α(αv+ε)^-3/2 dα = 2/(s(s+e)²).

    A negative variance, which ablations can bring about, counts as 0.
    """

    def __init__(self, epsilon: float):
        self.epsilon = epsilon

    def __repr__(self) -> str:
        return f"Normalize(epsilon {self.epsilon:.6g})"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:  # [n, T, 1 + d] -> [n, S, d]
        v, u = u[:, outputs, :1], u[:, outputs, 1:]
        return u * (v.clamp_min(0) + self.epsilon).rsqrt()

    def statistics(self, u: Tensor, outputs: slice) -> Sums:
        v, u = _tokens(u, outputs)
        r = (v.clamp_min(0) + self.epsilon).rsqrt()  # [tokens, 1]
        cubed = r**3 * (v >= 0) * u  # r³u, 0 where the variance was clamped
        return {
            "r": double_sum(r, (0, 1)),
            "r2": double_sum(r.square(), (0, 1)),
            "r3": double_sum(cubed, 0),
            "r4": double_sum(r * cubed, 0),
            "r6": symmetric_product(cubed),
        }

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        identity = torch.eye(len(metric), dtype=metric.dtype, device=metric.device)
        local = torch.cat([-sums["r3"][:, None] / 2, sums["r"] * identity], dim=1)
        corner = (metric * sums["r6"]).sum()[None, None] / 4
        side = -(metric @ sums["r4"])[:, None] / 2
        gram = torch.cat([torch.cat([corner, side.T], 1), torch.cat([side, sums["r2"] * metric], 1)])
        return Moments(local, gram)

    def _slopes(self, v: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
        """N̄ = [b u | a I]: (a, b) of every token, shaped as v."""
        if rule.closed_form:
            s, e = (v.clamp_min(0) + self.epsilon).sqrt(), self.epsilon**0.5
            return 2 / (s + e), -(v >= 0).to(v) / (s * (s + e).square())
        a, b = torch.zeros_like(v), torch.zeros_like(v)
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            r = (node * v.clamp_min(0) + self.epsilon).rsqrt()
            a += weight * r
            b -= weight * node / 2 * r**3 * (v >= 0)
        return a, b

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        v, u = _tokens(u, outputs)
        a, b = self._slopes(v, rule)
        inner = read[1:, None] * a + read[0] * (b * u).T[:, :, None]  # [d, tokens, r]
        return inner * f[:, outputs].flatten(0, 1)

    def pull_back(self, u: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        v, u = u[:, :1], u[:, 1:]
        a, b = self._slopes(v, rule)
        return torch.cat([b * (u * cotangents).sum(1, keepdim=True), a * cotangents], dim=1)

    def squares(self, section: "Section", rule: Rule) -> Callable[[Tensor], Tensor]:
        """A_ij = f_j (P_ij + a D_ij + b y_i A_vj) for every token, with D = B A_u and y = B u.

        Σ A² expands into sums of f_j², a f_j², a² f_j² and products of y with f². The scale a is taken about
        its mean, so that skip and normalised stream may cancel. With the variance isolated, A_vj is 0 but
        for two features j, and the products of y are that small.
        """
        skip, read = double(section.skip), double(section.read)
        D = double(section.write) @ read[1:]  # [r_out, r_in]
        mixed = read[0] != 0  # features that hold some of the variance
        A_v, D_v = read[0, mixed], D[:, mixed]

        def of_batch(f: Tensor) -> Tensor:
            f = f[:, section.outputs(f)].flatten(0, 1)
            v, u = _tokens((f @ section.read.T)[None], slice(0, len(f)))
            a, b = (double(slope) for slope in self._slopes(v, rule))  # [tokens, 1]
            weight = double(f).square()
            E, δ = skip + a.mean() * D, a - a.mean()
            squares = E.square() * weight.sum(0) + 2 * E * D * (δ * weight).sum(0)
            squares += D.square() * (δ.square() * weight).sum(0)
            E, weight = E[:, mixed], weight[:, mixed]
            y = b * double(u @ section.write.T)  # [tokens, r_out]
            squares[:, mixed] += A_v.square() * (y.square().T @ weight)
            squares[:, mixed] += 2 * A_v * (E * (y.T @ weight) + D_v * (y.T @ (δ * weight)))
            return squares.clamp_min(0)

        return of_batch


def _tokens(u: Tensor, outputs: slice) -> tuple[Tensor, Tensor]:
    """v [tokens, 1] and u [tokens, d]."""
    u = u[:, outputs].flatten(0, 1)
    return u[:, :1], u[:, 1:]
