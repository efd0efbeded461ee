"""NumPy archives, never unpickled: `npz:PATH`."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.memory import format_bytes
from interbasis.data.samples import IGNORED_LABEL, Samples, Split

NAMES = (("x", "y"), ("inputs", "labels"), ("data", "targets"))
"""Names of arrays of inputs and labels; with _train or _test where there are both."""
CHANNELS = (1, 3)
"""Channels of a picture: grey or colours."""
MIN_SIDE = 4
"""Pixels of the shorter side of a picture, at least; smaller arrays are rows of numbers."""
PROBED_SAMPLES = 256
"""Samples by which pixels are told from other numbers."""


@contextmanager
def _archive(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise InterbasisError(f"expected an npz file at {path}, but there is no such file")
    with (
        Explained(f"could not read {path} as an npz file of plain arrays", Exception),
        open(path, "rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        yield archive


def open_npz(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Arrays of an npz file by their names."""
    with _archive(path) as archive:
        missing = [name for name in names if name not in archive.files]
        if missing:
            raise InterbasisError(
                f"{path} has no array {missing[0]!r}; it has {', '.join(archive.files) or 'none'}"
            )
        return [_array(archive, name) for name in names]


def _array(archive: Any, name: str) -> np.ndarray:
    """An array of an archive, unless its header names more numbers than its file holds."""
    member = f"{name}.npy" if f"{name}.npy" in archive.zip.namelist() else name
    with archive.zip.open(member) as file:
        formats = np.lib.format
        old = formats.read_magic(file) == (1, 0)
        shape, _, dtype = (formats.read_array_header_1_0 if old else formats.read_array_header_2_0)(file)
        claimed, stored = math.prod(shape) * dtype.itemsize, archive.zip.getinfo(member).file_size
    if claimed > stored:
        raise ValueError(
            f"the header of {name} says {list(shape)}, {format_bytes(claimed)}, and the archive holds "
            f"{format_bytes(stored)} of it"
        )
    return np.asarray(archive[name])


def load(path: str | Path, split: Split = "train") -> Samples:
    """Samples of any inputs [n, …] with integer labels [n] or [n, T]: arrays x and y, or inputs and labels.

    A file with x_train, y_train, x_test, y_test has both splits; in one with x and y alone the last tenth of
    the samples is the test set. Without labels they are all ignored (−100). Arrays [n, h, w] and [n, h, w, c]
    of pixels are shown as pictures (`as_pictures`).
    """
    path = Path(path)
    with _archive(path) as archive:
        x, y, has_both = _names(path, set(archive.files), split)
        inputs = _array(archive, x)
        if inputs.ndim == 0 or inputs.dtype.kind not in "iufb":
            raise InterbasisError(
                f"{path}: expected numbers of shape [samples, …] as {x}, received {inputs.dtype} of shape "
                f"{list(inputs.shape)}"
            )
        labels = _array(archive, y) if y in archive.files else np.full(len(inputs), IGNORED_LABEL)
    if labels.dtype.kind not in "iu" or labels.ndim not in (1, 2) or len(labels) != len(inputs):
        raise InterbasisError(
            f"{path}: expected integer labels {y} for each of the {len(inputs)} samples, received "
            f"{labels.dtype} of shape {list(labels.shape)}"
        )
    if has_both:
        cut = len(inputs) - max(1, len(inputs) // 10)
        part = slice(cut) if split == "train" else slice(cut, None)
        inputs, labels = inputs[part], labels[part]
    if not len(inputs):
        raise InterbasisError(f"{path}: the {split} split is empty; expected at least one sample")
    if inputs.dtype.kind == "u" and inputs.dtype.itemsize > 1:
        inputs = inputs.astype(np.int64)
    tensors = torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64))
    return as_pictures(Samples.from_tensors(*tensors, spec=f"npz:{path}"), inputs)


def _names(path: Path, names: set[str], split: Split) -> tuple[str, str, bool]:
    """Names of inputs and labels, and whether these hold both splits."""
    for x, y in NAMES:
        if f"{x}_{split}" in names:
            return f"{x}_{split}", f"{y}_{split}", False
        if x in names:
            return x, y, True
    raise InterbasisError(
        f"{path} has no array x_{split} or x (nor inputs); it has {', '.join(sorted(names)) or 'none'}"
    )


def as_pictures(samples: Samples, inputs: np.ndarray) -> Samples:
    """Samples that say how they are shown, where arrays [n, h, w], [n, h, w, c] or [n, c, h, w] hold pixels.

    Pixels are uint8, or floating-point numbers in [0, 1] or [−1, 1]; c is 1 or 3, and both sides have four
    pixels or more. The numbers stay as they are.
    """
    shape = inputs.shape[1:]
    shape = (1, *shape) if len(shape) == 2 else shape
    last = len(shape) == 3 and shape[0] not in CHANNELS
    if len(shape) != 3 or shape[2 if last else 0] not in CHANNELS:
        return samples
    channels, height, width = (shape[2], *shape[:2]) if last else shape
    probed, is_bytes = inputs[:PROBED_SAMPLES], inputs.dtype == np.uint8
    is_unit = inputs.dtype.kind == "f" and np.isfinite(probed).all() and np.abs(probed).max() <= 1
    if not (is_bytes or is_unit) or min(height, width) < MIN_SIDE:
        return samples
    black, white = (0.0, 255.0) if is_bytes else (0.0 if probed.min() >= 0 else -1.0, 1.0)
    image = channels, height, width
    return replace(samples, kind="images", image=image, pixel_range=(black, white), channels_last=last)
