"""Costs and errors of a build: what a trial found, what follows for a target, and the plan of a build."""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from interbasis.base.records import Record

LEAST_DRAWN = 16
"""Samples that are drawn at least, so that their spread says something."""
ROOM_TO_GROW = 0.8
"""Share of the error asked for that a scheme must reach with all samples: a trial sees one section of a kind,
others are off by more and need more samples."""
STATISTICS_SHARE = 0.5
"""Share of the error asked for that is left to statistics over drawn samples."""
MAX_DRAWN_SHARE = 0.75
"""Statistics that need more of the samples are exact."""


class Cost(Record):
    """Seconds on this machine."""

    wall: float = 0.0
    processor: float = 0.0
    """Without the time in which other work had the processor; all threads together."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(wall=self.wall + other.wall, processor=self.processor + other.processor)

    def __mul__(self, factor: float) -> "Cost":
        return Cost(wall=factor * self.wall, processor=factor * self.processor)


class Scheme(Record):
    """A way to sample, its cost and its error."""

    settings: dict[str, int | str | None] = Field(default_factory=dict)
    """Settings of the build that it consists of, without the number of samples."""
    seconds: Cost = Cost()
    """Of one sample."""
    fixed: Cost = Cost()
    """Of any number of samples."""
    variance: float = 0.0
    """Relative variance of one sample's estimate; 0 where it is exact over all samples alone."""
    within: float = 0.0
    """Part of the variance that stays within samples."""

    def samples(self, error: float, total: int) -> int:
        """Number of samples out of ``total`` that give an error; more, where they are drawn again."""
        wanted = self.variance / (error**2 + (self.variance - self.within) / total)
        if wanted > total:
            wanted = self.within / error**2
        return max(min(LEAST_DRAWN, total), math.ceil(wanted))

    def error(self, samples: int, total: int) -> float:
        """Relative error with so many samples out of ``total``; drawn again, of signs and positions alone."""
        between = max(0.0, 1 / samples - 1 / total)
        return math.sqrt(self.within / samples + (self.variance - self.within) * between)

    def cost(self, samples: int) -> Cost:
        return self.seconds * samples + self.fixed


class Choice(Record):
    """A scheme for Jacobians and one for edges with numbers of samples, and what they are expected to do."""

    settings: dict[str, int | str | tuple[int, ...] | None]
    """Settings of the build."""
    seconds: Cost
    """Of the whole build."""
    jacobian_error: float
    edge_error: float

    @property
    def exact(self) -> bool:
        return not any(value is not None for value in self.settings.values())


class Pilot(Record):
    """Costs and errors of a build, as a short trial found them."""

    samples: int
    """Samples of the build's data; those of the trial are fewer."""
    jacobian_samples: int
    edge_samples: int
    positions: int
    """Positions of a sample."""
    forward: Cost
    """One sample through the network."""
    statistics: Scheme
    """Statistics over samples that are drawn; over all of them they are exact."""
    least_statistics: int = 0
    """Samples that are drawn for the statistics at least."""
    fixed: Cost
    """Survey and decompositions."""
    jacobians: tuple[Scheme, ...]
    """Schemes for attention's Jacobians; the first is exact."""
    edges: tuple[Scheme, ...]
    """Schemes for edges; the first is exact. Empty where no edges are built."""
    seconds: Cost
    """Of the trial itself."""
    clock: Literal["processor", "wall"]
    """Time by which schemes are compared: the processor's, which other work does not lengthen, unless another
    device computes."""

    def choice(self, error: float) -> Choice:
        """The cheapest schemes that reach an error; 0 is exact."""
        bases = [self._bases(error, self.samples, 0.0)]
        if error and self.statistics.variance:
            part = STATISTICS_SHARE * error
            count = max(self.least_statistics, self.statistics.samples(part, self.samples))
            if count <= MAX_DRAWN_SHARE * self.samples:
                bases.append(self._bases(error, count, self.statistics.error(count, self.samples)))
        settings, seconds, jacobian_error = min(bases, key=lambda basis: getattr(basis[1], self.clock))
        expected = 0.0
        if self.edges:
            edges, count = self._cheapest(self.edges, error, self.edge_samples, repeats=True)
            settings |= edges.settings | {"edge_samples": (count,) if edges.variance else None}
            seconds += edges.cost(count)
            expected = edges.error(count, self.edge_samples)
        return Choice(settings=settings, seconds=seconds, jacobian_error=jacobian_error, edge_error=expected)

    def _bases(
        self, error: float, samples: int, statistics_error: float
    ) -> tuple[dict[str, int | str | tuple[int, ...] | None], Cost, float]:
        """Settings, cost and error of bases from statistics over some samples, with an error of their own."""
        total = self.jacobian_samples if samples == self.samples else samples
        jacobian_error = math.sqrt(max(0.0, error**2 - statistics_error**2))
        scheme, count = self._cheapest(self.jacobians, jacobian_error, total)
        settings: dict[str, int | str | tuple[int, ...] | None] = dict(scheme.settings)
        settings["statistics_samples"] = None if samples == self.samples else samples
        settings["jacobian_samples"] = count if scheme.variance else None
        seconds = self.statistics.seconds * samples + self.fixed + scheme.cost(count)
        return settings, seconds, math.hypot(statistics_error, scheme.error(count, total))

    def choice_within(self, seconds: float) -> Choice:
        """The schemes with the smallest error that take so many seconds of wall time; else the cheapest."""
        exact = self.choice(0.0)
        if exact.seconds.wall <= seconds:
            return exact
        low, high = 1e-3, 1.0
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.choice(middle).seconds.wall <= seconds else (middle, high)
        return self.choice(high)

    def _cheapest(
        self, schemes: Sequence[Scheme], error: float, total: int, *, repeats: bool = False
    ) -> tuple[Scheme, int]:
        """The scheme that reaches an error soonest, and its number of samples; the first is exact.

        ``repeats`` says that samples can be drawn again, with other signs and positions.
        """
        candidates = [(schemes[0], total)]
        for scheme in schemes[1:] if error else ():
            if repeats or scheme.error(total, total) <= ROOM_TO_GROW * error:
                candidates.append((scheme, scheme.samples(error, total)))
        return min(candidates, key=lambda pair: getattr(pair[0].cost(pair[1]), self.clock))


class PlanRequest(Record):
    """Amount of data and machines that are planned for."""

    tokens: int | None = Field(None, ge=1)
    """Tokens of data to plan for, or samples of a network without positions; default: those of the data."""
    gpus: int = Field(1, ge=1)
    """Devices per machine, each like the one that the trial runs on."""
    nodes: int = Field(1, ge=1)
    """Machines."""


class BuildPlan(Record):
    """What a build takes, by target."""

    model: str
    samples: int
    positions: int
    """Positions of a sample."""
    processes: int
    """Devices that share the sums over the data."""
    exact: Choice
    targets: dict[float, Choice]
    """By the error asked for."""
    memory: int
    """Bytes that a process holds without a limit on memory."""
    disk: int
    """Bytes of the run, and of activations between passes."""
    pilot: Pilot

    def hours(self, choice: Choice) -> float:
        """Wall time; survey and decompositions are not shared."""
        shared = choice.seconds.wall - self.pilot.fixed.wall
        return (self.pilot.fixed.wall + shared / self.processes) / 3600
