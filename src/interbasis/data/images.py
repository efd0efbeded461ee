"""Folders of pictures, `images:FOLDER`: a subfolder per class, all pictures of one size.

    FOLDER/CLASS/*.png                      the last tenth of every class is the test set
    FOLDER/train/CLASS/…, FOLDER/test/CLASS/…   splits of their own

Pictures are read when they are wanted, as [channels, height, width] in [−1, 1]; grey ones have one channel.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from interbasis.base.errors import Explained, InterbasisError
from interbasis.data.samples import Pair, Samples, Split, scale_pixels

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
MODES = {"L": 1, "RGB": 3}
"""Modes in which pictures are read, and their numbers of channels."""
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""Errors of Pillow for damaged files."""


def load(folder: str | Path, split: Split = "train") -> Samples:
    """Load the pictures of a folder; classes are its subfolders in alphabetical order.

    Raises:
        InterbasisError: There is no such folder, it holds no pictures, one cannot be read, or sizes differ.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InterbasisError(
            f"expected a folder with a subfolder of pictures per class at {root}, found none"
        )
    is_split = (root / "train").is_dir() and (root / "test").is_dir()
    root = root / split if is_split else root
    classes = sorted(part.name for part in root.iterdir() if part.is_dir() and not part.name.startswith("."))
    samples: list[tuple[int, int, Path]] = []
    for label, name in enumerate(classes):
        pictures = sorted(path for path in (root / name).iterdir() if path.suffix.lower() in ENDINGS)
        if not is_split and pictures:
            cut = len(pictures) - max(1, len(pictures) // 10)
            pictures = pictures[:cut] if split == "train" else pictures[cut:]
        samples += [(number, label, path) for number, path in enumerate(pictures)]
    if not samples:
        raise InterbasisError(
            f"{root}: expected a subfolder per class with pictures ({', '.join(ENDINGS)}), found none for "
            f"the {split} split"
        )
    # one of every class after the other, so that the first samples are of all classes
    samples.sort(key=lambda sample: sample[:2])
    files, labels = [path for _, _, path in samples], torch.tensor([label for _, label, _ in samples])
    mode, size = _format(files)

    def read(first: int, last: int) -> Pair:
        pixels = np.stack([_pixels(path, mode, size) for path in files[first:last]])
        return scale_pixels(torch.from_numpy(pixels)), labels[first:last]

    shape = MODES[mode], size[1], size[0]
    return Samples(len(files), read, "images", f"images:{folder}", tuple(classes), shape, batch=256)


def _format(files: list[Path]) -> tuple[str, tuple[int, int]]:
    """L or RGB, and (width, height), the same for all files; only their heads are read."""
    first: tuple[int, int] | None = None
    grey = True
    for path in files:
        with _opened(path) as image:
            first = first or image.size
            if image.size != first:
                raise InterbasisError(
                    f"expected pictures of one size, received {files[0].name} of {first[0]} × {first[1]} and "
                    f"{path.name} of {image.size[0]} × {image.size[1]}; resize them first"
                )
            grey = grey and image.mode in ("1", "L")
    assert first is not None
    return ("L" if grey else "RGB"), first


def _pixels(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:  # uint8 [channels, height, width]
    with _opened(path) as image, Explained(f"could not read {path} as a picture", *UNREADABLE):
        values = np.asarray(image.convert(mode))
    return values.reshape(size[1], size[0], -1).transpose(2, 0, 1)


def _opened(path: Path) -> Image.Image:
    with Explained(f"could not read {path} as a picture", *UNREADABLE):
        return Image.open(path)
