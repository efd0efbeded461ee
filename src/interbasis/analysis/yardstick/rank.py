"""The rank row: loss against the number of directions kept.

At a place with w directions, the r leading ones of a method are kept and the others put at their mean. With
L(r) the cross-entropy, L that of the original network and k = r/w,

    area = ∫₀¹ (L(0) − L(k)) / (L(0) − L) dk,

by the trapezoid rule over the ranks tried, which are the same for all methods. L(0) is the first method's for
all of them: it is the same wherever dropped directions are put at their mean, and a method that puts them
elsewhere (slicing, at 0) gains nothing by starting worse. Areas, ranks and rises have bootstrap intervals
over the test samples; all methods are resampled with the same draws, so that their differences are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.yardstick.codes import CodedPlace, LayerCode
from interbasis.analysis.yardstick.measure import Measurement, Point, estimate
from interbasis.analysis.yardstick.records import (
    TOLERANCES,
    IntervalEstimate,
    NetworkKind,
    RankCurve,
    YardstickRequest,
)

FIRST_RANKS = (0, 1, 2, 4)
PARTS = 8
"""The default ranks are the first few, and multiples of the width over this."""


@dataclass(frozen=True)
class RankPlan:
    """Numbers of directions that are kept, or removed from the top, at places that are replaced together."""

    places: tuple[CodedPlace, ...]
    kept: tuple[int, ...]
    removed: tuple[int, ...]

    @classmethod
    def from_request(cls, places: Sequence[CodedPlace], request: YardstickRequest) -> "RankPlan":
        """Plan for one place, or for several together, of which the first counts."""
        width = places[0].width
        asked = sorted({int(text) for text in request.ranks})
        multiples = [round(width * part / PARTS) for part in range(1, PARTS + 1)]
        kept = asked or sorted({rank for rank in (*FIRST_RANKS, *multiples) if rank <= width})
        kept = sorted({0, *(rank for rank in kept if rank <= width), width})
        removed = sorted({int(text) for text in request.removed if 0 < int(text) < width})
        return cls(tuple(places), tuple(kept), tuple(removed))

    @property
    def width(self) -> int:
        return self.places[0].width

    @property
    def name(self) -> str:
        """Name of the place; empty for several."""
        return self.places[0].name if len(self.places) == 1 else ""

    def points(self, codes: Mapping[str, LayerCode]) -> list[Point]:
        """Directions kept at every point: the leading ones, then all but the leading ones."""
        ranks = [(0, kept) for kept in self.kept] + [(removed, self.width) for removed in self.removed]
        return [
            {
                place.layer: leading(codes[place.name].directions, *(self._at(place, n) for n in ends))
                for place in self.places
            }
            for ends in ranks
        ]

    def _at(self, place: CodedPlace, count: int) -> int:
        """The number of directions of a place that is the same share as ``count`` of the first place."""
        return round(count * place.width / self.width)


def leading(directions: int, first: int, end: int) -> Tensor:  # [directions]
    """Mask of the directions first … end − 1."""
    numbers = torch.arange(directions)
    return (first <= numbers) & (numbers < end)


def rank_curve(
    plan: RankPlan,
    method: str,
    directions: int,
    measured: Measurement,
    *,
    network: NetworkKind,
    seed: int,
    reference: Measurement | None = None,
) -> RankCurve:
    """Curve of a method from its measurement, compared with the first method's (``reference``)."""
    points = len(plan.kept)
    rises, divergences = measured.rises(seed), measured.mean_divergences(seed)
    scale = measured if reference is None else reference
    first, first_divergences = scale.rises(seed), scale.mean_divergences(seed)
    excesses: tuple[IntervalEstimate, ...] = ()
    advantage = None
    if reference is not None:
        excesses = tuple(estimate(column) for column in (rises - first)[:, :points].T)
        advantage = estimate(area(plan, first) - area(plan, rises, first))
    return RankCurve(
        network=network,
        method=method,
        place=plan.name,
        width=sum(place.width for place in plan.places),
        directions=directions,
        kept=plan.kept,
        rises=tuple(map(estimate, rises[:, :points].T)),
        divergences=tuple(map(estimate, divergences[:, :points].T)),
        variance_kept=tuple((1 - measured.errors[:points] / scale.errors[0]).tolist()),
        area=estimate(area(plan, rises, first)),
        divergence_area=estimate(area(plan, divergences, first_divergences)),
        within={str(t): estimate(rank_within(plan, rises[:, :points], t)) for t in TOLERANCES},
        removed=plan.removed,
        removed_rises=tuple(map(estimate, rises[:, points:].T)),
        removed_divergences=tuple(map(estimate, divergences[:, points:].T)),
        area_advantage=advantage,
        rise_excesses=excesses,
    )


def area(plan: RankPlan, rises: Tensor, first: Tensor | None = None) -> Tensor:  # [draws, points] -> [draws]
    """∫ 1 − rise(k) / rise(0) dk over shares k of the directions kept; rise(0) is that of ``first``, if
    given.

    The points are those of the plan: all numbers kept, of which the first is 0, and perhaps others after
    them.
    """
    shares = torch.tensor(plan.kept, dtype=torch.float64) / plan.width
    nothing = (rises if first is None else first)[:, :1]
    return torch.trapezoid(1 - rises[:, : len(plan.kept)] / nothing, shares)


def rank_within(plan: RankPlan, rises: Tensor, tolerance: float) -> Tensor:  # [draws, points] -> [draws]
    """Directions from which on the rise stays within a tolerance; NaN where it does not with all of them."""
    ranks = torch.tensor(plan.kept, dtype=torch.float64).expand_as(rises)
    beyond = rises - tolerance
    numbers = torch.arange(1, rises.shape[1] + 1)
    last = ((beyond > 0) * numbers).amax(1, keepdim=True) - 1  # the largest that fails, −1 for none
    left, right = last.clamp_min(0), (last + 1).clamp_max(rises.shape[1] - 1)
    fails, holds = beyond.gather(1, left), beyond.gather(1, right)
    below, above = ranks.gather(1, left), ranks.gather(1, right)
    rank = below + (above - below) * fails / (fails - holds)
    rank = torch.where(last < 0, ranks[:, :1], rank)
    return torch.where(last == rises.shape[1] - 1, torch.nan, rank)[:, 0]
