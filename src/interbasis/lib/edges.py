"""Interaction edges: root mean squares of the attributions between the features of neighbouring layers.

With A_is,j(x) the attribution of output feature i at position s to input feature j, for a sample x
(`attributions.py`), the edge is

    Ê_ij² = (1/nT) Σ_x Σ_s A_is,j(x)²,    T the number of input positions.

Cheaper and unbiased for Ê²: give every token (sample and output position) a random sign φ, and square signed
sums over groups of tokens, Σ_x,s A² = E_φ Σ_groups (Σ φ A)².
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from interbasis.base.devices import double_sum
from interbasis.base.errors import InterbasisError
from interbasis.base.literals import Method
from interbasis.base.progress import Progress, silent
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoints, State
from interbasis.compute.team import Pass
from interbasis.data.batches import Batches, Data
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.activation_cache import ActivationCache
from interbasis.lib.attributions import (
    SignedTokens,
    in_basis,
    sections_in_bases,
    squared_sums,
    token_attributions,
    transforms_of,
)
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.edge_activations import NeededActivations, sampled_positions, samples_positions
from interbasis.lib.edge_sums import Edges, EdgeSums
from interbasis.lib.square_sums import SquareSums
from interbasis.lib.statistics import chunks
from interbasis.network.cores import ClosedFormSquares, Counted, Linear
from interbasis.network.cores.core import into_groups, positions_of
from interbasis.network.cores.squares import Squares
from interbasis.network.network import Network, Section
from interbasis.network.stencil_section import StencilSection
from interbasis.numerics.integration import Rule, rule
from interbasis.numerics.random_signs import Sources, random_signs

ALIGNED = 16
"""Features are filled up to a multiple of this with some that are 0 everywhere: rows of products then begin
on a cache line, and large ones take a third less time."""
MIN_ALIGNED_WIDTH = 256
"""Fewer features are left as they are."""


@dataclass(frozen=True)
class EdgeSettings:
    """How edges are measured: the rule, stochastic sources or None for exact sums, the tokens that count."""

    rule: Rule
    sources: Sources | None = None
    counted: CountedTokens = ALL_TOKENS
    first: int = 0
    """The number of the network's first section in a larger one that it is cut from, for random numbers."""
    streams: ActivationCache | None = None
    """Where activations of the data may be stored."""


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
        layers: A basis for each of its node layers. Tokens that a graph's bases left out (`norm_limit`,
            `skip_positions` of the build) are left out here, too, so that the edges are the graph's.
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
    settings = EdgeSettings(rule(method, points), counted=CountedTokens.of_layers(network, layers))
    sums = measure(network.to(dtype), layers, Batches(data), settings)
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
        layers: A basis for each of its node layers; tokens are left out as in `interbasis.edges`.
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
    settings = EdgeSettings(integral, sources, CountedTokens.of_layers(network, layers))
    sums = measure(network.to(dtype), layers, Batches(data), settings)
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
    def sections() -> list[SectionEdges]:
        return _sections(network, layers, batches, settings)

    def of_block(number: int) -> State:
        fresh = [section.fresh() for section in sections()]
        return _measure_block(network, fresh, blocks[number], settings, progress, checkpoints)

    tensors, values = batches.team.sums(Pass("edges", len(blocks), of_block, _merged))[0]
    for k, section in enumerate(sections()):
        section.restore(tensors, values["tokens"][k], k)
    return [section.sums for section in sections()]


def _merged(one: State, other: State) -> State:
    tensors = {name: total + other[0][name] for name, total in one[0].items()}
    pairs = zip(one[1]["tokens"], other[1]["tokens"], strict=True)
    return tensors, {"tokens": [mine + theirs for mine, theirs in pairs]}


def _sections(
    network: Network, layers: Sequence[LayerBasis], batches: Batches, settings: EdgeSettings
) -> "list[SectionEdges]":
    """All sections in their bases, without data yet."""
    longest = network.prefix(batches.first().to(network.device)).shape[1]
    sections, positions = [], longest
    pairs = zip(sections_in_bases(network, layers), transforms_of(network, layers), strict=True)
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
) -> State:
    """All sums over some of the data."""
    checkpoint = checkpoints.checkpoint(f"edges{batches.mark}", len(batches))
    if checkpoint.tensors:
        for k, section in enumerate(sections):
            section.restore(checkpoint.tensors, checkpoint.values["tokens"][k], k)
    whole = _whole_groups(network, batches, settings.sources)
    some = chunks(network, batches, whole, fine=True, start=checkpoint.done)
    save = partial(checkpoint.save, state=partial(_state, sections))
    needed = NeededActivations(network, batches, settings.sources, settings.counted, settings.streams)
    for first, inputs in batches.tracked(some, "edges", progress, save):
        for section, source in zip(sections, needed.of(first, inputs), strict=True):
            section.add(source.f, first, source.counted, source.length)
    return _state(sections)


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

        Signs are drawn by the section's ``number`` in the network and by how many positions the longest
        sample has.
        """
        self.settings, self.number, self.longest = settings, number, longest
        self.features = section.features_in
        self._stencil = section if isinstance(section, StencilSection) else None
        self._squares: Squares | None = None
        if self._stencil is None and isinstance(section.core, ClosedFormSquares):
            self._squares = section.core.squares(section, settings.rule)
        elif self._stencil is None and transform is not None:
            section, transform = _aligned(section, transform)
        self.section, self.transform = section, transform
        self._empty()

    def _empty(self) -> None:
        self._total = EdgeSums.zero(self.section, self.settings.sources is not None)
        self._small = None if self._squares is None else SquareSums.zero(self._squares)

    def fresh(self) -> "SectionEdges":
        """The same section without data yet."""
        fresh = copy(self)
        fresh._empty()
        return fresh

    @property
    def sums(self) -> EdgeSums:
        """Of all batches."""
        total = self._total
        if self._small is not None:
            variance = None if total.variance is None else self._small.variance
            return EdgeSums(self._small.square, variance, total.tokens)
        variance = None if total.variance is None else total.variance[:, : self.features]
        return EdgeSums(total.square[:, : self.features], variance, total.tokens)

    @property
    def tokens(self) -> int:
        """Input positions of all batches."""
        return self._total.tokens

    def tensors(self, k: int) -> dict[str, Tensor]:
        """All sums of this section, the number k, to go on from."""
        if self._small is None:
            return self._total.tensors(k)
        return {f"{name}.{k}": total for name, total in self._small.state.items()}

    def restore(self, tensors: dict[str, Tensor], tokens: int, k: int) -> None:
        """Go on from `tensors`."""
        if self._small is None:
            self._total.restore(tensors, k)
        else:
            self._small.restore({name: tensors[f"{name}.{k}"] for name in self._small.state})
        self._total.tokens = tokens

    def add(
        self, f: Tensor, first: int = 0, counted: Counted | None = None, length: int | None = None
    ) -> None:  # [n, T, width]
        """Add a batch, ``first`` the number of its first sample in the data.

        Where samples of ``length`` positions are looked at in some alone, f may hold these and no others.
        """
        section, sources, length = self.section, self.settings.sources, length or f.shape[1]
        self._total.tokens += len(f) * length if counted is None else int(counted.inputs.sum())
        if self._stencil is not None and isinstance(section.core, Linear):
            sources = None  # exact, and cheaper than any estimate
        count = section.count_out(length)
        positions = None
        if sources is not None and samples_positions(section, sources, length):
            positions = sampled_positions(sources, first, len(f), count).to(f.device)
        if self._small is not None:
            self._add_squares(self._small, f, positions, counted, count)
            return
        outputs = count if positions is None else positions.shape[1]
        group = 1 if sources is None else outputs if sources.group == "positions" else sources.group
        alone = sources is None or (group == 1 and positions is None)
        if counted is not None and positions is not None and not section.core.mixes_positions:
            counted = Counted(*(mask.gather(1, positions) for mask in counted))
        f = self._features(f, positions, alone)
        if sources is None or alone:
            for _, _, block in token_attributions(section, f, self.settings.rule, counted):
                self._total.square += double_sum(block.square_(), 1)
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

    def _add_squares(
        self, small: SquareSums, f: Tensor, positions: Tensor | None, counted: Counted | None, count: int
    ) -> None:
        """In closed form; ``count`` positions come out of a sample."""
        if positions is None:
            f = f[:, self.section.outputs(f)].flatten(0, 1) if counted is None else f[counted.both]
            if len(f):
                small.add(in_basis(f, self.transform))
            return
        weights = torch.full(positions.shape, count / positions.shape[1], device=f.device)
        if counted is not None:
            weights *= counted.both.gather(1, positions)
        small.add_sampled(in_basis(_at(f, positions), self.transform), weights)

    def _features(self, f: Tensor, positions: Tensor | None, alone: bool) -> Tensor:
        """f̂ of the positions that matter; for groups of a stencil's outputs, their patches."""
        if self._stencil is not None:
            f = in_basis(f, self.transform)
            f = f if alone else self._stencil.patches(f)
            return f if positions is None else positions_of(f, positions)
        if positions is not None and not self.section.core.mixes_positions:
            f = _at(f, positions)  # the others do not matter to these
        return in_basis(f, self.transform)

    def _add_groups(self, f: Tensor, tokens: SignedTokens, weight: float) -> None:
        """Squares of signed sums, a few groups at a time.

        ``weight`` is how many positions each one stands for that is looked at.
        """
        assert self._total.variance is not None
        sources = tokens.signs.shape[2]
        for some, their in tokens.blocks(self.section, f):
            block = squared_sums(self.section, some, self.settings.rule, their)
            self._total.square += weight * block.mean(2).sum(1)
            if tokens.positions is not None:
                variance = block.mean(2).square().sum(1)
            elif sources > 1:
                variance = block.var(2).sum(1) / sources
            else:
                variance = 2 / 3 * block.square().sum((1, 2))
            self._total.variance += weight**2 * variance


def _aligned(section: Section, transform: Tensor) -> tuple[Section, Tensor]:
    """The same with more features, which are 0 everywhere, where that is quicker."""
    more = -section.features_in % ALIGNED
    if not more or section.features_in < MIN_ALIGNED_WIDTH:
        return section, transform
    skip, read = (torch.nn.functional.pad(matrix, (0, more)) for matrix in (section.skip, section.read))
    return replace(section, skip=skip, read=read), torch.nn.functional.pad(transform, (0, 0, 0, more))


def _at(f: Tensor, positions: Tensor) -> Tensor:  # [n, T or Q, r], [n, Q] -> [n, Q, r]
    """f at some positions, if it does not hold these alone; they are fewer than T."""
    return f if f.shape[1] == positions.shape[1] else positions_of(f, positions)


def _state(sections: Sequence[SectionEdges]) -> State:
    """All sums, to go on from."""
    tensors = {
        name: total for k, section in enumerate(sections) for name, total in section.tensors(k).items()
    }
    return tensors, {"tokens": [section.tokens for section in sections]}


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
