"""CIFAR-10: 32 × 32 colour images of ten classes, as rows of 3,072 numbers in [−1, 1].

A row is the image channel by channel (red, green, blue), each line by line. Read from an npz file with
x_train, y_train, x_test, y_test (uint8, images [n, 32, 32, 3]), or from the binary version as it is
published: the archive, or the folder with its data_batch_*.bin and test_batch.bin.
"""

import tarfile
from pathlib import Path

import numpy as np

from interbasis.base.errors import Explained, InterbasisError
from interbasis.data.arrays import open_npz
from interbasis.data.download import Remote, fetch
from interbasis.data.samples import Samples, Split, class_labels, pixel_rows

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
ARCHIVE = Remote(
    name="cifar-10-binary.tar.gz",
    homes=("https://www.cs.toronto.edu/~kriz/",),
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    size=170_052_171,
)
RECORD = 1 + 3 * 32 * 32
"""Bytes of an image in the binary version: its label, then its pixels channel by channel."""


def load(path: str | Path | None = None, split: Split = "train") -> Samples:
    """Load the training or test images; without a path they are fetched once and kept in the cache."""
    source = fetch(ARCHIVE) if path is None else Path(path)
    pixels, labels = (_from_npz if source.suffix == ".npz" else _from_binary)(source, split)
    spec = "cifar10" if path is None else f"cifar10:{path}"
    return pixel_rows(pixels, class_labels(source, labels), spec, CLASSES, (3, 32, 32))


def _from_npz(path: Path, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Pixels, uint8 [n, 3072], and labels [n]."""
    images, labels = open_npz(path, (f"x_{split}", f"y_{split}"))
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or labels.size != len(images):
        raise InterbasisError(
            f"{path}: expected x_{split} as uint8 of shape [n, 32, 32, 3] with y_{split} of shape [n], "
            f"received {images.dtype} of shape {list(images.shape)} and {list(labels.shape)}"
        )
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)
    return pixels, labels.reshape(-1)


def _from_binary(path: Path, split: Split) -> tuple[np.ndarray, np.ndarray]:
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] if split == "train" else ["test_batch.bin"]
    parts = _members(path, names)
    for name, part in zip(names, parts, strict=True):
        if not part or len(part) % RECORD:
            raise InterbasisError(
                f"{path}: {name} has {len(part)} bytes, expected a multiple of {RECORD}; fetch it again"
            )
    records = np.concatenate([np.frombuffer(part, np.uint8).reshape(-1, RECORD) for part in parts])
    return np.ascontiguousarray(records[:, 1:]), records[:, 0]


def _members(path: Path, names: list[str]) -> list[bytes]:
    """Contents of files of the binary version, out of its archive or its folder."""
    expected = f"an npz file, {ARCHIVE.name} or the folder in it"
    if not path.exists():
        raise InterbasisError(f"expected CIFAR-10 at {path} ({expected}), but there is no such file")
    errors = OSError, tarfile.TarError, EOFError, KeyError
    with Explained(f"could not read CIFAR-10 from {path}", *errors, remedy=f"expected {expected}"):
        if path.is_dir():
            return [(path / name).read_bytes() for name in names]
        with tarfile.open(path) as archive:
            files = {Path(member.name).name: member for member in archive if member.isfile()}
            opened = [archive.extractfile(files[name]) for name in names]
            return [file.read() for file in opened if file is not None]
