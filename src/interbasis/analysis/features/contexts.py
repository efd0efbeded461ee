"""Rendering of dataset examples (tokens, images, rows), and fingerprints that tell equal contexts."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from interbasis.analysis.features import records
from interbasis.base.errors import InterbasisError
from interbasis.data.arrays import CHANNELS, MIN_SIDE
from interbasis.data.batches import Batches, Data
from interbasis.network.network import Network

MAX_THUMBNAIL = 96
"""Pixels of the longer side of a thumbnail."""
DIMMED = 0.3
"""Weight of a pixel outside a receptive field, against white."""
UNREADABLE = "\ufffd"
"""The character that stands for bytes that are no whole character."""


@dataclass(frozen=True, eq=False)
class Occurrence:
    """A value of a feature at one position of one sample, with the values around it."""

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
    def kind(self) -> records.ExampleKind: ...

    def show(self, occurrence: Occurrence) -> records.Example:
        """Return the record that is shown of an example."""
        ...


@dataclass(frozen=True)
class TokenRendering:
    """Tokens around the active one; ``decode`` gives the text of a token."""

    decode: Callable[[int], str] = str
    before: int = 12
    after: int = 6
    kind: records.ExampleKind = field(default="tokens", init=False)

    def show(self, occurrence: Occurrence) -> records.Example:
        first = max(0, occurrence.position - self.before)
        shown = occurrence.inputs[first : occurrence.position + self.after + 1]
        start, values = occurrence.around
        near = dict(enumerate(map(short, values.tolist()), start - first))
        return records.TokenExample(
            value=short(occurrence.value),
            sample=occurrence.sample,
            position=occurrence.position,
            tokens=tuple(self.decode(token) for token in shown.tolist()),
            activations=tuple(
                near.get(k, 0.0) for k in range(len(shown))
            ),  # 0 where the layer has no position
            active=occurrence.position - first,
        )


@dataclass(frozen=True)
class ImageRendering:
    """Rows of pixels as PNG thumbnails; ``shape`` is (channels, height, width), pixels lie in [low, high]."""

    shape: tuple[int, int, int]
    classes: Sequence[str] = ()
    low: float = -1.0
    high: float = 1.0
    channels_last: bool = False
    fields: Tensor | None = None  # [positions, 2, 2]
    """By position of the layer, its receptive field (top, bottom), (left, right) as shares of the picture."""
    kind: records.ExampleKind = field(default="images", init=False)

    def show(self, occurrence: Occurrence) -> records.Example:
        seen = None if self.fields is None else self.fields[occurrence.position]
        return records.ImageExample(
            value=short(occurrence.value),
            sample=occurrence.sample,
            image=self.picture(occurrence.inputs, seen),
            label=_class_name(occurrence.label, self.classes),
            field=None if seen is None else field_box(seen),
        )

    def picture(self, inputs: Tensor, seen: Tensor | None = None) -> str:
        """A sample as a PNG data URI, dimmed outside the field ``seen`` [2, 2]."""
        if inputs.numel() != int(np.prod(self.shape)):
            raise InterbasisError(
                f"expected images of {self.shape} = {int(np.prod(self.shape))} numbers, received "
                f"{inputs.numel()}"
            )
        pixels = (inputs.float() - self.low) * (255 / (self.high - self.low))
        if self.channels_last:
            pixels = pixels.view(*self.shape[1:], self.shape[0]).permute(2, 0, 1)
        return png(thumbnail(pixels.reshape(self.shape).clamp(0, 255), seen).numpy())


@dataclass(frozen=True)
class RowRendering:
    """The first ``limit`` inputs as numbers."""

    classes: Sequence[str] = ()
    limit: int = 32
    names: Sequence[str] = ()
    """Names of the inputs, where they are known."""
    kind: records.ExampleKind = field(default="rows", init=False)

    def show(self, occurrence: Occurrence) -> records.Example:
        return records.RowExample(
            value=short(occurrence.value),
            sample=occurrence.sample,
            inputs=tuple(short(v) for v in occurrence.inputs.flatten()[: self.limit].tolist()),
            names=tuple(self.names[: self.limit]),
            label=_class_name(occurrence.label, self.classes),
        )


def default_rendering(inputs: Tensor, classes: Sequence[str] = ()) -> Rendering:
    """Render integer sequences as tokens, arrays [n, height, width] with 1, 3 or no channels first as images.

    Everything else is a row of numbers. The pixels of images range from the smallest to the largest of these
    inputs. A sequence of vectors is such an array, too: a picture with a line for each position.
    """
    pictures = inputs[:, None] if inputs.ndim == 3 and min(inputs.shape[1:]) >= MIN_SIDE else inputs
    if pictures.ndim == 4 and pictures.shape[1] in CHANNELS and inputs.numel():
        low, high = inputs.min().item(), inputs.max().item()
        channels, height, width = pictures.shape[1:]
        return ImageRendering((channels, height, width), classes, low, high if high > low else low + 1)
    integers = not inputs.is_floating_point() and inputs.dtype != torch.bool
    return TokenRendering() if integers and inputs.ndim == 2 else RowRendering(classes)


@dataclass(frozen=True)
class Presentation:
    """Rendering of samples, and names of classes and outputs."""

    rendering: Rendering
    classes: Sequence[str] = ()
    outputs: Sequence[str] | None = None

    @classmethod
    def from_data(cls, network: Network, data: Data, batches: Batches) -> "Presentation":
        """The presentation that follows from the network and the data."""
        if names := network.token_names:
            return cls(TokenRendering(lambda token: names[token]), outputs=names)
        rendering, classes, outputs = renderings(data, network.class_names)
        if rendering is None and network.tokenizer and network.predicts_next:
            texts = vocabulary(Path(network.tokenizer))
            return cls(TokenRendering(lookup(texts)), outputs=texts or None)
        rendering = rendering or default_rendering(batches.first(), classes)
        if isinstance(rendering, RowRendering):
            rendering = replace(rendering, names=network.feature_names)
        return cls(rendering, classes, outputs)


def renderings(
    data: object, class_names: Sequence[str] = ()
) -> tuple[Rendering | None, Sequence[str], Sequence[str] | None]:
    """(rendering, names of classes, names of outputs) as far as the data declare them.

    Data may have ``kind`` (tokens, images, rows), ``classes``, ``image`` (channels, height, width) and
    ``tokenizer`` (a folder with tokenizer.json); ``class_names`` precede ``classes``. A network with
    ``token_names`` needs none of it.
    """
    kind, classes = getattr(data, "kind", None), tuple(class_names or getattr(data, "classes", ()))
    shape, folder = getattr(data, "image", None), getattr(data, "tokenizer", None)
    rendering: Rendering | None = None
    if kind == "tokens" and folder is not None:
        texts = vocabulary(Path(folder))
        return TokenRendering(lookup(texts)), (), texts or None
    if kind == "images" and shape is not None:
        low, high = getattr(data, "pixel_range", (-1.0, 1.0))
        rendering = ImageRendering(tuple(shape), classes, low, high, getattr(data, "channels_last", False))
    elif kind == "rows":
        rendering = RowRendering(classes)
    return rendering, classes, classes or None


def vocabulary(folder: Path) -> list[str]:
    """Text of every token of a tokenizer folder; empty where there is no readable tokenizer.json."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # no such package or file, or not readable: the library raises plain Exceptions
        return []
    bytewise = "ByteLevel" in repr(tokenizer.decoder)
    return [_token_text(tokenizer, token, bytewise) for token in range(tokenizer.get_vocab_size())]


def _token_text(tokenizer: Any, token: int, bytewise: bool) -> str:
    """As it stands in a text, with its space in front; parts of a character as the tokenizer writes them."""
    piece = tokenizer.id_to_token(token)
    if piece is None:
        return ""
    text: str = tokenizer.decode([token], skip_special_tokens=False) if bytewise else UNREADABLE
    if UNREADABLE not in text:
        return text
    for written, meant in (("Ġ", " "), ("▁", " "), ("Ċ", "\n"), ("<0x0A>", "\n"), ("<0x09>", "\t")):
        piece = piece.replace(written, meant)
    return str(piece)


def lookup(texts: Sequence[str]) -> Callable[[int], str]:
    """Function from a token to its text, or to its number where there is none."""
    return lambda token: texts[token] if 0 <= token < len(texts) else str(token)


def _class_name(label: int | None, classes: Sequence[str]) -> str:
    return "" if label is None else lookup(classes)(label)


def short(value: float) -> float:
    """Round to six digits, enough to look at."""
    return float(f"{value:.6g}")


def thumbnail(pixels: Tensor, seen: Tensor | None) -> Tensor:  # [c, h, w] -> uint8 [height, width, c]
    """At most `MAX_THUMBNAIL` pixels a side; pixels outside the field ``seen`` [2, 2] are dimmed."""
    factor = -(-max(pixels.shape[1:]) // MAX_THUMBNAIL)
    if factor > 1:
        pool = torch.nn.functional.avg_pool2d
        pixels = pool(pixels[None], factor, ceil_mode=True, count_include_pad=False)[0]
    if seen is not None:
        scale = torch.tensor(pixels.shape[1:])[:, None]
        (top, bottom), (left, right) = (seen * scale).round().int().tolist()
        field = (slice(None), slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1)))
        dimmed = DIMMED * pixels + (1 - DIMMED) * 255
        dimmed[field] = pixels[field]
        pixels = dimmed
    return pixels.round().to(torch.uint8).permute(1, 2, 0)


def field_box(seen: Tensor) -> records.Box:  # [2, 2]
    """A field (top, bottom), (left, right) as left, top, right, bottom."""
    (top, bottom), (left, right) = seen.tolist()
    return short(left), short(top), short(right), short(bottom)


def png(image: np.ndarray) -> str:
    """Encode a uint8 image [height, width, 1 or 3] as a PNG data URI."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def fingerprints(
    inputs: Tensor, positions: int, kind: records.ExampleKind, before: int
) -> Tensor:  # [n, positions]
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
