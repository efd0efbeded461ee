"""The edges into given nodes from all features of the layer before, at all positions.

For a node (i, s) with cotangent g = C_out[i], the coefficient of input feature j at position t is

    w_jt = g · ∫dα ∂F_s/∂f_t C⁺_j       along the line from 0 to the activations f,

and the edge is f̂_jt w_jt. The dropped directions e_t = f_t − C⁺f̂_t have edges too, g · ∫dα ∂F_s/∂f_t e_t,
so that with an exact integral the edges into a node add up to it. Where positions do not mix, a node has
edges from its own position alone. Where they do, edges from all positions are made for few nodes at once
and summed; only those of kept nodes are ever stored.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.cores.attention import Attention
from interbasis.network.cores.attention.paths import QueryPaths
from interbasis.network.network import Section
from interbasis.numerics.integration import Rule

MAX_ROW_ELEMENTS = 2**23
"""Edges from all positions that are held at once."""


@dataclass(frozen=True, eq=False)
class LayerState:
    """A node layer at one input: activations, features, and what the basis dropped."""

    basis: LayerBasis
    f: Tensor  # [T, width]
    first: int
    """The input position of its first position."""
    whole: Tensor  # [T], bool
    """Tokens that the sums behind the basis left out. Its features do not describe them: there all features
    are at their mean, and everything else is ``dropped``."""

    @cached_property
    def features(self) -> Tensor:  # [T, r]
        features = self.basis.to_features(self.f)
        features[self.whole] = self.mean if self.basis.identity else 0.0
        if self.basis.constant and not self.basis.identity:
            features[self.whole, 0] = 1.0
        return features

    @property
    def dropped(self) -> Tensor:  # [T, width]
        """e = f − C⁺f̂; not held, for it is needed once or twice in each layer."""
        return self.f - self.basis.from_features(self.features)

    @property
    def mean(self) -> Tensor:  # [width]
        """The activations with every feature at its mean; 0 where the layer has no constant."""
        if not self.basis.constant:
            return torch.zeros_like(self.f[0])
        if self.basis.identity:
            return torch.zeros_like(self.f[0]) if self.basis.mean is None else self.basis.mean.to(self.f)
        return self.basis.inverse[:, 0].to(self.f)

    def cotangents(self, features: Tensor) -> Tensor:  # [k] -> [k, width]
        """Rows of C."""
        if not self.basis.identity:
            return self.basis.transform[features].to(self.f)
        return torch.nn.functional.one_hot(features, self.basis.width).to(self.f)

    def directions(self, x: Tensor) -> Tensor:  # [..., width] -> [..., r]
        """x C⁺: what x makes of one unit of each feature."""
        return x if self.basis.identity else x @ self.basis.inverse.to(x)


@dataclass(frozen=True, eq=False)
class Places:
    """Features at positions, each an index into the layer's own positions."""

    features: Tensor  # [k]
    positions: Tensor  # [k]

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, eq=False)
class EdgeBlock:
    """Edges between k nodes and K sources, [k, K] each; through attention also in parts."""

    total: Tensor
    skip: Tensor | None = None
    value: Tensor | None = None
    key: Tensor | None = None
    query: Tensor | None = None


class Rows(ABC):
    """The edges into k nodes."""

    source: LayerState

    own: Tensor | None = None  # [k]
    """The one position that each node has edges from; None where it has them from all."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Some of the nodes with their edges [k', T, r], or [k', 1, r] from the own position; the constant's
        among them."""

    @abstractmethod
    def at(self, places: Places) -> EdgeBlock:
        """The edges from these sources alone."""

    @property
    @abstractmethod
    def errors(self) -> Tensor:  # [k, T]
        """Edges from the dropped directions of every position."""


class LinearRow(Rows):
    """The edges into one target from a cotangent at every position."""

    def __init__(self, source: LayerState, row: Tensor):  # [T, width]
        self.source, self.row = source, row
        self.coefficients = source.directions(row)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, 1), (self.coefficients * self.source.features)[None]

    def at(self, places: Places) -> EdgeBlock:
        edges = self.coefficients * self.source.features
        return EdgeBlock(edges[places.positions, places.features][None])

    @property
    def errors(self) -> Tensor:
        return (self.row * self.source.dropped).sum(1)[None]


class OwnRows(Rows):
    """The edges through a section that does not mix positions: a node's sources stand where it stands."""

    def __init__(self, section: Section, source: LayerState, target: LayerState, nodes: Places, rule: Rule):
        self.source = source
        self.positions = nodes.positions + section.positions_out(len(source.f)).start
        self.own = self.positions
        g = target.cotangents(nodes.features)
        u = section.read_outs(source.f[self.positions])
        self.gradient = g @ section.skip + section.core.pull_back(u, g @ section.write, rule) @ section.read
        self.edges = source.directions(self.gradient) * source.features[self.positions]  # [k, r]

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, len(self.edges)), self.edges[:, None].clone()

    def at(self, places: Places) -> EdgeBlock:
        here = self.positions[:, None] == places.positions
        return EdgeBlock(self.edges[:, places.features] * here)

    @property
    def errors(self) -> Tensor:
        errors = self.edges.new_zeros(len(self.edges), len(self.source.f))
        dropped = self.source.dropped[self.positions]
        errors[torch.arange(len(errors)), self.positions] = (self.gradient * dropped).sum(1)
        return errors


class AttentionRows(Rows):
    """The edges through attention, in value, key and query paths and the skip."""

    def __init__(self, section: Section, source: LayerState, target: LayerState, nodes: Places, rule: Rule):
        core = section.core
        assert isinstance(core, Attention)
        self.source, self.section, self.shape, self.rule = source, section, core.shape, rule
        self.queries = nodes.positions + section.positions_out(len(source.f)).start
        g = target.cotangents(nodes.features)
        self.skip_gradient = g @ section.skip
        self.skip = source.directions(self.skip_gradient)  # [k, r]
        self.cotangents = g @ section.write
        self.u = section.read_outs(source.f)
        self.read = source.directions(section.read)  # A C⁺ [c_in, r]

    def _paths(self, some: slice) -> QueryPaths:
        return QueryPaths.of(self.shape, self.u, self.cotangents[some], self.queries[some], self.rule)

    def _runs(self, per_node: int) -> Iterator[slice]:
        size = max(1, MAX_ROW_ELEMENTS // max(per_node, 3 * self.shape.heads * len(self.u)))
        for start in range(0, len(self.queries), size):
            yield slice(start, min(start + size, len(self.queries)))

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        features = self.source.features
        wide = features.shape[1] if self.shape.rotary is None else max(features.shape[1], self.shape.sizes[0])
        for some in self._runs(2 * len(features) * wide):
            coefficients = self._paths(some).onto(self.read)
            block = coefficients.dense()
            here = torch.arange(len(block), device=block.device)
            block[here, self.queries[some]] += self.skip[some] + coefficients.query()
            yield some, block.mul_(features)

    def at(self, places: Places) -> EdgeBlock:
        values = self.source.features[places.positions, places.features]  # [K]
        read = self.read[:, places.features]
        local = torch.arange(len(places), device=read.device)
        parts: list[tuple[Tensor, ...]] = []
        for some in self._runs(len(places) * len(self.read)):
            coefficients = self._paths(some).onto(read)
            here = self.queries[some][:, None] == places.positions
            parts.append(
                (
                    self.skip[some][:, places.features] * here * values,
                    coefficients.value_at(local, places.positions) * values,
                    coefficients.key_at(local, places.positions) * values,
                    coefficients.query() * here * values,
                )
            )
        skip, value, key, query = (torch.cat(part) for part in zip(*parts, strict=True))
        return EdgeBlock(skip + value + key + query, skip, value, key, query)

    @cached_property
    def errors(self) -> Tensor:
        dropped = self.source.dropped
        u = self.section.read_outs(dropped)
        parts = []
        for some in self._runs(1):
            paths, own = self._paths(some), self.queries[some]
            part = paths.on_vectors(u)
            mine = (self.skip_gradient[some] * dropped[own]).sum(1) + paths.on_own_vectors(u[own])
            part[torch.arange(len(part), device=part.device), own] += mine
            parts.append(part)
        return torch.cat(parts)


class GeneralRows(Rows):
    """The edges through any other section that mixes positions, by backward passes."""

    def __init__(self, section: Section, source: LayerState, target: LayerState, nodes: Places, rule: Rule):
        self.source, self.section, self.nodes, self.rule = source, section, nodes, rule
        self.g = target.cotangents(nodes.features)

    def _gradients(self) -> Iterator[tuple[slice, Tensor]]:
        """∫dα ∂(g · F)/∂f, [k', T, width]."""
        size = max(1, MAX_ROW_ELEMENTS // self.source.f.numel())
        for start in range(0, len(self.nodes), size):
            some = slice(start, min(start + size, len(self.nodes)))
            yield (
                some,
                pull_back_by_autograd(
                    self.section, self.source.f, (self.g[some], self.nodes.positions[some]), self.rule
                ),
            )

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for some, gradients in self._gradients():
            yield some, self.source.directions(gradients) * self.source.features

    def at(self, places: Places) -> EdgeBlock:
        rows = [block[:, places.positions, places.features] for _, block in self.blocks()]
        return EdgeBlock(torch.cat(rows))

    @cached_property
    def errors(self) -> Tensor:
        return torch.cat([(rows * self.source.dropped).sum(2) for _, rows in self._gradients()])


def rows_into(
    section: Section, source: LayerState, target: LayerState, nodes: Places, rule: Rule
) -> AttentionRows | GeneralRows | OwnRows:
    """The edges into nodes of a section's target."""
    if isinstance(section.core, Attention):
        return AttentionRows(section, source, target, nodes, rule)
    kind = GeneralRows if section.core.mixes_positions else OwnRows
    return kind(section, source, target, nodes, rule)


def pull_back_by_autograd(
    section: Section, f: Tensor, nodes: tuple[Tensor, Tensor], rule: Rule
) -> Tensor:  # [T, width], ([k, d_out], [k]) -> [k, T, width]
    """∫dα ∂(g · F_s)/∂f for cotangents g at output positions s, by backward passes at the rule's nodes."""
    cotangents, positions = nodes
    total = f.new_zeros(len(cotangents), *f.shape)
    for node, weight in zip(rule.nodes, rule.weights, strict=True):
        with torch.enable_grad():
            at = (node * f).detach().requires_grad_()
            output = section(at[None])[0]  # [S, d_out]
        seeds = output.new_zeros(len(cotangents), *output.shape)
        seeds[torch.arange(len(seeds)), positions] = cotangents
        (gradient,) = torch.autograd.grad(output, at, seeds, is_grads_batched=True)
        total += weight * gradient
    return total
