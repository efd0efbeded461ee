"""Interaction edges: root mean squares of the attributions between the features of neighbouring layers.

With A_is,j(x) the attribution of output feature i at position s to input feature j, for a sample x
(`network/attributions.py`), the edge is

    Ê_ij² = (1/nT) Σ_x Σ_s A_is,j(x)²,    T the number of input positions.

`EdgesPass` sums A² over the data, chunk by chunk and section by section. `SectionEdges` has three ways to sum
the tokens (samples and output positions) of a chunk:

- exact: the attributions of every token, squared;
- in closed form, where A² is a combination of few functions of the token (`network/cores/squares.py`);
- stochastic sources, cheaper and unbiased for Ê²: every token has a random sign φ, and signed sums over
  groups of tokens are squared, Σ_x,s A² = E_φ Σ_groups (Σ φ A)².

Where samples are drawn from the data, the spread of Ê² over units of few samples says how far the average is
from that over all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from interbasis.base.devices import double, double_sum, sums_device
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Method
from interbasis.compute.executor import Chunk, Executor, SumsPass, add_sums, chunk_size
from interbasis.data.batches import Batches, Data
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.coordinates import in_basis, sections_in_bases, source_transforms
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.edge_inputs import (
    EdgeInput,
    edge_inputs,
    finite_activations,
    sampled_positions,
    samples_positions,
)
from interbasis.network.attributions import SignedTokens
from interbasis.network.cores import Counted, Sums
from interbasis.network.cores.core import into_groups
from interbasis.network.cores.squares import Squares
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import Rule, rule
from interbasis.numerics.random_signs import Sources, random_signs

TOKENS_PER_UNIT = 8
"""Tokens, at least, of the samples whose Ê² are compared with each other."""


@dataclass(frozen=True)
class EdgeSettings:
    """Settings for edges: the rule, stochastic sources or None for exact sums, the tokens that count."""

    rule: Rule
    sources: Sources | None = None
    counted: CountedTokens = ALL_TOKENS
    first: int = 0
    """The number of the network's first section in a larger one that it is cut from, for random numbers."""
    drawn: bool = False
    """Whether samples are drawn from the data, so that the spread over samples is part of the error."""


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of one section."""

    rms: Tensor
    """Ê [features_out, features_in]."""
    error: Tensor | None = None
    """Standard error of Ê from the stochastic sources and the draw of samples, same shape; None where the
    sum was exact."""


@dataclass(frozen=True, eq=False)
class EdgeSums:
    """Sums over data that the edges of one section follow from."""

    square: Tensor  # Σ A² or its estimate  [r_out, r_in]
    variance: Tensor | None  # of that estimate, None where it is exact
    tokens: int  # n·T, input positions
    changed_choices: float | None = None
    """Share of the tokens that visit other experts on the line from 0 than at its end; None: no experts."""

    @property
    def edges(self) -> Edges:
        rms = (self.square / self.tokens).sqrt().cpu()
        if self.variance is None:
            return Edges(rms)
        # error of a root: σ(Ê) = σ(Ê²) / 2Ê
        error = (self.variance.sqrt() / self.tokens).cpu() / (2 * rms)
        return Edges(rms, torch.where(rms > 0, error, 0.0))


def measure(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Batches,
    settings: EdgeSettings,
    executor: Executor | None = None,
) -> list[EdgeSums]:
    """Sum A² of all sections in one pass over the data, exactly or with stochastic sources."""
    edges = EdgesPass(network, layers, data, settings)
    return edges.totals((executor or Executor(network)).run(edges, data))


def round_name(number: int) -> str:
    """Name of the pass for the edges of a round, from 0."""
    return f"edges.{number}" if number else "edges"


class EdgesPass(SumsPass):
    """Σ A² of all sections; every chunk and block but the last holds a whole number of groups."""

    def __init__(self, network: Network, layers: Sequence[LayerBasis], data: Batches, settings: EdgeSettings):
        self.network, self.layers, self.settings = network, layers, settings
        self.begin_round(0)
        if settings.sources is not None:
            require_fixed_order(data)
        first = data.first().to(network.device)
        self.multiple_of = _whole_groups(network, first, settings.sources)
        self.longest = network.prefix(first).shape[1]
        self.unit = 1
        if settings.drawn:
            self.unit = math.lcm(self.multiple_of, max(1, TOKENS_PER_UNIT // self.longest))
            self.multiple_of = self.unit

    @cached_property
    @torch.no_grad()
    def sections(self) -> "list[SectionEdges]":
        """All sections in their bases."""
        sections, positions = [], self.longest
        in_bases = sections_in_bases(self.network, self.layers)
        transforms = source_transforms(self.network, self.layers)
        for k, (section, transform) in enumerate(zip(in_bases, transforms, strict=True)):
            positions = section.count_out(positions)
            number, longest = self.settings.first + k, max(self.longest, positions)
            sections.append(SectionEdges(section, self.settings, transform, number, longest))
        return sections

    def begin_round(self, number: int) -> None:
        """Name the pass by its round, from 0."""
        self.phase, self.name = "edges", round_name(number)
        self.file = self.name

    def totals(self, sums: Sums, share: float = 1.0) -> list[EdgeSums]:
        """Σ A² of every section, from the sums over all data, or over a share of them that was drawn."""
        return [section.total(sums, share) for section in self.sections]

    @torch.no_grad()
    def update(self, state: Sums, chunk: Chunk) -> None:
        inputs = edge_inputs(chunk, self.network, self.settings.sources, self.settings.counted)
        for section, edge_input in zip(self.sections, inputs, strict=True):
            if not self.settings.drawn:
                section.add(state, edge_input.f, chunk.first, edge_input.counted, edge_input.length)
                continue
            for start in range(0, len(edge_input.f), self.unit):
                section.add_unit(state, edge_input.part(start, start + self.unit), chunk.first + start)


class SectionEdges:
    """Sums over tokens for the edges of one section."""

    def __init__(
        self,
        section: Section,
        settings: EdgeSettings,
        transform: Tensor | None = None,
        number: int = 0,
        longest: int = 0,
    ):
        """``section`` is in the coordinates of its bases; ``transform`` C takes activations there.

        Names of sums end with the section's ``number`` in the network. Signs are drawn by it, and by how many
        positions the ``longest`` sample has.
        """
        self.settings, self.number, self.longest = settings, number, longest
        self.features = section.features_in
        self._sources = None if section.exact_is_cheapest else settings.sources
        self._squares = section.squares(settings.rule)
        if self._squares is None and transform is not None:
            section = section.aligned()
            transform = torch.nn.functional.pad(transform, (0, 0, 0, section.features_in - self.features))
        self.section, self.transform = section, transform

    def add(
        self, sums: Sums, f: Tensor, first: int = 0, counted: Counted | None = None, length: int | None = None
    ) -> None:  # [n, T, width]
        """Add a batch to sums, ``first`` the number of its first sample in the data.

        Where samples of ``length`` positions are looked at in some alone, f may hold these and no others.
        """
        length, sources = length or f.shape[1], self._sources
        count = self.section.count_out(length)
        tokens = len(f) * length if counted is None else int(counted.inputs.sum())
        self._add(sums, tokens=torch.tensor(tokens, dtype=torch.float64))
        self._count_choices(sums, f, counted)
        positions = None
        if sources is not None and samples_positions(self.section, sources, length):
            positions = sampled_positions(sources, first, len(f), count).to(f.device)
        if self._squares is not None:
            self._add_in_closed_form(sums, self._squares, f, positions, counted, count)
        elif sources is None or (positions is None and _group_size(sources, count) == 1):
            self._add_exact(sums, f, counted)
        else:
            signed_tokens = self._signed_tokens(sources, f, first, positions, counted)
            self._add_signed(sums, self._features(f, positions), signed_tokens, count)

    def _count_choices(self, sums: Sums, f: Tensor, counted: Counted | None) -> None:
        """Add how many tokens change their experts on the line from 0, and of how many."""
        if self.settings.rule.method == "gradient":  # there is no way
            return
        changed = self.section.changed_choices(self._features(f), self.settings.rule)
        if changed is None:
            return
        count = torch.ones_like(changed)
        if counted is not None and counted.both.shape[1] == f.shape[1]:
            count = counted.both[:, self.section.outputs(f)]
        self._add(sums, changed=double_sum(changed & count, (0, 1)), choices=double_sum(count, (0, 1)))

    def add_unit(self, sums: Sums, edge_input: EdgeInput, first: int) -> None:
        """Add a few samples, and the square of their Ê²."""
        unit: Sums = {}
        self.add(unit, edge_input.f, first, edge_input.counted, edge_input.length)
        add_sums(sums, unit)
        totals = self._totals(unit)
        if totals["tokens"]:
            spread = (self._square(totals) / totals["tokens"]).square()
            self._add(sums, unit_squares=spread, units=torch.tensor(1.0, dtype=torch.float64))

    def _totals(self, sums: Sums) -> Sums:
        """The sums of this section by their names in it."""
        end, device = f".{self.number}", sums_device(self.section.skip.device)
        return {name.removesuffix(end): t.to(device) for name, t in sums.items() if name.endswith(end)}

    def _square(self, totals: Sums) -> Tensor:
        """Σ A²."""
        return totals["square"] if self._squares is None else self._squares.square(totals)

    def total(self, sums: Sums, share: float = 1.0) -> EdgeSums:
        """Σ A² and its variance, from the sums over all data, or over a share of them that was drawn."""
        totals = self._totals(sums)
        square, tokens = self._square(totals), int(totals["tokens"])
        variance = totals.get("variance")
        if self._squares is not None:
            variance = self._squares.variance(totals) if "spread" in totals else None
        if self.settings.sources is not None and variance is None:  # exact, beside sections that are not
            variance = torch.zeros_like(square)
        if self.settings.drawn:
            variance = _variance_of_drawn(square, variance, totals, share)
        columns = slice(0, self.features)
        variance = None if variance is None else variance[:, columns]
        changed = totals["changed"] / totals["choices"] if "changed" in totals else None
        return EdgeSums(
            square[:, columns], variance, tokens, None if changed is None else changed.nan_to_num().item()
        )

    def _add(self, sums: Sums, **more: Tensor) -> None:
        add_sums(sums, {f"{name}.{self.number}": total for name, total in more.items()})

    def _features(self, f: Tensor, positions: Tensor | None = None) -> Tensor:
        """f̂, of the input positions that outputs at some positions need."""
        return in_basis(self.section.needed_inputs(f, positions), self.transform)

    def _add_exact(self, sums: Sums, f: Tensor, counted: Counted | None) -> None:
        """Add Σ A² of single tokens."""
        for _, _, block in self.section.attributions(self._features(f), self.settings.rule, counted):
            self._add(sums, square=double_sum(block.square_(), 1))

    def _add_in_closed_form(
        self,
        sums: Sums,
        squares: Squares,
        f: Tensor,
        positions: Tensor | None,
        counted: Counted | None,
        count: int,
    ) -> None:
        """Add the sums that Σ A² is a combination of; ``count`` positions come out of a sample."""
        if positions is None:
            f = f[:, self.section.outputs(f)].flatten(0, 1) if counted is None else f[counted.both]
            self._add(sums, **squares.token_sums(self._features(f)))
            return
        weights = torch.full(positions.shape, count / positions.shape[1], device=f.device)
        if counted is not None:
            weights *= counted.both.gather(1, positions)
        for part in squares.sampled_sums(self._features(f, positions), weights):
            self._add(sums, **part)

    def _signed_tokens(
        self, sources: Sources, f: Tensor, first: int, positions: Tensor | None, counted: Counted | None
    ) -> SignedTokens:
        """Random signs φ of the output tokens, 0 for those that do not count."""
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

    def _add_signed(self, sums: Sums, f: Tensor, tokens: SignedTokens, count: int) -> None:
        """Add Σ_groups (Σ φ A)², averaged over sets of signs, and its variance.

        ``count`` positions come out of a sample.
        """
        sources = tokens.signs.shape[2]
        weight = 1.0 if tokens.positions is None else count / tokens.positions.shape[1]
        for samples, signed in tokens.blocks(self.section, f):
            signed_sums = self.section.signed_attributions(samples, self.settings.rule, signed)
            # [r_out, groups, R, r_in]
            block = double(signed_sums.square_()).unflatten(1, signed.signs.shape[::2])
            if tokens.positions is not None:  # a bound, Var X ≤ E[X²]
                variance = block.mean(2).square().sum(1)
            elif sources > 1:  # the scatter of the sets
                variance = block.var(2).sum(1) / sources
            else:  # Var X ≈ ⅔ E[X²] where no token dominates its group
                variance = 2 / 3 * block.square().sum((1, 2))
            self._add(sums, square=weight * block.mean(2).sum(1), variance=weight**2 * variance)


def drawn_share(draws: int, samples: int) -> float:
    """Share f of the differences between samples that m draws out of n have averaged out.

    Samples are drawn again once all were, so that each is drawn q or q + 1 times, c of m. The average over
    draws is then off by Σ_x (c_x/m − 1/n) Y_x, with variance (1 − f) Var Y / m where
    1 − f = Σ c²/m − m/n; up to m = n that is f = m/n.
    """
    sweeps, more = divmod(draws, samples)
    squares = more * (sweeps + 1) ** 2 + (samples - more) * sweeps**2
    return 1 - squares / draws + draws / samples


def _variance_of_drawn(square: Tensor, within: Tensor | None, totals: Sums, share: float) -> Tensor:
    """Variance of Σ A² of the samples drawn, as an estimate for all samples.

    Of U units, v = Σ (Y − Ȳ)² / U(U − 1) with Y the Ê² of a unit holds the differences between samples and
    the errors ``within`` them, from signs and positions. Drawing the share f of the samples without
    replacement leaves 1 − f of the first (`drawn_share`), and all of the second: (1 − f) v + f · within.
    """
    units, mean = totals["units"], square / totals["tokens"]
    between = totals["unit_squares"] - units * mean.square()
    between = between.clamp_min_(0) / (units * (units - 1)).clamp_min(1) * totals["tokens"] ** 2
    if within is None:
        return (1 - share) * between
    return (1 - share) * between + share * torch.minimum(within, between)


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
