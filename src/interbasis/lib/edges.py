"""Interaction edges: root mean squares of the attributions between the features of neighbouring layers.

With A_is,j(x) the attribution of output feature i at position s to input feature j, for a sample x
(`network/attributions.py`), the edge is

    Ê_ij² = (1/nT) Σ_x Σ_s A_is,j(x)²,    T the number of input positions.

Cheaper and unbiased for Ê²: give every token (sample and output position) a random sign φ, and square signed
sums over groups of tokens, Σ_x,s A² = E_φ Σ_groups (Σ φ A)².
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from interbasis.base.devices import double, double_sum
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Method
from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Chunk, Executor, Pass, chunk_size
from interbasis.data.batches import Batches, Data
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.coordinates import in_basis, sections_in_bases, source_transforms
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.edge_inputs import edge_inputs, finite_activations, sampled_positions, samples_positions
from interbasis.lib.edge_sums import Edges, EdgeSums, SquareSums
from interbasis.network.attributions import SignedTokens
from interbasis.network.cores import Counted
from interbasis.network.cores.core import into_groups
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import Rule, rule
from interbasis.numerics.random_signs import Sources, random_signs


@dataclass(frozen=True)
class EdgeSettings:
    """Settings for edges: the rule, stochastic sources or None for exact sums, the tokens that count."""

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
    settings = EdgeSettings(rule(method, points), counted=CountedTokens.from_layers(network, layers))
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
    settings = EdgeSettings(integral, sources, CountedTokens.from_layers(network, layers))
    sums = measure(network.to(dtype), layers, Batches(data), settings)
    return [section.edges for section in sums]


def measure(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Batches,
    settings: EdgeSettings,
    executor: Executor | None = None,
) -> list[EdgeSums]:
    """Sums for the edges of all sections in one pass over the data, exact or with stochastic sources."""
    sections = (executor or Executor(network)).run(EdgesPass(network, layers, data, settings), data)
    return [section.sums for section in sections]


class EdgesPass(Pass[list["SectionEdges"]]):
    """Σ A² of all sections; every chunk and block but the last holds a whole number of groups."""

    name = phase = file = "edges"

    def __init__(self, network: Network, layers: Sequence[LayerBasis], data: Batches, settings: EdgeSettings):
        self.network, self.layers, self.settings = network, layers, settings
        if settings.sources is not None:
            require_fixed_order(data)
        first = data.first().to(network.device)
        self.multiple_of = _whole_groups(network, first, settings.sources)
        self.longest = network.prefix(first).shape[1]

    @cached_property
    def _sections(self) -> "list[SectionEdges]":
        """All sections in their bases, without data."""
        network, sections, positions = self.network, [], self.longest
        pairs = zip(
            sections_in_bases(network, self.layers), source_transforms(network, self.layers), strict=True
        )
        for k, (in_bases, transform) in enumerate(pairs):
            positions = in_bases.count_out(positions)
            number, longest = self.settings.first + k, max(self.longest, positions)
            sections.append(SectionEdges(in_bases, self.settings, transform, number, longest))
        return sections

    @torch.no_grad()
    def start(self) -> "list[SectionEdges]":
        return [section.fresh() for section in self._sections]

    @torch.no_grad()
    def update(self, state: "list[SectionEdges]", chunk: Chunk) -> None:
        inputs = edge_inputs(chunk, self.network, self.settings.sources, self.settings.counted)
        for section, edge_input in zip(state, inputs, strict=True):
            section.add(edge_input.f, chunk.first, edge_input.counted, edge_input.length)

    def merge(self, state: "list[SectionEdges]", other: "list[SectionEdges]") -> None:
        for k, (section, more) in enumerate(zip(state, other, strict=True)):
            totals = more.tensors(k)
            sums = {name: total + totals[name] for name, total in section.tensors(k).items()}
            section.restore(sums, section.tokens + more.tokens, k)

    def dump(self, state: "list[SectionEdges]") -> State:
        tensors = {name: t for k, section in enumerate(state) for name, t in section.tensors(k).items()}
        return tensors, {"tokens": [section.tokens for section in state]}

    def load(self, saved: State) -> "list[SectionEdges]":
        sections = self.start()
        for k, section in enumerate(sections):
            section.restore(saved[0], saved[1]["tokens"][k], k)
        return sections


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
        self._sources = None if section.exact_is_cheapest else settings.sources
        self._squares = section.squares(settings.rule)
        if self._squares is None and transform is not None:
            section = section.aligned()
            more = section.features_in - self.features
            transform = torch.nn.functional.pad(transform, (0, 0, 0, more)) if more else transform
        self.section, self.transform = section, transform
        self._empty()

    def _empty(self) -> None:
        self._total = EdgeSums.zero(self.section, self.settings.sources is not None)
        self._small = None if self._squares is None else SquareSums.zero(self._squares)

    def fresh(self) -> "SectionEdges":
        """Return a copy of the section without data."""
        fresh = copy(self)
        fresh._empty()
        return fresh

    @property
    def sums(self) -> EdgeSums:
        """Sums over all batches."""
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
        length, sources = length or f.shape[1], self._sources
        count = self.section.count_out(length)
        self._total.tokens += len(f) * length if counted is None else int(counted.inputs.sum())
        positions = None
        if sources is not None and samples_positions(self.section, sources, length):
            positions = sampled_positions(sources, first, len(f), count).to(f.device)
        if self._small is not None:
            self._add_squares(self._small, f, positions, counted, count)
        elif sources is None or (positions is None and _group_size(sources, count) == 1):
            self._add_exact(f, counted)
        else:
            tokens = self._signed_tokens(sources, f, first, positions, counted)
            self._add_signed(self._features(f, positions), tokens, count)

    def _features(self, f: Tensor, positions: Tensor | None = None) -> Tensor:
        """f̂, of the input positions that outputs at some positions need."""
        return in_basis(self.section.needed_inputs(f, positions), self.transform)

    def _add_exact(self, f: Tensor, counted: Counted | None) -> None:
        """Add squares of the attributions of single tokens."""
        for _, _, block in self.section.attributions(self._features(f), self.settings.rule, counted):
            self._total.square += double_sum(block.square_(), 1)

    def _add_squares(
        self, small: SquareSums, f: Tensor, positions: Tensor | None, counted: Counted | None, count: int
    ) -> None:
        """Add squares in closed form; ``count`` positions come out of a sample."""
        if positions is None:
            f = f[:, self.section.outputs(f)].flatten(0, 1) if counted is None else f[counted.both]
            if len(f):
                small.add(self._features(f))
            return
        weights = torch.full(positions.shape, count / positions.shape[1], device=f.device)
        if counted is not None:
            weights *= counted.both.gather(1, positions)
        small.add_sampled(self._features(f, positions), weights)

    def _signed_tokens(
        self, sources: Sources, f: Tensor, first: int, positions: Tensor | None, counted: Counted | None
    ) -> SignedTokens:
        """Random signs of the output tokens, 0 for those that do not count."""
        here = self.section.outputs(f)
        outputs = here.stop - here.start if positions is None else positions.shape[1]
        key, most = ("edges", sources.seed, self.number), min(self.longest, sources.positions or self.longest)
        signs = random_signs(key, first, len(f), outputs * sources.count, most * sources.count).to(f)
        signs, inputs = signs.view(-1, sources.count), None
        if counted is not None:
            inputs, ends = counted
            ends = ends[:, here] if positions is None else ends.gather(1, positions)
            signs = signs * ends.flatten()[:, None]
            if positions is not None and not self.section.core.mixes_positions:
                inputs = inputs.gather(1, positions)
        return SignedTokens(into_groups(signs, _group_size(sources, outputs)), positions, inputs)

    def _add_signed(self, f: Tensor, tokens: SignedTokens, count: int) -> None:
        """Add squares of signed sums, a few groups at a time; ``count`` positions come out of a sample."""
        assert self._total.variance is not None
        sources = tokens.signs.shape[2]
        weight = 1.0 if tokens.positions is None else count / tokens.positions.shape[1]
        for samples, signed in tokens.blocks(self.section, f):
            sums = self.section.signed_attributions(samples, self.settings.rule, signed)
            block = double(sums.square_()).unflatten(1, signed.signs.shape[::2])  # [r_out, groups, R, r_in]
            self._total.square += weight * block.mean(2).sum(1)
            if tokens.positions is not None:
                variance = block.mean(2).square().sum(1)
            elif sources > 1:
                variance = block.var(2).sum(1) / sources
            else:
                variance = 2 / 3 * block.square().sum((1, 2))
            self._total.variance += weight**2 * variance


def _group_size(sources: Sources, outputs: int) -> int:
    """Tokens in a group, for so many output positions of a sample."""
    return outputs if sources.group == "positions" else sources.group


def _whole_groups(network: Network, inputs: Tensor, sources: Sources | None) -> int:
    """The fewest samples that hold a whole number of groups in every section."""
    if sources is None or sources.group == "positions":
        return 1
    outputs = [f.shape[1] for f in network.activations(inputs)[1:]]
    if sources.positions is not None:  # or all of them, where positions cannot be sampled
        outputs += [min(sources.positions, count) for count in outputs]
    return math.lcm(*(math.lcm(sources.group, count) // count for count in outputs))


def require_fixed_order(batches: Batches) -> None:
    """Check that data for stochastic sources have a fixed order."""
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
    transforms = source_transforms(network, layers)
    for first, inputs in batches.chunks(chunk_size(network, batches, fine=True)):
        activations = finite_activations(network, batches.name, first, inputs.to(network.device))[:-1]
        for k, (section, f) in enumerate(zip(sections, activations, strict=True)):
            f = in_basis(f, transforms[k])
            residual = section(f).permute(2, 0, 1).contiguous()  # F̂ [r_out, n, S]
            size[k] += residual.square().sum().item()
            for samples, outputs, block in section.attributions(f, integral):
                part = residual[:, samples, outputs]
                part -= block.sum(2).view_as(part)
            missing[k] += residual.square().sum().item()
    return [(m / s) ** 0.5 if s else 0.0 for m, s in zip(missing, size, strict=True)]
