"""Labelled samples that are read when they are wanted, so that data may be larger than memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError

Split = Literal["train", "test"]
Pair = tuple[Tensor, Tensor]
IGNORED_LABEL = -100
"""The label of a position that no metric counts."""


@dataclass(frozen=True, eq=False)
class Samples:
    """(inputs, labels) by index. A pass over them holds one batch at a time; `Batches` takes them as data.

    ``read(first, last)`` gives the inputs [n, …] and labels [n] or [n, T] of samples first … last − 1.
    """

    length: int
    read: Callable[[int, int], Pair]
    kind: Literal["tokens", "images", "rows"] = "rows"
    spec: str = ""
    """How to name these data again on the command line."""
    classes: tuple[str, ...] = ()
    """What the labels 0, 1, … mean, where that is known."""
    image: tuple[int, int, int] | None = None
    """Channels, height and width, where a sample is a picture."""
    tokenizer: Path | None = None
    """Folder of the tokenizer that made the tokens, where it is known."""
    batch: int = 1024
    """Samples that are read at a time."""
    lengths: Tensor | None = None  # [samples]
    """How many positions of each sample are real, the rest being padding at its end; None is all of them."""
    pixel_range: tuple[float, float] = (-1.0, 1.0)
    """The numbers for black and white in a picture."""
    channels_last: bool = False
    """Whether a picture's numbers are [height, width, channels]."""

    identity: str = ""
    """What data in many files are known by, so that a fingerprint does not read all of them."""
    revision: str = ""
    """The commit of a data set of the Hub that is streamed."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Pair]:
        return self.behind(0)

    def behind(self, start: int) -> Iterator[Pair]:
        """The batches of a pass without the first ``start`` samples, which are not read."""
        for first in range(start, self.length, self.batch):
            yield self.read(first, min(first + self.batch, self.length))

    def __getitem__(self, index: int) -> Pair:
        """One sample: inputs […] and its label."""
        if not 0 <= index < self.length:
            raise IndexError(f"sample {index} of {self.length}")
        inputs, labels = self.read(index, index + 1)
        return inputs[0], labels[0]

    def head(self, count: int | None) -> "Samples":
        """The first ``count`` samples; all of them for None."""
        if count is None:
            return self
        if not 1 <= count <= self.length:
            raise InterbasisError(
                f"{self.spec or 'the data'} has {self.length} samples, so the first {count} cannot be taken"
            )
        lengths = None if self.lengths is None else self.lengths[:count]
        return replace(self, length=count, lengths=lengths)

    def between(self, first: int, last: int) -> "Samples":
        """Samples first … last − 1, which may be none."""
        lengths = None if self.lengths is None else self.lengths[first:last]
        read = self.read
        return replace(
            self, length=last - first, lengths=lengths, read=lambda a, b: read(first + a, first + b)
        )

    def all(self) -> Pair:
        """Everything in memory."""
        return self.read(0, self.length)

    def picture(self, index: int) -> Tensor:  # uint8 [height, width, channels]
        """A sample as an image."""
        if self.image is None:
            raise InterbasisError(f"{self.spec or 'the data'} holds {self.kind}, not images")
        low, high = self.pixel_range
        pixels = (self[index][0].float() - low) * (255 / (high - low))
        channels, height, width = self.image
        if self.channels_last:
            pixels = pixels.view(height, width, channels)
        else:
            pixels = pixels.view(self.image).permute(1, 2, 0)
        return pixels.round().clamp(0, 255).to(torch.uint8)


def scale_pixels(pixels: Tensor) -> Tensor:
    """uint8 0 … 255 to float32 −1 … 1."""
    return pixels.to(torch.float32) / 127.5 - 1
