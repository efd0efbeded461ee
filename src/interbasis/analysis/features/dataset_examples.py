"""Dataset examples of all features of a layer: one pass, in memory that does not grow with the data.

For every feature (features have signs): the most positive values, the most negative ones, and some from
quantile bands in between. The extremes are exact. The bands come from a uniform sample of places, the same
for all features: exact while the data have no more places than the sample holds.

One context is not shown twice: of values whose surroundings overlap in one sample, the most extreme
counts, and so it does of surroundings that are the same token for token (of images and rows: number for
number).

Memory held between chunks is at most `memory_bound` bytes; a chunk's own values weigh
`activations.CHUNK_BYTES` and what is computed from them a small multiple of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.features.activations import Chunk, Source, chunks
from interbasis.analysis.features.contexts import Images, Place, Rendering, Rows, Tokens, fingerprints
from interbasis.analysis.features.extremes import Candidates, Window, candidates, negated
from interbasis.analysis.features.records import Band, Example, Examples, FeatureExamples
from interbasis.analysis.features.reservoir import Reservoir, keys
from interbasis.base.errors import InterbasisError
from interbasis.data.batches import Data

SHIFT = 31
"""A place is sample · 2³¹ + position."""


@dataclass(frozen=True)
class Plan:
    """How many examples are wanted."""

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


class ExampleSums:
    """Collects the examples of all features of one layer, chunk by chunk."""

    def __init__(self, plan: Plan | None = None, rendering: Rendering | None = None):
        self.plan = plan or Plan()
        self.rendering = rendering
        self.highest: Candidates | None = None
        self.lowest: Candidates | None = None
        self.reservoir: Reservoir | None = None
        self.samples: dict[int, tuple[Tensor, int | None]] = {}

    def add(self, chunk: Chunk) -> None:
        if self.rendering is None:
            self.rendering = default_rendering(chunk.inputs)
        n, S, _ = chunk.values.shape
        window, kind = self._window(), self.rendering.kind
        positions = (chunk.inputs.shape[1] if kind == "tokens" else S) - S + torch.arange(S)
        places = ((chunk.first + torch.arange(n)) << SHIFT)[:, None] + positions  # [n, S]
        contexts = fingerprints(chunk.inputs, S, kind, window.before)
        k, radius = self.plan.ends, max(window.before, window.after)
        high = candidates(chunk.values, places, contexts, k, radius, window)
        low = candidates(-chunk.values, places, contexts, k, radius, window)
        self.highest = high if self.highest is None else self.highest.merge(high, k)
        self.lowest = low if self.lowest is None else self.lowest.merge(low, k)
        some = self._sample(chunk, places, contexts, window)
        self.reservoir = some if self.reservoir is None else self.reservoir.merge(some, self.plan.reservoir)
        self._keep_samples(chunk)

    def _window(self) -> Window:
        """The same for all chunks, whose samples may be of different lengths."""
        if isinstance(self.rendering, Tokens):
            return Window(self.rendering.before, self.rendering.after)
        return Window(0, 0)

    def _sample(self, chunk: Chunk, places: Tensor, contexts: Tensor, window: Window) -> Reservoir:
        """The places of this chunk that have the smallest random numbers."""
        flat = places.flatten()
        drawn = keys(flat, self.plan.seed)
        rows = drawn.sort(stable=True).indices[: self.plan.reservoir]  # [R]
        values = chunk.values.flatten(0, 1)[rows]
        around = window.around(chunk.values, rows[:, None].expand(len(rows), values.shape[1]))
        return Reservoir(drawn[rows], flat[rows], contexts.flatten()[rows], values, around)

    def _keep_samples(self, chunk: Chunk) -> None:
        """Keep the inputs of samples that are examples now, and drop the others."""
        assert self.highest is not None
        assert self.lowest is not None
        assert self.reservoir is not None
        parts = (self.highest.places, self.lowest.places, self.reservoir.places)
        wanted = torch.cat([(places >> SHIFT).flatten() for places in parts]).unique().tolist()
        labels = chunk.labels if chunk.labels is not None and chunk.labels.ndim == 1 else None
        kept = {}
        for sample in wanted:
            if sample < chunk.first:
                kept[sample] = self.samples[sample]
            else:
                row = sample - chunk.first
                label = None if labels is None else int(labels[row])
                kept[sample] = (chunk.inputs[row].detach().cpu().clone(), label)
        self.samples = kept

    def state(self) -> dict[str, Tensor]:
        """What is held between chunks, to go on from."""
        if self.highest is None or self.lowest is None or self.reservoir is None:
            return {}
        parts = {"highest": self.highest, "lowest": self.lowest, "reservoir": self.reservoir}
        tensors = {f"{name}.{key}": t for name, part in parts.items() for key, t in vars(part).items()}
        inputs = [torch.atleast_1d(inputs) for inputs, _ in self.samples.values()]
        tensors["samples"] = torch.tensor(list(self.samples))
        tensors["lengths"] = torch.tensor([len(sample) for sample in inputs])  # documents differ in length
        tensors["inputs"] = torch.cat(inputs)
        labels = [label for _, label in self.samples.values() if label is not None]
        return tensors | ({"labels": torch.tensor(labels)} if labels else {})

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up a state."""
        if not tensors:
            return

        def part(name: str) -> dict[str, Tensor]:
            start = f"{name}."
            return {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}

        self.highest, self.lowest = Candidates(**part("highest")), Candidates(**part("lowest"))
        self.reservoir = Reservoir(**part("reservoir"))
        samples, inputs = tensors["samples"].tolist(), tensors["inputs"].split(tensors["lengths"].tolist())
        labels = tensors["labels"].tolist() if "labels" in tensors else [None] * len(samples)
        self.samples = dict(zip(samples, zip(inputs, labels, strict=True), strict=True))

    @property
    def bytes(self) -> int:
        """What is held between chunks."""
        if self.highest is None or self.lowest is None or self.reservoir is None:
            return 0
        inputs = sum(x.numel() * x.element_size() for x, _ in self.samples.values())
        return self.highest.bytes + self.lowest.bytes + self.reservoir.bytes + inputs

    def result(self, features: Sequence[int] | None = None) -> tuple[FeatureExamples, ...]:
        """The examples of each feature, or of those named."""
        if self.highest is None or self.lowest is None or self.reservoir is None:
            raise InterbasisError("there are no samples to take examples from")
        lowest = negated(self.lowest)
        chosen = range(self.highest.values.shape[1]) if features is None else features
        return tuple(
            FeatureExamples(
                index=j,
                bands=(
                    Band(name="most positive", examples=self._end(self.highest, j)),
                    *self._bands(self.reservoir, j),
                    Band(name="most negative", examples=self._end(lowest, j)),
                ),
            )
            for j in chosen
        )

    def _end(self, ends: Candidates, j: int) -> tuple[Example, ...]:
        rows = ends.values[:, j].isfinite().nonzero().flatten().tolist()
        return tuple(self._show(ends.values[r, j], int(ends.places[r, j]), ends.around[r, j]) for r in rows)

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
        inputs, label = self.samples[sample]
        before = self.rendering.before if isinstance(self.rendering, Tokens) else 0
        return self.rendering.show(
            Place(value.item(), sample, position, inputs, label, (position - before, around))
        )


def memory_bound(plan: Plan, features: int, window: int, sample_bytes: int) -> int:
    """Bytes that are held between chunks, at most, however long the data are."""
    entry = 3 * 8 + 4 * window
    ends = 2 * plan.ends * features
    return (
        ends * entry
        + plan.reservoir * (3 * 8 + features * (8 + 4 * window))
        + (ends + plan.reservoir) * sample_bytes
    )


def default_rendering(inputs: Tensor) -> Rendering:
    """Integer sequences are tokens, arrays [n, 1 or 3 channels, height, width] images, anything else rows.

    The pixels of images range from the smallest to the largest of these inputs.
    """
    whole = not inputs.is_floating_point() and inputs.dtype != torch.bool
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3) and inputs.numel():
        low, high = inputs.min().item(), inputs.max().item()
        channels, height, width = inputs.shape[1:]
        return Images((channels, height, width), low=low, high=high if high > low else low + 1)
    return Tokens() if whole and inputs.ndim == 2 else Rows()


def examples(
    source: Source,
    data: Data,
    plan: Plan | None = None,
    rendering: Rendering | None = None,
    *,
    features: Sequence[int] | None = None,
    labelled: bool = False,
) -> Examples:
    """Examples of the features of a source.

    Args:
        source: `of(network, layer)`, or a function from inputs to values [samples, positions, features].
        data: Inputs, or (inputs, labels) where ``labelled``.
        plan: How many examples; default: 8 at each end and 4 in each of 4 bands.
        rendering: How a context is shown, `Tokens`, `Images` or `Rows`; default: by the type of the inputs.
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
