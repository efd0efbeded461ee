"""Edges into chosen nodes from all features of the layer before, at all positions.

For a node (i, s) with cotangent g = C_out[i], the coefficient of input feature j at position t is

    w_jt = g · ∫dα ∂F_s/∂f_t C⁺_j       along the line from 0 to the activations f,

and the edge is f̂_jt w_jt. The dropped directions e_t = f_t − C⁺f̂_t have edges too, g · ∫dα ∂F_s/∂f_t e_t,
so that with an exact integral the edges into a node add up to it. Where positions do not mix, a node has
edges from its own position alone. Where they do, edges from all positions are computed for few nodes at once
and summed; only those of selected nodes are ever stored. Behind a stencil ∂F_s/∂f_t is the pull-back onto the
patch of output s, spread over the pixels that its taps read.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.cores.attention import Attention
from interbasis.network.cores.attention.paths import QueryPaths
from interbasis.network.network import Section
from interbasis.numerics.integration import Rule

Gradients = Callable[[], Iterable[tuple[slice, Tensor]]]
MAX_ROW_ELEMENTS = 2**23
"""Edges from all positions that are held at once."""


@dataclass(frozen=True, eq=False)
class LayerState:
    """A node layer at one input: activations, features, and what the basis dropped."""

    basis: LayerBasis
    f: Tensor  # [T, width]
    first: int
    """The position of the first row: not 0 where only the last of a sequence's positions came out."""
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
        return self.basis.rows(features).to(self.f)

    def on_features(self, x: Tensor) -> Tensor:  # [..., width] -> [..., r]
        """x C⁺: a cotangent of the activations as one of the features."""
        return x if self.basis.identity else x @ self.basis.inverse.to(x)


@dataclass(frozen=True, eq=False)
class NodeSet:
    """Features at positions, each an index into the layer's own positions."""

    features: Tensor  # [k]
    positions: Tensor  # [k]

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, eq=False)
class EdgeBlock:
    """Edges between k nodes and K sources; through attention also by skip, value, key and query."""

    total: Tensor  # [k, K]
    paths: dict[str, Tensor] | None = None  # [k, K] each


class IncomingEdges:
    """The edges into k nodes, from gradients of the nodes that are computed in blocks.

    ``gradients()`` yields blocks of nodes with their gradients [k', T, width]; with ``positions`` [k], where
    a node has edges from one position alone, [k', 1, width].
    """

    def __init__(self, source: LayerState, gradients: Gradients, positions: Tensor | None = None):
        self.source, self.gradients, self.positions = source, gradients, positions

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of nodes with their edges [k', T, r], or [k', 1, r] from their own position; the constant's
        among them."""
        for block, gradients in self.gradients():
            yield block, self.source.on_features(gradients) * self._before(self.source.features, block)

    def at(self, nodes: NodeSet) -> EdgeBlock:
        """The edges from these sources alone."""
        if self.positions is None:
            parts = [edges[:, nodes.positions, nodes.features] for _, edges in self.blocks()]
            return EdgeBlock(torch.cat(parts))
        edges = torch.cat([edges[:, 0, nodes.features] for _, edges in self.blocks()])
        return EdgeBlock(edges * (self.positions[:, None] == nodes.positions))

    @cached_property
    def errors(self) -> Tensor:  # [k, T]
        """Edges from the dropped directions of every position."""
        dropped = self.source.dropped
        errors = torch.cat([(g * self._before(dropped, block)).sum(2) for block, g in self.gradients()])
        if self.positions is None:
            return errors
        return errors.new_zeros(len(errors), len(dropped)).scatter_(1, self.positions[:, None], errors)

    def _before(self, values: Tensor, block: slice) -> Tensor:  # [T, d] -> [T, d] or [k', 1, d]
        """Values at the positions that a block of nodes has edges from."""
        return values if self.positions is None else values[self.positions[block], None]


class AttentionEdges(IncomingEdges):
    """Edges through attention, in value, key and query paths and the skip."""

    def __init__(self, section: Section, source: LayerState, target: LayerState, nodes: NodeSet, rule: Rule):
        assert isinstance(section.core, Attention)
        self.source, self.positions, self.section, self.rule = source, None, section, rule
        self.shape = section.core.shape
        self.queries = nodes.positions + section.positions_out(len(source.f)).start
        g = target.cotangents(nodes.features)
        self.skip_gradient = g @ section.skip
        self.skip = source.on_features(self.skip_gradient)  # [k, r]
        self.cotangents = g @ section.write
        self.u = section.read_outs(source.f)
        self.read = source.on_features(section.read)  # A C⁺ [c_in, r]

    def _paths(self, elements_per_node: int) -> Iterator[tuple[slice, QueryPaths]]:
        size = max(1, MAX_ROW_ELEMENTS // max(elements_per_node, 3 * self.shape.heads * len(self.u)))
        for start in range(0, len(self.queries), size):
            block = slice(start, min(start + size, len(self.queries)))
            cotangents, queries = self.cotangents[block], self.queries[block]
            yield block, QueryPaths.from_cotangents(self.shape, self.u, cotangents, queries, self.rule)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        features = self.source.features
        wide = features.shape[1] if self.shape.rotary is None else max(features.shape[1], self.shape.sizes[0])
        for block, paths in self._paths(2 * len(features) * wide):
            coefficients = paths.onto(self.read)
            edges = coefficients.dense()
            here = torch.arange(len(edges), device=edges.device)
            edges[here, self.queries[block]] += self.skip[block] + coefficients.query()
            yield block, edges.mul_(features)

    def at(self, nodes: NodeSet) -> EdgeBlock:
        values = self.source.features[nodes.positions, nodes.features]  # [K]
        read = self.read[:, nodes.features]
        at_nodes = torch.arange(len(nodes), device=read.device), nodes.positions
        parts = []
        for block, paths in self._paths(len(nodes) * len(self.read)):
            coefficients, here = paths.onto(read), self.queries[block][:, None] == nodes.positions
            skip, query = self.skip[block][:, nodes.features] * here, coefficients.query() * here
            moved = coefficients.value_at(*at_nodes), coefficients.key_at(*at_nodes)
            parts.append(torch.stack([skip, *moved, query]) * values)
        by_path = torch.cat(parts, dim=1)  # [4, k, K]
        names = "skip", "value", "key", "query"
        return EdgeBlock(by_path.sum(0), dict(zip(names, by_path, strict=True)))

    @cached_property
    def errors(self) -> Tensor:
        dropped = self.source.dropped
        u = self.section.read_outs(dropped)
        parts = []
        for block, paths in self._paths(1):
            queries = self.queries[block]
            edges = paths.on_vectors(u)
            skipped = (self.skip_gradient[block] * dropped[queries]).sum(1)
            here = torch.arange(len(edges), device=edges.device)
            edges[here, queries] += skipped + paths.on_query_vectors(u[queries])
            parts.append(edges)
        return torch.cat(parts)


def edges_into(
    section: Section, source: LayerState, target: LayerState, nodes: NodeSet, rule: Rule
) -> IncomingEdges:
    """The edges into nodes of a section's target."""
    if isinstance(section.core, Attention):
        return AttentionEdges(section, source, target, nodes, rule)
    f, g = source.f, target.cotangents(nodes.features)

    def through_windows(block: slice) -> Tensor:
        """∫dα ∂(g · F_s)/∂f of a block of nodes, [k', T, width]."""
        return section.pull_back_windows(f, nodes.positions[block], g[block], rule)

    def by_autograd(block: slice) -> Tensor:
        """The same by backward passes at the rule's nodes."""
        positions = nodes.positions[block]
        seeds = g.new_zeros(len(positions), section.count_out(len(f)), g.shape[1])
        seeds[torch.arange(len(positions)), positions] = g[block]
        return line_gradient(lambda at: section(at[None])[0], f, rule, seeds)

    if section.reads_windows or section.core.mixes_positions:
        gradient = through_windows if section.reads_windows else by_autograd
        return IncomingEdges(source, partial(_blocks, gradient, f, len(nodes)))
    positions = nodes.positions + section.positions_out(len(f)).start
    gradients = section.pull_back(f[positions], g[:, None], rule)  # [k, 1, width]
    return IncomingEdges(source, lambda: [(slice(0, len(g)), gradients)], positions)


def line_gradient(
    function: Callable[[Tensor], Tensor], f: Tensor, rule: Rule, seeds: Tensor | None = None
) -> Tensor:
    """∫dα of the gradient of a function at α f, or of its products with each of k ``seeds``."""
    total = f.new_zeros(())
    for node, weight in zip(rule.nodes, rule.weights, strict=True):
        with torch.enable_grad():
            at = (node * f).detach().requires_grad_()
            output = function(at)
        total = total + weight * torch.autograd.grad(output, at, seeds, is_grads_batched=seeds is not None)[0]
    return total


def _blocks(gradient: Callable[[slice], Tensor], f: Tensor, count: int) -> Iterator[tuple[slice, Tensor]]:
    """Gradients [k', T, width] of blocks of nodes: so many as may be held at once."""
    size = max(1, MAX_ROW_ELEMENTS // f.numel())
    for start in range(0, count, size):
        block = slice(start, min(start + size, count))
        yield block, gradient(block)
