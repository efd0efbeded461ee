"""Labelled samples that are read when they are wanted, so that data may be larger than memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError

Split = Literal["train", "test"]
Pair = tuple[Tensor, Tensor]
IGNORED_LABEL = -100
"""The label of a position that no metric counts."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Pairs (inputs, labels) by index, as data for `Batches`. A pass over them holds one batch at a time.

    ``read(first, last)`` gives the inputs [n, …] and labels [n] or [n, T] of samples first … last − 1.
    """

    length: int
    read: Callable[[int, int], Pair]
    kind: Literal["tokens", "images", "rows"] = "rows"
    spec: str = ""
    """Name of these data on the command line."""
    classes: tuple[str, ...] = ()
    """Names of the labels 0, 1, …, where they are known."""
    image: tuple[int, int, int] | None = None
    """Channels, height and width, where a sample is a picture."""
    tokenizer: Path | None = None
    """Folder of the tokenizer that made the tokens, where it is known."""
    batch: int = 1024
    """Samples that are read at a time."""
    lengths: Tensor | None = None  # [samples]
    """Number of real positions of each sample, which padding follows; None is all of them."""
    pixel_range: tuple[float, float] = (-1.0, 1.0)
    """The numbers for black and white in a picture."""
    channels_last: bool = False
    """Whether a picture's numbers are [height, width, channels]."""

    identity: str = ""
    """Identity of data in many files, so that a fingerprint does not read all of them."""
    revision: str = ""
    """The commit of a data set of the Hub that is streamed."""

    @classmethod
    def from_tensors(cls, inputs: Tensor, labels: Tensor, **about: Any) -> "Samples":
        """Samples of tensors in memory; ``about`` are further fields."""
        return cls(len(inputs), lambda first, last: (inputs[first:last], labels[first:last]), **about)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Pair]:
        return self.behind(0)

    def behind(self, start: int) -> Iterator[Pair]:
        """The batches of a pass without the first ``start`` samples, which are not read."""
        for first in range(start, self.length, self.batch):
            yield self.read(first, min(first + self.batch, self.length))

    def __getitem__(self, index: int) -> Pair:
        """A sample: inputs […] and its label."""
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
        return self.between(0, count)

    def between(self, first: int, last: int) -> "Samples":
        """Samples first … last − 1, which may be none."""
        lengths = None if self.lengths is None else self.lengths[first:last]
        read = (lambda a, b: self.read(first + a, first + b)) if first else self.read
        return replace(self, length=last - first, lengths=lengths, read=read)

    def all(self) -> Pair:
        """All inputs and labels, in memory."""
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


def pixel_rows(
    pixels: np.ndarray, labels: np.ndarray, spec: str, classes: tuple[str, ...], image: tuple[int, int, int]
) -> Samples:
    """Samples of images as rows, uint8 [n, numbers], scaled to [−1, 1] when they are read."""

    def read(first: int, last: int) -> Pair:
        return scale_pixels(torch.from_numpy(pixels[first:last])), torch.from_numpy(labels[first:last])

    return Samples(len(labels), read, "images", spec, classes, image)


def class_labels(source: object, labels: np.ndarray) -> np.ndarray:  # int64 [n]
    """Labels of ten classes, which must be 0 to 9."""
    if labels.dtype.kind not in "iu" or (labels.size and not 0 <= labels.min() <= labels.max() < 10):
        raise InterbasisError(f"{source}: expected integer labels from 0 to 9, received {labels.dtype}")
    return labels.astype(np.int64)


def next_tokens(tokens: Tensor) -> Tensor:  # [n, T] -> [n, T]
    """Labels of a language model: the token that follows each of a sample, −100 (ignored) for the last."""
    labels = torch.full_like(tokens, IGNORED_LABEL, dtype=torch.long)
    labels[:, :-1] = tokens[:, 1:]
    return labels


def require_next_token_labels(name: str, tokens: Tensor, labels: Tensor) -> None:  # [n, T] each
    """Refuse labels that are the tokens themselves, as transformers expects them."""
    if labels.shape != tokens.shape or tokens.ndim != 2 or tokens.is_floating_point():
        return
    labels = labels.to(tokens.device)
    counted, expected = labels != IGNORED_LABEL, next_tokens(tokens)
    copied = (labels == tokens)[counted].all()
    followed = (labels == expected)[counted & (expected != IGNORED_LABEL)].all()
    if copied and not followed:
        raise InterbasisError(
            f"{name}: the labels are the tokens themselves, but a language model's are those that follow; "
            "pass the tokens alone, and labels are derived, or pass (tokens[:, :-1], tokens[:, 1:])"
        )
