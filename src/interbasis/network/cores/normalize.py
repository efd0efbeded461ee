"""core(v, u) = u / √(v + ε): the division of a layer norm or an RMS norm."""

from collections.abc import Callable

import torch
from torch import Tensor

from interbasis.base.devices import double, double_sum
from interbasis.network.cores.core import ClosedFormSquares, Matrices, Moments, StatisticsCore, Sums
from interbasis.network.cores.squares import Squares
from interbasis.numerics.integration import Rule
from interbasis.numerics.linalg import symmetric_product


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
        a, b = self._slopes(u[:, :1], rule)
        on_variance = cotangents @ (b * u[:, 1:])[..., None]
        return torch.cat([on_variance, a[:, None] * cotangents], dim=-1)

    def push_forward(self, u: Tensor, tangents: Tensor, rule: Rule) -> Tensor:
        a, b = self._slopes(u[:, :1], rule)
        return a[:, None] * tangents[..., 1:] + (b * u[:, 1:])[:, None] * tangents[..., :1]

    def squares(self, section: Matrices, rule: Rule) -> Squares:
        return NormalizeSquares(section, lambda v: self._slopes(v, rule))


class NormalizeSquares(Squares):
    """A_ij = f_j (P_ij + a D_ij + b y_i A_vj) for every token, with D = B A_u and y = B u.

    The scale a is taken about its value at the mean variance, a = c + δ and E = P + c D, so that skip and
    normalised stream may cancel; in a basis that is not centred, c = 0. With the variance isolated, A_vj is 0
    but for two features j: the columns that are summed as they are.
    """

    count = 3

    def __init__(self, section: Matrices, slopes: Callable[[Tensor], tuple[Tensor, Tensor]]):
        super().__init__(section)
        self.slopes = slopes
        read = double(section.read)
        self.A_v, self.columns = read[0], read[0].nonzero()[:, 0]
        self.D = double(section.write) @ read[1:]  # [r_out, r_in]
        mean = read[0, :1]  # read from the constant feature alone: all others are 0 on average
        self.c = slopes(mean)[0] if mean > 0 else torch.zeros_like(mean)

    def factors(self) -> list[Tensor]:
        E = double(self.section.skip) + self.c * self.D
        return [E.square(), 2 * E * self.D, self.D.square()]

    def terms(self, f: Tensor, weights: Tensor) -> Tensor:
        v, _ = self._read(f, slice(0, 1))
        δ = double(self.slopes(v)[0]).mT - self.c  # [n, 1, T]
        weighted = torch.stack([weights * δ**m for m in range(3)], dim=2)  # [n, k, m, T]
        return (weighted.flatten(1, 2) @ double(f).square()).unflatten(1, weighted.shape[1:3])

    def at_columns(self, f: Tensor, weights: Tensor) -> Tensor:
        v, u = self._read(f, slice(None))
        a, b = (double(slope) for slope in self.slopes(v))  # [n, T, 1]
        columns = self.columns
        A_v, D, δ = self.A_v[columns], self.D[:, columns], a - self.c
        E = double(self.section.skip[:, columns.to(f.device)]) + self.c * D
        y = b * double(u @ self.section.write.T)  # [n, T, r_out]
        square = double(f[..., columns.to(f.device)]).square()  # [n, T, c]

        def over_tokens(y: Tensor, square: Tensor) -> Tensor:  # -> [n, k, r_out, c]
            weighted = weights[..., None] * square[:, None]  # [n, k, T, c]
            return y.mT[:, None] @ weighted

        ones = torch.ones_like(y[..., :1])
        powers = [over_tokens(ones, δ**m * square) for m in range(3)]  # [n, k, 1, c]
        total = E.square() * powers[0] + 2 * E * D * powers[1] + D.square() * powers[2]
        mixed = E * over_tokens(y, square) + D * over_tokens(y, δ * square)
        return total + 2 * A_v * mixed + A_v.square() * over_tokens(y.square(), square)

    def _read(self, f: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """v [n, T, 1], and u [n, T, d] where all rows are read."""
        read = f @ self.section.read[rows].T
        return read[..., :1], read[..., 1:]


def _tokens(u: Tensor, outputs: slice) -> tuple[Tensor, Tensor]:
    """v [tokens, 1] and u [tokens, d]."""
    u = u[:, outputs].flatten(0, 1)
    return u[:, :1], u[:, 1:]
