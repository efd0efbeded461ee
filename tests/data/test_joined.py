"""Token data in many files: one stream, of which a process opens only the files that it reads."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from interbasis import InterbasisError
from interbasis.data import Batches
from interbasis.data.samples import Samples
from interbasis.graph.named_models import open_data

TOKENS = np.random.default_rng(0).integers(0, 50, 1000).astype(np.uint16)
CUTS = (0, 130, 131, 500, 1000)


def write(folder: Path, name: str, tokens: np.ndarray) -> None:
    if name.endswith(".uint16"):
        (folder / name).write_bytes(tokens.tobytes())
    elif name.endswith(".npy"):
        np.save(folder / name, tokens)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        pyarrow = pytest.importorskip("pyarrow")
        rows = [row.tolist() for row in np.split(tokens, [len(tokens) // 3, len(tokens) // 2])]
        parquet.write_table(pyarrow.table({"input_ids": rows}), folder / name)


@pytest.fixture(params=["uint16", "npy", "parquet", "mixed"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The stream in four files of different lengths, and whole beside them."""
    write(tmp_path, "whole-all.uint16", TOKENS)
    place = tmp_path / "files"
    place.mkdir()
    for number, (first, last) in enumerate(pairwise(CUTS)):
        kind = ("npy", "uint16", "parquet", "npy")[number] if request.param == "mixed" else request.param
        write(place, f"train-{number}.{kind}", TOKENS[first:last])
    return tmp_path


def same(one: Samples, other: Samples) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.all(), other.all(), strict=True))


def test_files_are_one_stream(folder: Path) -> None:
    whole = open_data(f"tokens:{folder}/whole-all.uint16,context=9,part=all")
    for path in (f"{folder}/files", f"{folder}/files/train-*", f"{folder}/files/{{split}}-*"):
        joined = open_data(f"tokens:{path},context=9")
        assert len(joined) == len(whole) == 100
        assert same(joined, whole)
        assert torch.equal(joined.read(12, 14)[0], whole.read(12, 14)[0])
        assert same(open_data(joined.spec), whole)


def test_only_files_that_are_read_are_opened(folder: Path) -> None:
    joined = open_data(f"tokens:{folder}/files,context=9")
    expected = joined.between(20, 45).all()
    joined = open_data(f"tokens:{folder}/files,context=9")
    for number in (0, 3):
        next((folder / "files").glob(f"train-{number}.*")).unlink()
    assert all(torch.equal(*pair) for pair in zip(joined.between(20, 45).all(), expected, strict=True))
    with pytest.raises(InterbasisError, match="no such file"):
        joined.between(45, 60).all()


def test_the_fingerprint_knows_the_files(folder: Path) -> None:
    def fingerprint(spec: str = "") -> str:
        return Batches(open_data(f"tokens:{folder}/files,context=9{spec}")).fingerprint()

    before = fingerprint()
    assert before == fingerprint()
    assert before != fingerprint(",samples=50")
    file = next((folder / "files").glob("train-2.*"))
    write(folder / "files", file.name, TOKENS[131:500] // 2)
    assert before != fingerprint()


def test_splits_and_documents_of_many_files(tmp_path: Path) -> None:
    for number, (first, last) in enumerate(pairwise(CUTS)):
        write(tmp_path, f"{number}.uint16", TOKENS[first:last])
    write(tmp_path, "whole.u16.uint16", TOKENS)
    (tmp_path / "whole.u16.uint16").rename(tmp_path / "whole.bin")
    for options in (
        "context=9",
        "context=9,bos=7",
        "context=9,bos=7,per=document",
        "context=9,bos=7,prepend=yes",
    ):
        for split in ("train", "test"):
            one = open_data(f"tokens:{tmp_path}/whole.bin,{options}", split)
            many = open_data(f"tokens:{tmp_path}/*.uint16,{options}", split)
            assert same(one, many)
    write(tmp_path, "valid.uint16", TOKENS[:50])
    assert len(open_data(f"tokens:{tmp_path}/*.uint16,context=9", "test")) == 5
    with pytest.raises(InterbasisError, match="files for the train split"):
        open_data(f"tokens:{tmp_path}/*.uint16,context=9")
    with pytest.raises(InterbasisError, match=r"files that end in .* none"):
        open_data(f"tokens:{tmp_path}/*.nothing,context=9")
