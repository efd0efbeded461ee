"""What an example looks like: tokens and their surroundings, an image, a row; which contexts are the same."""

import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from interbasis.analysis.features.records import Example, ExampleKind, ImageExample, RowExample, TokenExample
from interbasis.base.errors import InterbasisError

MAX_THUMBNAIL = 96
"""Pixels of the longer side of a thumbnail."""
DIMMED = 0.3
"""How much of a pixel is left outside a receptive field, the rest being white."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where an example lies: the feature's value there, the sample, and the feature's values around it."""

    value: float
    sample: int
    position: int
    """In the sample's inputs; of images, in the layer's grid."""
    inputs: Tensor
    label: int | None
    around: tuple[int, Tensor]
    """(first position, values) of the feature near by, where the layer has positions."""


class Rendering(Protocol):
    """A kind of context."""

    @property
    def kind(self) -> ExampleKind: ...

    def show(self, place: Place) -> Example:
        """What is shown of an example."""
        ...


@dataclass(frozen=True)
class Tokens:
    """Tokens around the active one; ``decode`` gives the text of one."""

    decode: Callable[[int], str] = str
    before: int = 12
    after: int = 6
    kind: ExampleKind = field(default="tokens", init=False)

    def show(self, place: Place) -> Example:
        first = max(0, place.position - self.before)
        shown = place.inputs[first : place.position + self.after + 1]
        start, values = place.around
        activations = [0.0] * len(shown)  # a position that the layer does not have counts for nothing
        for offset, value in enumerate(values.tolist()):
            if 0 <= start + offset - first < len(shown):
                activations[start + offset - first] = short(value)
        return TokenExample(
            value=short(place.value),
            sample=place.sample,
            position=place.position,
            tokens=tuple(self.decode(token) for token in shown.tolist()),
            activations=tuple(activations),
            active=place.position - first,
        )


@dataclass(frozen=True)
class Images:
    """Rows of pixels as PNG thumbnails; ``shape`` is (channels, height, width), pixels lie in [low, high]."""

    shape: tuple[int, int, int]
    classes: Sequence[str] = ()
    low: float = -1.0
    high: float = 1.0
    channels_last: bool = False
    fields: Tensor | None = None  # [positions, 2, 2]
    """By position of the layer, its receptive field (top, bottom), (left, right) as shares of the picture."""
    kind: ExampleKind = field(default="images", init=False)

    def show(self, place: Place) -> Example:
        if place.inputs.numel() != int(np.prod(self.shape)):
            raise InterbasisError(
                f"expected images of {self.shape} = {int(np.prod(self.shape))} numbers, received "
                f"{place.inputs.numel()}"
            )
        pixels = (place.inputs.float() - self.low) * (255 / (self.high - self.low))
        seen = None if self.fields is None else self.fields[place.position]
        if self.channels_last:
            pixels = pixels.view(*self.shape[1:], self.shape[0]).permute(2, 0, 1)
        image = thumbnail(pixels.reshape(self.shape).clamp(0, 255), seen)
        box = None
        if seen is not None:
            (top, bottom), (left, right) = seen.tolist()
            box = short(left), short(top), short(right), short(bottom)
        return ImageExample(
            value=short(place.value),
            sample=place.sample,
            image=png(image.numpy()),
            label=_name(place.label, self.classes),
            field=box,
        )


@dataclass(frozen=True)
class Rows:
    """The inputs themselves, the first ``limit`` of them."""

    classes: Sequence[str] = ()
    limit: int = 32
    kind: ExampleKind = field(default="rows", init=False)

    def show(self, place: Place) -> Example:
        return RowExample(
            value=short(place.value),
            sample=place.sample,
            inputs=tuple(short(v) for v in place.inputs.flatten()[: self.limit].tolist()),
            label=_name(place.label, self.classes),
        )


def thumbnail(pixels: Tensor, seen: Tensor | None) -> Tensor:  # [c, h, w] -> uint8 [height, width, c]
    """At most `MAX_THUMBNAIL` pixels a side; what lies outside the field ``seen`` [2, 2] is dimmed."""
    factor = -(-max(pixels.shape[1:]) // MAX_THUMBNAIL)
    if factor > 1:
        pixels = torch.nn.functional.avg_pool2d(
            pixels[None], factor, ceil_mode=True, count_include_pad=False
        )[0]
    if seen is not None:
        height, width = pixels.shape[1:]
        scale = torch.tensor([[height], [width]])
        (top, bottom), (left, right) = (seen * scale).round().int().tolist()
        dimmed = DIMMED * pixels + (1 - DIMMED) * 255
        dimmed[:, top : max(bottom, top + 1), left : max(right, left + 1)] = pixels[
            :, top : max(bottom, top + 1), left : max(right, left + 1)
        ]
        pixels = dimmed
    return pixels.round().to(torch.uint8).permute(1, 2, 0)


def _name(label: int | None, classes: Sequence[str]) -> str:
    if label is None:
        return ""
    return classes[label] if 0 <= label < len(classes) else str(label)


def short(value: float) -> float:
    """Six digits are enough to look at."""
    return float(f"{value:.6g}")


def png(image: np.ndarray) -> str:
    """A uint8 image [height, width, 1 or 3] as a PNG data URI."""
    height, width, channels = image.shape
    lines = np.pad(image.reshape(height, -1), ((0, 0), (1, 0)))  # each line says "unfiltered" first
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def fingerprints(inputs: Tensor, positions: int, kind: ExampleKind, before: int) -> Tensor:  # [n, positions]
    """A 64-bit number for each context: equal contexts have equal numbers, others practically never.

    The context of a token is itself and the ``before`` tokens in front of it; of an image or row, all of it.
    Each is Σ_i a_i · part_i modulo 2⁶⁴ with fixed random odd a_i.
    """
    n = len(inputs)
    if kind != "tokens":
        parts = inputs.detach().cpu().contiguous().flatten(1).numpy()
        parts = np.ascontiguousarray(parts).view(np.uint8).reshape(n, -1).astype(np.int64)
        return torch.from_numpy((parts * _factors(parts.shape[1])).sum(1))[:, None].expand(n, positions)
    padded = torch.nn.functional.pad(inputs.detach().cpu().long() + 1, (before, 0))
    windows = padded.unfold(1, before + 1, 1)  # [n, T, before + 1]
    return (windows * torch.from_numpy(_factors(before + 1))).sum(2)[:, -positions:]


def _factors(count: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(key=np.array([20, 24], dtype=np.uint64)))
    return generator.integers(-(2**63), 2**63 - 1, count, dtype=np.int64) | 1
