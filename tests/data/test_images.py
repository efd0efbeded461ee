"""Folders of pictures and arrays that hold pixels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from interbasis import InterbasisError
from interbasis.analysis.features.contexts import ImageRendering, Occurrence, renderings
from interbasis.graph.named_models import open_data


def picture(seed: int, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> Image.Image:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for k in range(10):
            picture(10 * label + k).save(tmp_path / name / f"{k}.png")
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    return tmp_path


def test_classes_are_subfolders_and_a_tenth_is_held_out(folder: Path) -> None:
    train, test = (open_data(f"images:{folder}", split) for split in ("train", "test"))
    assert (len(train), len(test), train.classes, train.image) == (18, 2, ("cat", "dog"), (3, 5, 6))
    inputs, labels = train.all()
    assert inputs.shape == (18, 3, 5, 6)
    assert labels.tolist() == [0, 1] * 9
    expected = torch.from_numpy(np.asarray(picture(10)).copy()).permute(2, 0, 1) / 127.5 - 1
    assert torch.allclose(inputs[1], expected)
    assert np.array_equal(train.picture(1).numpy(), np.asarray(picture(10)))
    assert np.array_equal(test.picture(1).numpy(), np.asarray(picture(19)))


def test_splits_of_their_own_and_grey_pictures(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 1)):
        (tmp_path / split / "one").mkdir(parents=True)
        for k in range(count):
            picture(k, mode="L").save(tmp_path / split / "one" / f"{k}.png")
    assert [len(open_data(f"images:{tmp_path}", split)) for split in ("train", "test")] == [3, 1]
    assert open_data(f"images:{tmp_path}").image == (1, 5, 6)


def test_what_is_wrong_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InterbasisError, match="expected a folder"):
        open_data(f"images:{tmp_path / 'nowhere'}")
    picture(1, size=(7, 5)).save(folder / "dog" / "large.png")
    with pytest.raises(InterbasisError, match=r"9\.png of 6 × 5 and large\.png of 7 × 5"):
        open_data(f"images:{folder}", "test")
    (folder / "dog" / "large.png").write_bytes(b"no picture at all")
    with pytest.raises(InterbasisError, match=r"could not read .*large.png"):
        open_data(f"images:{folder}", "test")
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(InterbasisError, match="none for the train split"):
        open_data(f"images:{tmp_path / 'empty'}")


BYTES = np.random.default_rng(0).integers(0, 256, (20, 5, 6, 3), dtype=np.uint8)
ARRAYS = {
    "colours": (BYTES, (3, 5, 6), BYTES[3]),
    "grey": (BYTES[..., 0], (1, 5, 6), BYTES[3, ..., :1]),
    "channels first": (BYTES.transpose(0, 3, 1, 2), (3, 5, 6), BYTES[3]),
    "unit interval": (BYTES[..., 0] / np.float32(255), (1, 5, 6), BYTES[3, ..., :1]),
    "both signs": (BYTES / np.float32(127.5) - 1, (3, 5, 6), BYTES[3]),
}


@pytest.mark.parametrize(("array", "shape", "expected"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_of_pixels_are_shown_as_pictures(
    array: np.ndarray, shape: tuple[int, int, int], expected: np.ndarray, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=array, y=np.arange(20) % 3)
    data = open_data(f"npz:{tmp_path / 'a.npz'}")
    assert (data.kind, data.image) == ("images", shape)
    assert np.array_equal(data[3][0].numpy(), array[3])  # the numbers stay as they are
    assert np.array_equal(data.picture(3).numpy(), expected)
    rendering = renderings(data)[0]
    assert isinstance(rendering, ImageRendering)
    place = Occurrence(1.0, 3, 0, data[3][0], 0, (0, torch.zeros(1)))
    direct = ImageRendering(shape, (), 0, 255).show(
        Occurrence(1.0, 3, 0, torch.from_numpy(expected.copy()).permute(2, 0, 1), 0, (0, torch.zeros(1)))
    )
    assert rendering.show(place).image == direct.image


@pytest.mark.parametrize("array", [np.ones((20, 3, 2)), 5 * np.ones((20, 5, 6)), np.ones((20, 9), np.uint8)])
def test_other_arrays_stay_rows(array: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=array, y=np.arange(20) % 3)
    assert open_data(f"npz:{tmp_path / 'a.npz'}").kind == "rows"
