"""MNIST: 28 × 28 grey images of the ten digits, as rows of 784 numbers in [−1, 1].

Read from an npz file with x_train, y_train, x_test, y_test, or from a folder with the four idx files as they
are published, compressed or not.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from interbasis.base.errors import Explained, InterbasisError
from interbasis.data.arrays import open_npz
from interbasis.data.download import Remote, fetch
from interbasis.data.samples import Samples, Split, class_labels, pixel_rows

HOMES = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
FILES = {
    "train": (
        Remote(
            "train-images-idx3-ubyte.gz", HOMES,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422,
        ),
        Remote(
            "train-labels-idx1-ubyte.gz", HOMES,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881,
        ),
    ),
    "test": (
        Remote(
            "t10k-images-idx3-ubyte.gz", HOMES,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877,
        ),
        Remote(
            "t10k-labels-idx1-ubyte.gz", HOMES,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542,
        ),
    ),
}  # fmt: skip


def load(path: str | Path | None = None, split: Split = "train") -> Samples:
    """Load the training or test images; without a path they are fetched once and kept in the cache."""
    if path is not None and Path(path).suffix == ".npz":
        pixels, labels = open_npz(Path(path), (f"x_{split}", f"y_{split}"))
    else:
        pixels, labels = (_read_idx(_local_file(path, remote)) for remote in FILES[split])
    source = path or "MNIST"
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (28, 28) or labels.shape != pixels.shape[:1]:
        raise InterbasisError(
            f"{source}: expected images as uint8 of shape [n, 28, 28] with labels of shape [n], received "
            f"{pixels.dtype} of shape {list(pixels.shape)} and {list(labels.shape)}"
        )
    rows, spec = pixels.reshape(len(pixels), -1), "mnist" if path is None else f"mnist:{path}"
    return pixel_rows(rows, class_labels(source, labels), spec, tuple("0123456789"), (1, 28, 28))


def _local_file(path: str | Path | None, remote: Remote) -> Path:
    """An idx file in the folder, as it comes or unpacked, or in the cache."""
    if path is None:
        return fetch(remote)
    plain = remote.name.removesuffix(".gz")
    for name in (remote.name, plain, plain.replace("-idx", ".idx")):
        if (Path(path) / name).is_file():
            return Path(path) / name
    raise InterbasisError(
        f"expected MNIST at {path} (an npz file, or a folder with {remote.name} and the three other idx "
        f"files), but there is no {remote.name}"
    )


def _read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes: two zeros, the type 8, the number of dimensions, the sizes, the values."""
    with Explained(f"could not read {path}", OSError, EOFError, zlib.error, remedy="fetch it again"):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    shape = np.frombuffer(content[4 : 4 + 4 * dimensions].ljust(4 * dimensions, b"\0"), ">u4").tolist()
    start = 4 + 4 * dimensions
    if not dimensions or len(content) - start != math.prod(shape):
        raise InterbasisError(
            f"{path} is not an idx file of bytes, or not whole ({len(content)} bytes); fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
