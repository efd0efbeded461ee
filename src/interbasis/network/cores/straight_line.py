"""∫₀^g act(x) dx and ∫₀^g x act′(x) dx to rounding, for any function of one number, kinks and all.

Both integrals are functions of g alone, so they are tabulated once for all data. [0, ±reach] is cut into
panels, halved until act is a polynomial on each as far as rounding shows; around a kink or a jump they
shrink to rounding. An integral up to g is that up to the last edge b before it, from the table, and one
Gauss–Legendre rule on [b, g], with a = act − act(b):

    ∫_b^g act(x) dx     = (g − b) (act(b) + m),     m = ∫₀¹ a(b + α(g − b)) dα
    ∫_b^g x act′(x) dx  = g a(g) − (g − b) m,       by parts; 0 where act is flat, without cancellation
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from interbasis.base.devices import double
from interbasis.numerics.integration import rule

Function = Callable[[Tensor], Tensor]

GAUSS = rule("quadrature", 8)
CHECKS = np.concatenate([[0.0], (np.array(GAUSS.nodes[1:]) + np.array(GAUSS.nodes[:-1])) / 2, [1.0]])
"""Points of a panel at which the polynomial is compared with the function: between nodes, at the ends."""
MAX_ROUNDINGS = 64
"""Roundings by which the two may differ, of act and of its argument."""
MAX_PANELS = 2**14
"""Largest number of panels; where a function is noisier than that, halving ends here."""


class StraightLine:
    """The means of act(αg) and of α act′(αg) over α in [0, 1], for |g| up to a reach that grows as needed.

    Everything is computed in the dtype of g, and the table summed in float64.
    """

    def __init__(self, activation: Function):
        self.activation = activation
        self.reach = 0.0
        self.edges = self.areas = self.moments = self.levels = torch.zeros(0)

    def means(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """∫₀¹ act(αg) dα and ∫₀¹ α act′(αg) dα, same shape; the second is 0 at g = 0, where it is unknown."""
        g = g.contiguous()
        self._prepare(g)
        positive = torch.bucketize(g, self.edges, right=True) - 1
        panel = torch.where(g >= 0, positive, torch.bucketize(g, self.edges)).clamp(0, len(self.edges) - 1)
        edge, level = self.edges[panel], self.levels[panel]
        zero = g.abs() < torch.finfo(g.dtype).tiny
        divisor = torch.where(zero, 1.0, g)
        length = g - edge
        mean = _mean_change(self.activation, edge, length, level)
        share = torch.where(zero, 1.0, length / divisor)
        whole = self.areas[panel] / divisor + share * (level + mean)
        weighted = self.moments[panel] / divisor + (self.activation(g) - level) - share * mean
        return whole, weighted / divisor

    def _prepare(self, g: Tensor) -> None:
        """Make the table, or one that reaches further."""
        largest = min(g.abs().max().item(), torch.finfo(g.dtype).max / 4) if g.numel() else 1.0
        if largest <= self.reach and self.edges.dtype == g.dtype and self.edges.device == g.device:
            return
        self.reach = max(16.0, 2.0 ** math.ceil(math.log2(largest))) if largest > 0 else 16.0
        edges = [panel_edges(self.activation, sign * self.reach, g) for sign in (-1, 1)]
        sides = [self._side(side) for side in edges]
        # the negative side backwards, then the positive one without its 0
        self.edges, self.levels, self.areas, self.moments = (
            torch.cat([negative.flip(0), positive[1:]]).to(g)
            for negative, positive in zip(*sides, strict=True)
        )

    def _side(self, edges: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(edges, act, ∫act, ∫x act′) from 0 outwards."""
        level, lengths = self.activation(edges), edges.diff()
        mean = double(_mean_change(self.activation, edges[:-1], lengths, level[:-1]))
        values, ends, lengths = double(level), double(edges[1:]), double(lengths)
        areas = lengths * (values[:-1] + mean)
        moments = ends * values.diff() - lengths * mean
        start = values.new_zeros(1)
        return (
            double(edges),
            values,
            torch.cat([start, areas.cumsum(0)]),
            torch.cat([start, moments.cumsum(0)]),
        )


def _mean_change(act: Function, edge: Tensor, length: Tensor, level: Tensor) -> Tensor:
    """The mean of act − act(edge) between ``edge`` and ``edge + length``."""
    total = torch.zeros_like(length)
    for node, weight in zip(GAUSS.nodes, GAUSS.weights, strict=True):
        total += weight * (act(edge + node * length) - level)
    return total


def panel_edges(act: Function, end: float, like: Tensor) -> Tensor:
    """0 = b₀, b₁, … as far as ``end`` or beyond: between two of them act is a polynomial to rounding."""
    epsilon = torch.finfo(like.dtype).eps
    doubling = [0.0, *(2.0**k for k in range(max(1, math.ceil(math.log2(abs(end))) + 1)))]
    edges = math.copysign(1.0, end) * torch.tensor(doubling, dtype=like.dtype, device=like.device)
    nodes, checks = (torch.tensor(x).to(like) for x in (GAUSS.nodes, CHECKS))
    through = torch.as_tensor(_interpolation(np.array(GAUSS.nodes), CHECKS)).to(like)  # [checks, nodes]
    parts, left, right = [edges], edges[:-1], edges[1:]
    while len(left) and sum(map(len, parts)) < MAX_PANELS:
        width = (right - left)[:, None]
        known, held = act(left[:, None] + width * nodes), act(left[:, None] + width * checks)
        size = torch.cat([known, held], dim=1).abs().amax(1) + torch.maximum(left.abs(), right.abs())
        middle = left + (right - left) / 2
        wrong = (known @ through.T - held).abs().amax(1) > MAX_ROUNDINGS * epsilon * size
        wrong &= (middle != left) & (middle != right)
        left, middle, right = left[wrong], middle[wrong], right[wrong]
        parts.append(middle)
        left, right = torch.cat([left, middle]), torch.cat([middle, right])
    return torch.cat(parts).abs().sort().values * math.copysign(1.0, end)


def _interpolation(nodes: np.ndarray, points: np.ndarray) -> np.ndarray:  # [points, nodes]
    """Matrix that interpolates from values at the nodes to the points (Lagrange's polynomial)."""
    columns = []
    for k, node in enumerate(nodes):
        other_nodes = np.delete(nodes, k)
        columns.append(np.prod((points[:, None] - other_nodes) / (node - other_nodes), axis=1))
    return np.stack(columns, axis=1)
