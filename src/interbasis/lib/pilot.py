"""A short trial of every way to sample: its cost and its error on the model, data and machine of a build.

1. A few samples are drawn, and the network runs over them.
2. Of the sections that have the same core and shapes, the one in the middle is built by itself from the
   activations before it, with the principal directions after it in place of the next layer's features.
3. There every scheme is tried: the seconds of a sample, and the relative variance of one sample's Λ or Ê² as
   an estimate for all samples, with the part of it that stays within samples (signs, positions).

A scheme with m of n samples is then off by √(v/m − (v − w)/n) and takes m times as long as a sample, all
sections together; the worst section decides. Nothing is fitted in advance.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from interbasis.base.devices import near_sums
from interbasis.compute.executor import Clock, Executor
from interbasis.data.batches import Batches
from interbasis.graph.costs import Cost, Pilot, Scheme
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.precision import edge_error, eigenvalue_error
from interbasis.graph.settings import JACOBIAN_GROUPS, BuildConfig
from interbasis.lib.bases import BASES
from interbasis.lib.bases.principal import last_layer
from interbasis.lib.build import fit_bases
from interbasis.lib.build_data import BuildData
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.covariance import Covariance
from interbasis.lib.edge_inputs import samples_positions
from interbasis.lib.edges import EdgeSettings, EdgesPass
from interbasis.lib.survey import MAX_TOKENS, survey
from interbasis.lib.window import Window
from interbasis.lib.windows import GivenActivations
from interbasis.network.cores import PassCore
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import Rule
from interbasis.numerics.random_signs import Sources

PILOT_TOKENS = 2048
"""Tokens that every scheme is tried on, about, for a build."""
MIN_SAMPLES, MAX_SAMPLES = 4, 64
"""Samples that every scheme is tried on; fewer are not worth drawing from."""
MIN_TIMES_THE_TRIAL = 4
"""Data of at least so many times the samples of the trial are worth drawing statistics from."""
TOKENS_PER_COORDINATE = 4
"""Tokens that statistics are drawn from at least, per coordinate of the widest layer."""
EXACT_POSITIONS = 4
"""Output positions of a sample from which the time of exact edges at all positions is estimated."""
QUERIES = (64, 16)
"""Query positions of a sample that are tried beside all of them."""
POSITIONS = (64, 16)
"""Output positions of a sample that are tried beside all of them."""
FEW_SIGNS, MANY_SIGNS = 1, 4
"""Sets of random signs that are tried. Costs of others are on the line through theirs, and variances, which
are those of means over sets, on the line by 1 over their number."""
SIGNS = (1, 2, 4, 8, 16, 32)
"""Sets of random signs to choose from."""


def run_pilot(network: Network, data: BuildData, config: BuildConfig, tokens: int = PILOT_TOKENS) -> Pilot:
    """Try every scheme on a few samples.

    Args:
        network: The network, in the dtype and on the device of the build.
        data: Data of the build.
        config: Settings of the build; those for sampling are left out of account.
        tokens: Tokens that every scheme is tried on, about; of long samples, those of `MIN_SAMPLES`.
    """
    start = _now()
    batches = data.edge_data
    positions = network.prefix(batches.first().to(network.device)).shape[1]
    count = min(len(batches), max(MIN_SAMPLES, min(MAX_SAMPLES, tokens // positions)) + 1)
    drawn = Batches(batches.drawn(count, config.seed).between(0, count))
    with timed() as surveying:
        counted = survey(drawn, config.skip_positions, config.norm_limit or 0.0, Executor(network)).counted
    activations, forward = _run(network, drawn)
    longest = max(f.shape[1] for f in activations)
    draws = data.jacobian_data is data.data and len(data.data) >= MIN_TIMES_THE_TRIAL * count
    kinds = [
        _SectionPilot(
            network,
            members,
            activations[members[len(members) // 2]],
            counted,
            config,
            longest=longest,
            draws_statistics=draws,
        )
        for members in _kinds(network.sections).values()
    ]
    surveyed = min(MAX_TOKENS, positions * len(data.data)) / positions  # samples
    jacobians = _all_sections([kind.jacobians for kind in kinds], forward * (1 / count))
    gram = sum((kind.gram for kind in kinds), Cost())
    jacobians[1:] = [scheme.model_copy(update={"fixed": gram * JACOBIAN_GROUPS}) for scheme in jacobians[1:]]
    edges = [] if config.edge_rule is None else _all_sections([k.edges for k in kinds], forward * (1 / count))
    return Pilot(
        samples=len(data.data),
        jacobian_samples=len(data.jacobian_data),
        edge_samples=len(batches),
        positions=positions,
        forward=forward * (1 / count),
        statistics=_all_sections([[kind.statistics] for kind in kinds], Cost())[0],
        least_statistics=-(
            -TOKENS_PER_COORDINATE * max(node.width for node in network.nodes[:-1]) // positions
        ),
        fixed=sum((kind.fixed for kind in kinds), surveying() + forward * max(0.0, surveyed / count - 1)),
        jacobians=tuple(jacobians),
        edges=tuple(edges),
        seconds=_since(start),
        clock="processor" if network.device.type == "cpu" else "wall",
    )


def _all_sections(kinds: Sequence[Sequence[Scheme]], forward: Cost) -> list[Scheme]:
    """Schemes over all sections: seconds add up, and the section that is off most decides."""
    result = []
    for schemes in zip(*kinds, strict=True):
        seconds = sum((scheme.seconds for scheme in schemes), Cost())
        if seconds.wall:
            seconds += forward
        worst = max(schemes, key=lambda scheme: scheme.variance)
        settings = max((scheme.settings for scheme in schemes), key=len)
        result.append(
            Scheme(settings=settings, seconds=seconds, variance=worst.variance, within=worst.within)
        )
    return result


@torch.no_grad()
def _run(network: Network, data: Batches) -> tuple[list[Tensor], Cost]:
    """Activations at every node layer but the last, and the time that they took."""
    with timed() as taken:
        f = network.prefix(data.between(0, len(data)).to(network.device))
        activations = []
        for section in network.sections:
            activations.append(f)
            f = section(f)
    return activations, taken()


def _kinds(sections: Sequence[Section]) -> dict[object, list[int]]:
    """Numbers of the sections that have the same core, shapes and positions."""
    kinds: dict[object, list[int]] = {}
    for k, section in enumerate(sections):
        shapes = tuple(map(tuple, section.shapes))
        key = type(section.core), type(section), shapes, section.last_only, section.source.grid
        kinds.setdefault(key, []).append(k)
    return kinds


class _SectionPilot:
    """Trials on one section, which stands for all of its kind; costs are those of all of them together."""

    def __init__(
        self,
        network: Network,
        members: list[int],
        f: Tensor,
        counted: CountedTokens,
        config: BuildConfig,
        *,
        longest: int,
        draws_statistics: bool,
    ):
        """Try all schemes.

        ``longest`` is the largest number of positions of all sections: all try the same schemes.
        ``draws_statistics`` tries statistics over drawn samples, too.
        """
        self._longest, self._draws_statistics = longest, draws_statistics
        index = members[len(members) // 2]
        section = network.sections[index]
        alone = replace(network, prefix=GivenActivations(), sections=(section,), tail=(), remake=None)
        limits = counted.limits[index : index + 2]
        self._executor = Executor(alone)
        self._data, self._count, self._times = Batches(f), len(f), len(members)
        self._counted, self._section, self._index = replace(counted, limits=limits), section, index
        self._config = config.model_copy(update=UNSAMPLED | {"isolate_largest": False})
        self._end = None
        if index + 1 < len(network.sections):  # the last layer is part of the section before it
            rows = near_sums(section(f)[..., section.target.first_coordinate :].flatten(0, 1))
            self._end = last_layer(section.target, Covariance.from_rows(rows, True), True)
        clock, layers = self._fit(self._config)
        self._layers = layers
        self.statistics = self._statistics(self._cost(clock, "statistics"))
        self.fixed = self._cost(clock, "bases") * self._count
        self.gram, exact = Cost(), self._cost(clock, "Jacobians")
        if not isinstance(section.core, PassCore):
            gram = exact * self._count
            sampled = max(
                (k for k, s in enumerate(network.sections) if isinstance(s.core, PassCore)), default=0
            )
            self.gram = gram * (sum(k < sampled for k in members) / len(members))
            self.fixed += gram
            exact = Cost()
        self.jacobians = list(self._jacobians(exact))
        self.edges = [] if config.edge_rule is None else list(self._edges())

    def _cost(self, clock: Clock, phase: str) -> Cost:
        """Cost of a phase per sample, of all sections of the kind."""
        seconds = Cost(wall=clock.seconds.get(phase, 0.0), processor=clock.processor_seconds.get(phase, 0.0))
        return seconds * (self._times / self._count)

    def _fit(self, config: BuildConfig) -> tuple[Clock, list[LayerBasis]]:
        executor = replace(self._executor, clock=Clock(), caches={})
        data = BuildData(self._data, self._data, self._data)
        window = Window(executor, data, self._counted, self._index, self._end)
        return executor.clock, fit_bases(window, config)[0]

    def _statistics(self, exact: Cost) -> Scheme:
        """Statistics over drawn samples."""
        if not BASES[self._config.basis].has_errors or not self._draws_statistics:
            return Scheme(seconds=exact)
        config = self._config.model_copy(update={"statistics_samples": self._count - 1})
        error = eigenvalue_error(self._fit(config)[1][0], config.eigenvalue_degrees) or 0.0
        return Scheme(seconds=exact, variance=error**2 * (self._count - 1) * self._count)

    def _jacobians(self, exact: Cost) -> Iterator[Scheme]:
        """Exact Jacobians, then averages over drawn samples with all queries and with some."""
        yield Scheme(seconds=exact)
        if not BASES[self._config.basis].has_errors:
            return
        for queries in (None, *(count for count in QUERIES if 2 * count <= self._longest)):
            settings = {} if queries is None else {"jacobian_queries": queries}
            if not isinstance(self._section.core, PassCore):
                yield Scheme(settings=settings)
                continue
            config = self._config.model_copy(update=settings | {"jacobian_samples": self._count - 1})
            clock, layers = self._fit(config)
            error = eigenvalue_error(layers[0], config.eigenvalue_degrees) or 0.0
            unseen = 1 / self._count if queries is None else 1.0
            variance = error**2 * (self._count - 1) / unseen
            seconds = self._cost(clock, "Jacobians") * (self._count / (self._count - 1))
            yield Scheme(
                settings=settings,
                seconds=seconds,
                variance=variance,
                within=0.0 if queries is None else variance,
            )

    def _edges(self) -> Iterator[Scheme]:
        """Exact edges, the same over drawn samples, then signed sums over all positions and over some."""
        positions = self._section.count_out(self._data.first().shape[1])
        counts = (None, *(count for count in POSITIONS if 2 * count <= self._longest))
        if positions == 1:
            exact = self._trial({})
            yield exact.model_copy(update={"variance": 0.0})
            yield from [exact] * (1 + len(counts) * len(SIGNS))
            return
        signed: list[Scheme] = []
        for count in counts:
            settings = {"edge_group": "positions", "edge_positions": count}
            few, many = (self._trial(settings | {"edge_sources": signs}) for signs in (FEW_SIGNS, MANY_SIGNS))
            signed += [_with_signs(few, many, signs) for signs in SIGNS]
        seconds = self._exact_seconds(positions)
        yield Scheme(seconds=seconds)
        between = signed[0].variance - signed[0].within
        yield Scheme(seconds=seconds, variance=max(between, 0.01 * signed[0].variance))
        yield from signed

    def _exact_seconds(self, positions: int) -> Cost:
        """Cost of a sample's exact edges: from a few of its positions where these can be had alone."""
        few = Sources(1, 1, positions=EXACT_POSITIONS)
        if samples_positions(self._section, few, positions) and self._section.squares(self._rule) is None:
            settings = {"edge_group": 1, "edge_sources": 1, "edge_positions": EXACT_POSITIONS}
            return self._trial(settings, 2).seconds * (positions / EXACT_POSITIONS)
        return self._trial({}, 2).seconds

    @property
    def _rule(self) -> Rule:
        assert self._config.edge_rule is not None
        return self._config.edge_rule

    def _trial(self, settings: Mapping[str, int | str | None], samples: int | None = None) -> Scheme:
        """Edges of the section with one scheme."""
        config, count = self._config.model_copy(update=settings), samples or self._count
        chosen = EdgeSettings(self._rule, config.edge_sampling, self._counted, self._index, drawn=True)
        data = self._data.head(count)
        edges = EdgesPass(self._executor.network, self._layers, data, chosen)
        _ = edges.sections  # in their bases, before the clock starts
        with timed() as taken:
            sums = self._executor.run(edges, data)
        errors = []
        for share in (0.0, 1.0):
            ((found, error),) = [(total.edges.rms, total.edges.error) for total in edges.totals(sums, share)]
            assert error is not None
            errors.append(edge_error(found, error, *self._layers))
        variance, within = (error**2 * count for error in errors)
        seconds = taken() * (self._times / count)
        return Scheme(settings=dict(settings), seconds=seconds, variance=variance, within=within)


def _with_signs(few: Scheme, many: Scheme, signs: int) -> Scheme:
    """A scheme with another number of sets of signs than two that were tried."""
    share = (signs - FEW_SIGNS) / (MANY_SIGNS - FEW_SIGNS)
    inverse = (1 / FEW_SIGNS - 1 / signs) / (1 / FEW_SIGNS - 1 / MANY_SIGNS)

    def line(a: float, b: float) -> float:
        return a + share * max(b - a, 0.0)

    def between(name: str) -> float:
        a, b = getattr(few, name), getattr(many, name)
        return max(a + inverse * min(b - a, 0.0), a * FEW_SIGNS / signs)

    return Scheme(
        settings=few.settings | {"edge_sources": signs},
        seconds=Cost(
            wall=line(few.seconds.wall, many.seconds.wall),
            processor=line(few.seconds.processor, many.seconds.processor),
        ),
        variance=between("variance"),
        within=between("within"),
    )


UNSAMPLED: dict[str, object] = {
    "statistics_samples": None, "jacobian_queries": None, "jacobian_samples": None, "edge_group": None,
    "edge_positions": None, "edge_samples": None,
}  # fmt: skip
"""Settings of a build that samples nothing."""


@contextmanager
def timed() -> Iterator[Callable[[], Cost]]:
    """Measure the time inside; the function gives it afterwards."""
    start = _now()
    taken: list[Cost] = []
    yield lambda: taken[0]
    taken.append(_since(start))


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float]) -> Cost:
    now = _now()
    return Cost(wall=now[0] - start[0], processor=now[1] - start[1])
