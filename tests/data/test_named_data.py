"""Data by name: images, arrays, tokens, text; windows and splits."""

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interbasis import InterbasisError
from interbasis.data import Batches, cifar10, download
from interbasis.data.samples import Split
from interbasis.graph.named_models import open_data


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTERBASIS_CACHE", str(tmp_path / "cache"))


def images(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def cifar_arrays() -> dict[str, np.ndarray]:
    return {
        "x_train": images(20, (32, 32, 3)), "y_train": np.arange(20, dtype=np.uint8) % 10,
        "x_test": images(4, (32, 32, 3), 1), "y_test": np.arange(4, dtype=np.uint8),
    }  # fmt: skip


def binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    return np.concatenate([labels[:, None], rows], 1).tobytes()


def cifar_archive(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        parts = {f"data_batch_{k + 1}.bin": slice(4 * k, 4 * k + 4) for k in range(5)}
        contents = {n: binary(arrays["x_train"][s], arrays["y_train"][s]) for n, s in parts.items()}
        contents["test_batch.bin"] = binary(arrays["x_test"], arrays["y_test"])
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize("split", ["train", "test"])
def test_cifar10_is_the_same_from_every_form_of_it(tmp_path: Path, split: Split) -> None:
    arrays: dict[str, Any] = cifar_arrays()
    np.savez(tmp_path / "cifar.npz", **arrays)
    cifar_archive(tmp_path / "cifar-10-binary.tar.gz", arrays)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    forms = ["cifar.npz", "cifar-10-binary.tar.gz", "cifar-10-batches-bin"]
    opened = [open_data(f"cifar10:{tmp_path / form}", split) for form in forms]
    inputs, labels = opened[0].all()
    assert all(torch.equal(other.all()[0], inputs) for other in opened)
    assert all(torch.equal(other.all()[1], labels) for other in opened)
    assert inputs.shape == (len(arrays[f"x_{split}"]), 3072)
    assert inputs[1].view(3, 32, 32)[2, 5, 7] == arrays[f"x_{split}"][1, 5, 7, 2] / np.float32(127.5) - 1
    assert np.array_equal(opened[0].picture(3).numpy(), arrays[f"x_{split}"][3])
    assert opened[0].classes[labels[3]] == "cat"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[Any, str, list[str | None]]]:
    """A data set's home that can go on in the middle of a file, and counts what it is asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = (tmp_path / "home" / self.path.strip("/")).read_bytes()
            asked.append(self.headers.get("Range"))
            start = int((asked[-1] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if asked[-1] else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:])

        def log_message(self, *arguments: Any) -> None:
            pass

    (tmp_path / "home").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tmp_path / "home", f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    server.server_close()


def test_files_are_fetched_once_resumed_and_checked(home: tuple[Any, str, list[str | None]]) -> None:
    folder, address, asked = home
    content = np.random.default_rng(0).bytes(300_000)
    (folder / "file.bin").write_bytes(content)
    remote = download.Remote("file.bin", (address,), hashlib.sha256(content).hexdigest(), len(content))
    cache = download.cache_folder()
    cache.mkdir()
    (cache / "file.bin.part").write_bytes(content[:100_000])
    assert download.fetch(remote).read_bytes() == content
    assert download.fetch(remote) == cache / "file.bin"
    assert asked == ["bytes=100000-"]
    (cache / "file.bin").unlink()
    (folder / "file.bin").write_bytes(b"x" * len(content))
    with pytest.raises(InterbasisError, match="discarded"):
        download.fetch(remote)
    (cache / "file.bin").write_bytes(b"x")
    with pytest.raises(InterbasisError, match="has 1 bytes, expected 300000"):
        download.fetch(remote)


def test_without_a_network_one_sentence_says_what_to_put_where() -> None:
    remote = download.Remote("file.bin", ("http://127.0.0.1:9/",), "0" * 64, 5)
    with pytest.raises(InterbasisError, match=r"fetch file\.bin .* at .*cache/file\.bin"):
        download.fetch(remote)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_mnist_from_idx_files_and_npz(tmp_path: Path) -> None:
    x, y = images(6, (28, 28)), np.arange(6, dtype=np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(y))
    np.savez(tmp_path / "mnist.npz", x_test=x, y_test=y)
    plain, archive = (open_data(f"mnist:{tmp_path}{end}", "test") for end in ("", "/mnist.npz"))
    assert torch.equal(plain.all()[0], archive.all()[0])
    assert plain.all()[0].shape == (6, 784)
    assert plain[4][1] == 4
    assert np.array_equal(plain.picture(2)[:, :, 0].numpy(), x[2])
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(y)[:-1])
    with pytest.raises(InterbasisError, match="not whole"):
        open_data(f"mnist:{tmp_path}", "test")


def test_arrays_with_and_without_splits_and_labels(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30)
    np.savez(tmp_path / "one.npz", x=x, y=y)
    train, test = (open_data(f"npz:{tmp_path}/one.npz", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (27, 3)
    assert np.array_equal(torch.cat([train.all()[0], test.all()[0]]).numpy(), x)
    np.savez(tmp_path / "two.npz", inputs_train=x)
    unlabelled = open_data(f"npz:{tmp_path}/two.npz,samples=7")
    assert unlabelled.all()[1].tolist() == [-100] * 7
    assert Batches(unlabelled).fingerprint() == Batches(torch.from_numpy(x[:7])).fingerprint()


STREAM = np.array([1, 5, 6, 7, 1, 8, 1, 9, 10, 11, 12, 13, 1, 14, 15, 1, 16], np.uint16)
"""Documents of 4, 2, 6, 3 and 2 tokens, each begun by token 1."""


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "stories.uint16"
    STREAM.tofile(path)
    return path


def test_packed_windows_follow_each_other(stream: Path) -> None:
    inputs, labels = open_data(f"tokens:{stream},context=4,part=all").all()
    assert inputs.tolist() == [STREAM[0:4].tolist(), STREAM[5:9].tolist(), STREAM[10:14].tolist()]
    assert labels.tolist() == [STREAM[1:5].tolist(), STREAM[6:10].tolist(), STREAM[11:15].tolist()]
    inputs, labels = open_data(f"tokens:{stream},context=4,part=all,bos=1,prepend=yes").all()
    assert labels.flatten().tolist() == STREAM[:16].tolist()
    assert (inputs[:, 0] == 1).all()
    assert torch.equal(inputs[:, 1:], labels[:, :-1])


def test_documents_are_predicted_token_by_token_once(stream: Path) -> None:
    inputs, labels = open_data(f"tokens:{stream},context=3,part=all,bos=1,per=document").all()
    assert labels[labels >= 0].tolist() == [t for t in STREAM.tolist() if t != 1]
    assert labels[:4].tolist() == [[5, 6, 7], [8, -100, -100], [9, 10, 11], [12, 13, -100]]
    assert inputs[:4].tolist() == [[1, 5, 6], [1, 0, 0], [1, 9, 10], [11, 12, 0]]
    inputs, labels = open_data(f"tokens:{stream},context=3,part=all,bos=1,per=document,prepend=yes").all()
    assert labels[3].tolist() == [12, 13, -100]
    assert inputs[3].tolist() == [1, 12, 0]


def test_no_document_is_in_both_splits(stream: Path) -> None:
    spec = f"tokens:{stream},context=2,bos=1,held_out=0.3,per=document"
    train, test = open_data(spec, "train"), open_data(spec, "test")
    seen = [set(part.all()[1][part.all()[1] >= 0].tolist()) for part in (train, test)]
    assert seen == [{5, 6, 7, 8, 9, 10, 11, 12, 13}, {14, 15, 16}]
    assert torch.equal(open_data(test.spec, "test").all()[1], test.all()[1])


def test_every_token_format_gives_the_same_windows(stream: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    STREAM.astype(np.uint32).tofile(tmp_path / "stories.uint32")
    np.save(tmp_path / "stories.npy", STREAM.astype(np.int64))
    rows = [part.tolist() for part in np.split(STREAM.astype(np.int64), np.flatnonzero(STREAM == 1)[1:])]
    parquet.write_table(pyarrow.table({"input_ids": rows}), tmp_path / "stories.parquet")
    (tmp_path / "set").mkdir()
    parquet.write_table(pyarrow.table({"input_ids": rows[:2]}), tmp_path / "set/train-0.parquet")
    parquet.write_table(pyarrow.table({"input_ids": rows[2:]}), tmp_path / "set/train-1.parquet")
    wanted = open_data(f"tokens:{stream},context=3,part=all,bos=1,per=document").all()
    for name in ("tokens:stories.uint32", "tokens:stories.npy", "tokens:stories.parquet", "hf:set"):
        family, _, path = name.partition(":")
        found = open_data(f"{family}:{tmp_path / path},context=3,part=all,bos=1,per=document").all()
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), name


def test_files_that_name_their_split(tmp_path: Path) -> None:
    STREAM.tofile(tmp_path / "tokens_train.uint16")
    STREAM[::-1].copy().tofile(tmp_path / "tokens_test.uint16")
    for name in ("tokens_train.uint16", "tokens_{split}.uint16"):
        assert open_data(f"tokens:{tmp_path}/{name},context=16")[0][0][0] == 1
        assert open_data(f"tokens:{tmp_path}/{name},context=16", "test")[0][0][0] == 16
    assert open_data(f"tokens:{tmp_path}/tokens_test.uint16,context=16", "train")[0][0][0] == 16
    for name in ("tokens_train.uint16", "tokens_{split}.uint16"):
        named = open_data(f"tokens:{tmp_path}/{name},context=16,samples=1", "test").spec
        assert named == f"tokens:{tmp_path}/tokens_test.uint16,context=16,samples=1"  # what was read
        assert f"{tmp_path}/{name}," in open_data(f"tokens:{tmp_path}/{name},context=16").spec
    (tmp_path / "test").mkdir()
    STREAM[::-1].copy().tofile(tmp_path / "test" / "tokens.uint16")
    named = open_data(f"tokens:{tmp_path}/{{split}}/tokens.uint16,context=4", "test")
    assert f"{tmp_path}/test/tokens.uint16," in named.spec
    again = open_data(named.spec, "test")
    assert again.spec == named.spec
    assert torch.equal(again.all()[0], named.all()[0])
    (tmp_path / "tokens_test.uint16").unlink()
    with pytest.raises(InterbasisError, match="no test set tokens_test"):
        open_data(f"tokens:{tmp_path}/tokens_train.uint16,context=16", "test")


def word_tokenizer(folder: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: k for k, word in enumerate(["<unk>", "<|endoftext|>", "a", "b", "c", "d"])}
    model = tokenizers.models.WordLevel(words, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_text_is_cut_into_documents_and_tokenized_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.data import text

    monkeypatch.setattr(text, "CHARACTERS_PER_BLOCK", 5)
    folder = word_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "a.txt").write_text("a b c\n<|endoftext|>\nd d\nb<|endoftext|>c\n")
    spec = f"text:{tmp_path}/a.txt,tokenizer={folder},context=4,part=all"
    inputs, labels = open_data(spec + ",per=document").all()
    assert inputs.tolist() == [[1, 2, 3, 0], [1, 5, 5, 0], [1, 0, 0, 0]]
    assert labels.tolist() == [[2, 3, 4, -100], [5, 5, 3, -100], [4, -100, -100, -100]]
    monkeypatch.setattr(text, "_documents", None)
    assert open_data(spec)[0][0].tolist() == [1, 2, 3, 4]


def test_stories_of_the_small_language_model(shared: Path) -> None:
    data = open_data(f"tokens:{shared}/tinystories-gpt-280k/tokens_test.uint16", split="test")
    inputs, labels = data.read(0, 3)
    assert (len(data), tuple(inputs.shape), tuple(labels.shape)) == (2336, (3, 512), (3, 512))
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    assert data.tokenizer == shared / "tinystories-gpt-280k"


def test_real_cifar10(shared: Path) -> None:
    test = cifar10.load(shared / "cifar10/cifar10.npz", "test")
    assert (len(test), test[0][1].item()) == (10_000, 3)  # the first test image is a cat
    assert test[0][0].abs().max() <= 1


def test_the_first_tokens_can_be_had_again_by_name(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "tokens_train.uint16")
    few = open_data(f"tokens:{tmp_path}/tokens_train.uint16,context=4,samples=7")
    assert len(few) == 7
    again = open_data(few.spec)
    assert (len(again), again.spec) == (7, few.spec)
    assert torch.equal(again.all()[0], few.all()[0])
