"""Dataset examples of all features of a layer: one pass, in memory that does not grow with the data.

For every feature (features have signs): the most positive values, the most negative ones, and some from
quantile bands in between. The extremes are exact. The bands come from a uniform sample of places, the same
for all features: exact while the data have no more places than the sample holds.

One context is not shown twice: of values whose surroundings overlap in one sample, the most extreme
counts, and so it does of surroundings that are the same token for token (of images and rows: number for
number). The k largest of a union are among the k largest of its parts, so chunks are reduced and merged.
Equal values go by their order in the data.

Memory held between chunks is bounded by the plan and the number of features (tested); a chunk's own values
weigh `activations.CHUNK_BYTES` and everything computed from them a small multiple of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from interbasis.analysis.features.activations import FeatureChunk, Source, chunks
from interbasis.analysis.features.contexts import (
    Occurrence,
    Rendering,
    TokenRendering,
    default_rendering,
    fingerprints,
)
from interbasis.analysis.features.records import Band, Example, ExampleKind, Examples, FeatureExamples
from interbasis.analysis.nested_states import nested, within
from interbasis.base.errors import InterbasisError
from interbasis.data.batches import Data

SHIFT = 31
"""A place is sample · 2³¹ + position."""
POOL = 4
"""Candidates taken for each one that is wanted, since contexts may repeat."""


@dataclass(frozen=True)
class ExamplePlan:
    """Number of examples at the ends and in the bands."""

    ends: int = 8
    """Most positive ones, and as many most negative ones."""
    bands: int = 4
    """Quantile bands in between, equally wide in probability."""
    per_band: int = 4
    reservoir: int = 1024
    """Places in the uniform sample that the bands are drawn from."""
    seed: int = 0

    def __post_init__(self) -> None:
        small = min(self.ends, self.per_band, self.reservoir) < 1 or self.bands < 0
        if small or not 0 <= self.seed < 2**63:
            raise InterbasisError(
                f"expected at least one example at the ends and per band, and a reservoir to draw "
                f"from, received {self}"
            )


def around(values: Tensor, rows: Tensor, window: Sequence[int]) -> Tensor:
    """Values [n, S, features] near flat rows [k, features] (sample · S + position): [k, features, window].

    ``window`` are the distances of the positions near by; those outside the sample give 0.
    """
    _, S, F = values.shape
    near = (rows % S)[..., None] + torch.tensor(window)
    nearby = values[(rows // S)[..., None], near.clamp(0, S - 1), torch.arange(F)[:, None]]
    return nearby.where((near >= 0) & (near < S), 0.0).float()


@dataclass(frozen=True, eq=False)
class Candidates:
    """Largest values of every feature with their places, in descending order; −∞ stands for none."""

    values: Tensor  # [k, features]
    places: Tensor  # [k, features], sample · 2³¹ + position
    contexts: Tensor  # [k, features]
    around: Tensor  # [k, features, window]

    @classmethod
    def from_values(
        cls, values: Tensor, places: Tensor, contexts: Tensor, k: int, window: Sequence[int]
    ) -> "Candidates":
        """The k largest of values [n, S, features] at places and in contexts [n, S].

        Of values in one sample whose surroundings overlap, the largest counts.
        """
        peaks = _peaks(values, max(map(abs, window))).flatten(0, 1)  # [N, features]
        flat, size, enough = contexts.flatten(), k, False
        while not enough:  # more candidates where contexts repeat
            size *= POOL
            rows = largest(peaks, size)
            pool = _first_of_each_context(peaks.gather(0, rows), flat[rows])
            exhausted = ~peaks.gather(0, rows[-1:]).isfinite() | (len(rows) == len(peaks))
            enough = bool((exhausted | (pool.isfinite().sum(0) >= k)).all())
        best = largest(pool, k)
        rows = rows.gather(0, best)
        return cls(pool.gather(0, best), places.flatten()[rows], flat[rows], around(values, rows, window))

    def merge(self, later: "Candidates", k: int) -> "Candidates":
        """The k largest of both; ``later`` comes after this in the data."""
        same = self.contexts[:, None] == later.contexts[None]  # [k, k', features]
        better = later.values[None] > self.values[:, None]
        first = replace(self, values=self.values.masked_fill((same & better).any(1), -torch.inf))
        second = replace(later, values=later.values.masked_fill((same & ~better).any(0), -torch.inf))
        parts = [torch.cat(pair) for pair in zip(vars(first).values(), vars(second).values(), strict=True)]
        rows = largest(parts[0], k)  # [k, features]
        wide = rows[..., None].expand(*rows.shape, self.around.shape[2])
        return Candidates(*(part.gather(0, rows if part.ndim == 2 else wide) for part in parts))


def largest(values: Tensor, k: int) -> Tensor:  # [N, features] -> [min(k, N), features]
    """Rows of the k largest values of each column, largest first; equal ones in their order."""
    k = min(k, len(values))
    last = values.topk(k, dim=0).values[-1]
    above, level = values > last, values == last
    chosen = above | (level & (level.cumsum(0, dtype=torch.int32) <= k - above.sum(0)))
    rows = chosen.T.nonzero()[:, 1].view(values.shape[1], k)
    order = values.T.gather(1, rows).sort(dim=1, descending=True, stable=True).indices
    return rows.gather(1, order).T


def _peaks(values: Tensor, radius: int) -> Tensor:  # [n, S, features]
    """Values that are the largest within the radius, the first of equal ones; −∞ elsewhere."""
    S = values.shape[1]
    radius = min(radius, S - 1)
    if radius <= 0:
        return values
    by_feature = values.mT  # [n, features, S]
    _, where = torch.nn.functional.max_pool1d(by_feature, 2 * radius + 1, 1, radius, return_indices=True)
    return by_feature.masked_fill(where != torch.arange(S), -torch.inf).mT


def _first_of_each_context(values: Tensor, contexts: Tensor) -> Tensor:  # [m, features], largest first
    """The first value of each context; −∞ for those that repeat it."""
    ordered, order = contexts.sort(dim=0, stable=True)
    repeated = torch.zeros_like(contexts, dtype=torch.bool)
    repeated.scatter_(0, order[1:], ordered[1:] == ordered[:-1])
    return values.masked_fill(repeated, -torch.inf)


@dataclass(frozen=True, eq=False)
class Reservoir:
    """Uniform sample of places with the values of all features, the same however the data are cut.

    Every place has a random number that belongs to it alone; the places with the smallest are held, in the
    order of these numbers.
    """

    keys: Tensor  # [R]
    places: Tensor  # [R], sample · 2³¹ + position
    contexts: Tensor  # [R]
    values: Tensor  # [R, features]
    around: Tensor  # [R, features, window]

    def merge(self, later: "Reservoir", size: int) -> "Reservoir":
        both = [torch.cat(pair) for pair in zip(vars(self).values(), vars(later).values(), strict=True)]
        order = both[0].sort(stable=True).indices[:size]
        return Reservoir(*(part[order] for part in both))


def random_keys(places: Tensor, seed: int) -> Tensor:  # int64 -> int64
    """A random number for each place: SplitMix64's finaliser over place and seed."""
    with np.errstate(over="ignore"):
        z = places.numpy().astype(np.uint64) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift)) ^ np.uint64(0x9E3779B97F4A7C15)) * np.uint64(factor)
        z ^= z >> np.uint64(31)
    return torch.from_numpy((z >> np.uint64(1)).astype(np.int64))


class ExampleSums:
    """Collects the examples of all features of one layer, chunk by chunk."""

    def __init__(self, plan: ExamplePlan | None = None, rendering: Rendering | None = None):
        self.plan = plan or ExamplePlan()
        self.rendering = rendering
        self.held: tuple[Candidates, Reservoir] | None = None
        """Places held between chunks; candidates are of the values of all features, then of the negated."""
        self.samples: dict[int, tuple[Tensor, int | None]] = {}
        """(inputs, label) of the samples that hold examples, by index."""

    def add(self, chunk: FeatureChunk) -> None:
        if self.rendering is None:
            self.rendering = default_rendering(chunk.inputs)
        ends, reservoir = self._places(chunk, self.rendering.kind)
        if self.held is not None:
            ends = self.held[0].merge(ends, self.plan.ends)
            reservoir = self.held[1].merge(reservoir, self.plan.reservoir)
        self.held = ends, reservoir
        held = torch.cat([ends.places.flatten(), reservoir.places]) >> SHIFT
        indices = held.unique().tolist()
        self.samples = {k: self.samples[k] for k in indices if k < chunk.first}
        for row in (k - chunk.first for k in indices if k >= chunk.first):
            inputs = chunk.inputs[row].detach().cpu().clone()
            label = int(chunk.labels[row]) if chunk.labels is not None and chunk.labels.ndim == 1 else None
            self.samples[chunk.first + row] = inputs, label

    @property
    def window(self) -> range:
        """Distances of the positions shown; the same for all chunks, whose samples may differ in length."""
        if isinstance(self.rendering, TokenRendering):
            return range(-self.rendering.before, self.rendering.after + 1)
        return range(1)

    def _places(self, chunk: FeatureChunk, kind: ExampleKind) -> tuple[Candidates, Reservoir]:
        values, window = chunk.values, self.window
        n, S, F = values.shape
        positions = (chunk.inputs.shape[1] if kind == "tokens" else S) - S + torch.arange(S)
        places = ((chunk.first + torch.arange(n)) << SHIFT)[:, None] + positions  # [n, S]
        contexts = fingerprints(chunk.inputs, S, kind, -window[0])
        keys = random_keys(places.flatten(), self.plan.seed)
        rows = keys.sort(stable=True).indices[: self.plan.reservoir]  # [R]
        drawn = places.flatten()[rows], contexts.flatten()[rows], values.flatten(0, 1)[rows]
        nearby = around(values, rows[:, None].expand(-1, F), window)
        both = torch.cat([values, -values], dim=2)
        ends = Candidates.from_values(both, places, contexts, self.plan.ends, window)
        return ends, Reservoir(keys[rows], *drawn, nearby)

    def state(self) -> dict[str, Tensor]:
        """Tensors to resume from."""
        if self.held is None:
            return {}
        inputs = [torch.atleast_1d(inputs) for inputs, _ in self.samples.values()]
        labels = [label for _, label in self.samples.values() if label is not None]
        return nested({"ends": vars(self.held[0]), "reservoir": vars(self.held[1])}) | {
            "samples": torch.tensor(list(self.samples)),
            "lengths": torch.tensor([len(sample) for sample in inputs]),  # documents differ in length
            "inputs": torch.cat(inputs),
            "labels": torch.tensor(labels, dtype=torch.int64),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        if not tensors:
            return
        self.held = Candidates(**within("ends", tensors)), Reservoir(**within("reservoir", tensors))
        samples, inputs = tensors["samples"].tolist(), tensors["inputs"].split(tensors["lengths"].tolist())
        labels = tensors["labels"].tolist() or [None] * len(samples)
        self.samples = dict(zip(samples, zip(inputs, labels, strict=True), strict=True))

    def result(self, features: Sequence[int] | None = None) -> tuple[FeatureExamples, ...]:
        """The examples of each feature, or of those named."""
        if self.held is None:
            raise InterbasisError("there are no samples to take examples from")
        ends, reservoir = self.held
        F = reservoir.values.shape[1]
        return tuple(
            FeatureExamples(
                index=j,
                bands=(
                    Band(name="most positive", examples=self._end(ends, j, 1)),
                    *self._bands(reservoir, j),
                    Band(name="most negative", examples=self._end(ends, F + j, -1)),
                ),
            )
            for j in (range(F) if features is None else features)
        )

    def _end(self, ends: Candidates, column: int, sign: int) -> tuple[Example, ...]:
        values, places, _, around = (part[:, column] for part in vars(ends).values())
        rows = values.isfinite().nonzero().flatten().tolist()
        return tuple(self._show(sign * values[r], int(places[r]), sign * around[r]) for r in rows)

    def _bands(self, sample: Reservoir, j: int) -> list[Band]:
        """From the highest band to the lowest; within a band, places in random order, contexts once."""
        values, count = sample.values[:, j].contiguous(), self.plan.bands
        if not count:
            return []
        cuts = torch.linspace(0, 1, count + 1, dtype=torch.float64)
        edges = torch.quantile(values, cuts)
        band = torch.bucketize(values, edges[1:-1].contiguous(), right=True).tolist()
        chosen: list[list[int]] = [[] for _ in range(count)]
        seen: set[int] = set()
        for row, context in enumerate(sample.contexts.tolist()):
            if len(chosen[band[row]]) < self.plan.per_band and context not in seen:
                chosen[band[row]].append(row)
                seen.add(context)
        result = []
        for b in reversed(range(count)):
            rows = sorted(chosen[b], key=lambda row: (-values[row].item(), int(sample.places[row])))
            name = f"{100 * cuts[b].item():.0f}–{100 * cuts[b + 1].item():.0f} %"
            shown = (self._show(values[r], int(sample.places[r]), sample.around[r, j]) for r in rows)
            result.append(Band(name=name, examples=tuple(shown)))
        return result

    def _show(self, value: Tensor, place: int, around: Tensor) -> Example:
        assert self.rendering is not None
        sample, position = place >> SHIFT, place & (2**SHIFT - 1)
        nearby = position + self.window[0], around
        return self.rendering.show(Occurrence(value.item(), sample, position, *self.samples[sample], nearby))


def examples(
    source: Source,
    data: Data,
    plan: ExamplePlan | None = None,
    rendering: Rendering | None = None,
    *,
    features: Sequence[int] | None = None,
    labelled: bool = False,
) -> Examples:
    """Collect examples of the features of a source.

    Args:
        source: A `FeatureReader`, or a function from inputs to values [samples, positions, features].
        data: Inputs, or (inputs, labels) where ``labelled``.
        plan: Number of examples; default: 8 at each end and 4 in each of 4 bands.
        rendering: `TokenRendering`, `ImageRendering` or `RowRendering`; default: by the type of the inputs.
        features: Some features by index; default: all.
        labelled: Whether examples carry their label.

    Returns:
        The kind of examples, and bands of them for each feature.

    Raises:
        InterbasisError: There are no data, or they are not of the kind that ``rendering`` shows.
    """
    sums = ExampleSums(plan, rendering)
    for chunk in chunks(source, data, labelled=labelled, phase="examples"):
        sums.add(chunk)
    if sums.rendering is None:
        raise InterbasisError("there are no samples to take examples from")
    return Examples(kind=sums.rendering.kind, features=sums.result(features))
