"""Interaction edges: root mean squares of the attributions between the features of neighbouring layers.

With A_is,j(x) the attribution of output feature i at position s to input feature j, for a sample x
(`attributions.py`), the edge is

    Ê_ij² = (1/nT) Σ_x Σ_s A_is,j(x)²,    T the number of input positions.

Cheaper and unbiased for Ê²: give every token (sample and output position) a random sign φ, and square signed
sums over groups of tokens, Σ_x,s A² = E_φ Σ_groups (Σ φ A)².
"""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from interbasis.data.batches import Batches, Data
from interbasis.fit.attributions import (
    SignedTokens,
    positions_of,
    sections_in_bases,
    squared_sums,
    token_attributions,
)
from interbasis.fit.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.fit.edge_sums import Edges, EdgeSums
from interbasis.fit.statistics import check_finite, chunks
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.cores import ClosedFormSquares, Counted, Linear, SamplesQueries
from interbasis.network.cores.core import into_groups
from interbasis.network.network import Network, Section
from interbasis.network.stencil_section import StencilSection
from interbasis.numerics.integration import Rule, rule
from interbasis.numerics.random_signs import Sources, random_positions, random_signs
from interbasis.runtime.checkpoints import NO_CHECKPOINTS, Checkpoints, State
from interbasis.runtime.devices import double_sum
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Method
from interbasis.runtime.progress import Progress, silent
from interbasis.runtime.team import Pass


@dataclass(frozen=True)
class EdgeSettings:
    """How edges are measured: the rule, stochastic sources or None for exact sums, the tokens that count."""

    rule: Rule
    sources: Sources | None = None
    counted: CountedTokens = ALL_TOKENS
    first: int = 0
    """The number of the network's first section in a larger one that it is cut from, for random numbers."""


def edges(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data,
    method: Method = "gradient",
    *,
    points: int = 16,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Measure the edges of every section, for any bases of the network's node layers.

    Args:
        network: The network.
        layers: A basis for each of its node layers.
        data: Inputs, as `interbasis.build` takes them.
        method: ``gradient`` (the integrand at α = 1, as in the paper), ``exact`` (the closed form of the
            integral, for cores that have one), ``quadrature`` (Gauss–Legendre) or ``trapezoid``.
        points: Nodes of the integration rule.
        dtype: What the network computes in.

    Returns:
        Ê of every section, [features_out, features_in] each.

    Raises:
        InterbasisError: The bases do not fit the network, or activations are not finite.
    """
    sums = measure(network.to(dtype), layers, Batches(data), EdgeSettings(rule(method, points)))
    return [section.edges.rms for section in sums]


def estimate_edges(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data,
    sources: Sources,
    method: Method | Rule = "gradient",
    *,
    dtype: torch.dtype = torch.float64,
) -> list[Edges]:
    """Estimate the edges of every section with stochastic sources, each with its standard error.

    Args:
        network: The network.
        layers: A basis for each of its node layers.
        data: Inputs in a fixed order, as `interbasis.build` takes them.
        sources: Groups of tokens and how many sets of signs.
        method: As for `interbasis.edges`, or a `Rule` with its own number of points.
        dtype: What the network computes in.

    Returns:
        Ê of every section and its standard error, [features_out, features_in] each.

    Raises:
        InterbasisError: The bases do not fit the network, the data are shuffled, or activations are not
            finite.
    """
    integral = method if isinstance(method, Rule) else rule(method)
    sums = measure(network.to(dtype), layers, Batches(data), EdgeSettings(integral, sources))
    return [section.edges for section in sums]


@torch.no_grad()
def measure(
    network: Network,
    layers: Sequence[LayerBasis],
    batches: Batches,
    settings: EdgeSettings,
    progress: Progress = silent,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> list[EdgeSums]:
    """Sums for the edges of all sections in one pass over the data, exact or with stochastic sources.

    Every block of the data but the last holds a whole number of groups.
    """
    if settings.sources is not None:
        require_fixed_order(batches)
    blocks = batches.blocks(_whole_groups(network, batches, settings.sources))

    @cache
    def sections() -> list[SectionEdges]:  # not made where every block was measured before
        return _sections(network, layers, batches, settings)

    def of_block(number: int) -> State:
        fresh = [section.fresh() for section in sections()]
        return _state(_measure_block(network, fresh, blocks[number], settings, progress, checkpoints))

    return _restored(batches.team.sums(Pass("edges", len(blocks), of_block, _merged))[0])


def _merged(one: State, other: State) -> State:
    sums = _restored(one)
    for mine, theirs in zip(sums, _restored(other), strict=True):
        mine.merge(theirs)
    return _state(sums)


def _sections(
    network: Network, layers: Sequence[LayerBasis], batches: Batches, settings: EdgeSettings
) -> "list[SectionEdges]":
    """All sections in their bases, without data yet."""
    longest = network.prefix(batches.first().to(network.device)).shape[1]
    sections, positions = [], longest
    pairs = zip(sections_in_bases(network, layers), _transforms(network, layers), strict=True)
    for k, (in_bases, transform) in enumerate(pairs):
        positions = in_bases.count_out(positions)
        number = settings.first + k
        sections.append(SectionEdges(in_bases, settings, transform, number, max(longest, positions)))
    return sections


def _measure_block(
    network: Network,
    sections: "Sequence[SectionEdges]",
    batches: Batches,
    settings: EdgeSettings,
    progress: Progress,
    checkpoints: Checkpoints,
) -> list[EdgeSums]:
    sums = [section.sums for section in sections]
    checkpoint = checkpoints.checkpoint(f"edges{batches.mark}", len(batches))
    for k, total in enumerate(sums):
        total.restore(checkpoint.tensors, checkpoint.values, k)
    whole = _whole_groups(network, batches, settings.sources)
    some = chunks(network, batches, whole, fine=True, start=checkpoint.done)
    save = partial(checkpoint.save, state=partial(_state, sums))
    for first, inputs in batches.tracked(some, "edges", progress, save):
        activations = _activations(network, batches, first, inputs)
        for k, (section, f) in enumerate(zip(sections, activations[:-1], strict=True)):
            counted = settings.counted.between(network, k, f, activations[k + 1])
            section.add(f, first, counted)
    return sums


class SectionEdges:
    """The sums of one section, batch after batch."""

    def __init__(
        self,
        section: Section,
        settings: EdgeSettings,
        transform: Tensor | None = None,
        number: int = 0,
        longest: int = 0,
    ):
        """``section`` is in the coordinates of its bases; ``transform`` C takes activations there.

        Signs and positions are drawn by the section's ``number`` in the network and by how many positions
        the longest sample has.
        """
        self.section, self.settings, self.transform = section, settings, transform
        self.number, self.longest = number, longest
        self.sums = EdgeSums.zero(section, settings.sources is not None)
        self._stencil = section if isinstance(section, StencilSection) else None
        self._squares: Callable[[Tensor], Tensor] | None = None
        if self._stencil is None and isinstance(section.core, ClosedFormSquares):
            self._squares = section.core.squares(section, settings.rule)

    def fresh(self) -> "SectionEdges":
        """The same section without data yet."""
        fresh = copy(self)
        fresh.sums = EdgeSums.zero(self.section, self.settings.sources is not None)
        return fresh

    def add(self, f: Tensor, first: int = 0, counted: Counted | None = None) -> None:  # [n, T, width]
        """Add a batch, ``first`` the number of its first sample in the data."""
        self.sums.tokens += f.shape[0] * f.shape[1] if counted is None else int(counted.inputs.sum())
        if self._squares is not None:  # exact, and cheaper than any estimate
            some = f if counted is None else f[counted.both][:, None]
            if len(some):
                self.sums.square += self._squares(_in_basis(some, self.transform))
            return
        section, sources = self.section, self.settings.sources
        if self._stencil is not None and isinstance(section.core, Linear):
            sources = None  # exact, and cheaper than any estimate
        positions = None if sources is None else self._positions(f, sources, first)
        count = section.count_out(f.shape[1])
        outputs = count if positions is None else positions.shape[1]
        group = 1 if sources is None else outputs if sources.group == "positions" else sources.group
        alone = sources is None or (group == 1 and positions is None)
        if counted is not None and positions is not None and not section.core.mixes_positions:
            counted = Counted(*(mask.gather(1, positions) for mask in counted))
        f = self._features(f, positions, alone)
        if sources is None or alone:
            for _, _, block in token_attributions(section, f, self.settings.rule, counted):
                self.sums.square += double_sum(block.square_(), 1)
            return
        key, most = ("edges", sources.seed, self.number), min(self.longest, sources.positions or self.longest)
        signs = random_signs(key, first, len(f), outputs * sources.count, most * sources.count).to(f)
        signs = signs.view(-1, sources.count)
        if counted is not None:
            told = counted.outputs
            if positions is not None and section.core.mixes_positions:
                told = told.gather(1, positions)
            elif positions is None:
                told = told[:, section.outputs(f)]
            signs = signs * told.flatten()[:, None]
        groups = into_groups(signs, group)  # [groups, g, R]
        inputs = None if counted is None else counted.inputs
        self._add_groups(f, SignedTokens(groups, positions, inputs), count / outputs)

    def _features(self, f: Tensor, positions: Tensor | None, alone: bool) -> Tensor:
        """f̂ of the positions that matter; for groups of a stencil's outputs, their patches."""
        if self._stencil is not None:
            f = _in_basis(f, self.transform)
            f = f if alone else self._stencil.patches(f)
            return f if positions is None else positions_of(f, positions)
        if positions is not None and not self.section.core.mixes_positions:
            f = positions_of(f, positions)  # the others do not matter to these
        return _in_basis(f, self.transform)

    def _positions(self, f: Tensor, sources: Sources, first: int) -> Tensor | None:
        """The output positions of every sample that are looked at, [n, Q]; None is all of them."""
        core, wanted, count = self.section.core, sources.positions, self.section.count_out(f.shape[1])
        if wanted is None or self.section.last_only or wanted >= count:
            return None
        if core.mixes_positions and not isinstance(core, SamplesQueries):
            return None
        key = ("edge positions", sources.seed, self.number)
        return random_positions(key, first, len(f), wanted, count).to(f.device)

    def _add_groups(self, f: Tensor, tokens: SignedTokens, weight: float) -> None:
        """Squares of signed sums, a few groups at a time.

        ``weight`` is how many positions each one stands for that is looked at.
        """
        assert self.sums.variance is not None
        sources = tokens.signs.shape[2]
        for some, their in tokens.blocks(self.section, f):
            block = squared_sums(self.section, some, self.settings.rule, their)
            self.sums.square += weight * block.mean(2).sum(1)
            if tokens.positions is not None:
                variance = block.mean(2).square().sum(1)
            elif sources > 1:
                variance = block.var(2).sum(1) / sources
            else:
                variance = 2 / 3 * block.square().sum((1, 2))
            self.sums.variance += weight**2 * variance


def _state(sums: Sequence[EdgeSums]) -> State:
    """All sums, to go on from."""
    tensors = {f"square.{k}": total.square for k, total in enumerate(sums)}
    tensors |= {f"variance.{k}": v for k, total in enumerate(sums) if (v := total.variance) is not None}
    return tensors, {"tokens": [total.tokens for total in sums]}


def _restored(state: State) -> list[EdgeSums]:
    """Sums as `_state` has them."""
    tensors, values = state
    return [
        EdgeSums(tensors[f"square.{k}"], tensors.get(f"variance.{k}"), tokens)
        for k, tokens in enumerate(values["tokens"])
    ]


def _whole_groups(network: Network, batches: Batches, sources: Sources | None) -> int:
    """The fewest samples that hold a whole number of groups in every section."""
    if sources is None or sources.group == "positions":
        return 1
    outputs = [f.shape[1] for f in network.activations(batches.first().to(network.device))[1:]]
    if sources.positions is not None:  # or all of them, where positions cannot be sampled
        outputs += [min(sources.positions, count) for count in outputs]
    return math.lcm(*(math.lcm(sources.group, count) // count for count in outputs))


def require_fixed_order(batches: Batches) -> None:
    """Stochastic sources require data in a fixed order."""
    if batches.shuffled:
        raise InterbasisError(
            f"{batches.name}: signs belong to samples by their place in the data, which a shuffling "
            "DataLoader changes with every pass; turn shuffling off"
        )


@torch.no_grad()
def completeness(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data,
    method: Method = "exact",
    *,
    points: int = 16,
    dtype: torch.dtype = torch.float64,
) -> list[float]:
    """Measure how far the attributions are from adding up, Σ_j A_ij = F̂_i.

    Args:
        network: The network.
        layers: A basis for each of its node layers.
        data: Inputs, as `interbasis.build` takes them.
        method: As for `interbasis.edges`.
        points: Nodes of the integration rule.
        dtype: What the network computes in.

    Returns:
        RMS(Σ_j A_ij − F̂_i) / RMS(F̂) per section: 0 up to rounding if the integral is exact, and what the
        edges leave out with ``gradient``.

    Raises:
        InterbasisError: The bases do not fit the network, or activations are not finite.
    """
    network, batches, integral = network.to(dtype), Batches(data), rule(method, points)
    sections = sections_in_bases(network, layers)
    missing, size = [0.0] * len(sections), [0.0] * len(sections)
    transforms = _transforms(network, layers)
    for first, inputs in chunks(network, batches, fine=True):
        activations = _activations(network, batches, first, inputs)[:-1]
        for k, (section, f) in enumerate(zip(sections, activations, strict=True)):
            f = _in_basis(f, transforms[k])
            residual = section(f).permute(2, 0, 1).contiguous()  # F̂ [r_out, n, S]
            size[k] += residual.square().sum().item()
            for samples, outputs, block in token_attributions(section, f, integral):
                rest = residual[:, samples, outputs]
                rest -= block.sum(2).view_as(rest)
            missing[k] += residual.square().sum().item()
    return [(m / s) ** 0.5 if s else 0.0 for m, s in zip(missing, size, strict=True)]


def _activations(network: Network, batches: Batches, first: int, inputs: Tensor) -> list[Tensor]:
    """f at every node layer, [n, T, width] each, if all sections' sources are finite."""
    activations = network.activations(inputs)
    for name, f in zip(network.layers, activations[:-1], strict=False):
        if not f.isfinite().all():
            check_finite(name, f, batches.name, first)
    return activations


def _transforms(network: Network, layers: Sequence[LayerBasis]) -> list[Tensor | None]:
    """C of every section's source; None is the identity."""
    like = network.sections[0].like
    return [None if layer.identity else layer.transform.to(like) for layer in layers[:-1]]


def _in_basis(f: Tensor, transform: Tensor | None) -> Tensor:
    return f if transform is None else f @ transform.T
