"""Data sets of the Hub read in ranges, from a server on this machine that stands for the Hub."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interbasis
from cases import CASES
from command_line import Cli
from compute.torchrun import TESTS, ended, torchrun
from data.hub_server import Hub, hub
from data.test_named_data import word_tokenizer
from graphs import assert_same_graph
from interbasis import InterbasisError
from interbasis.base.connection import can_connect
from interbasis.compute.team import Team
from interbasis.data import Batches, windows
from interbasis.data.samples import Samples, Split
from interbasis.graph.named_models import at_one_commit, open_data
from interbasis.graph.store import load
from interbasis.lib import survey
from tiny_models import SMALL, random_model

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("huggingface_hub")

RANDOM = np.random.default_rng(0)
ROWS = [RANDOM.integers(0, SMALL["vocab_size"], RANDOM.integers(1, 30)).tolist() for _ in range(160)]
ROWS[5], ROWS[6], ROWS[77] = None, [], []
ROWS_PER_GROUP = 10
ENDS = np.cumsum([len(row or []) for row in ROWS])[ROWS_PER_GROUP - 1 :: ROWS_PER_GROUP].tolist()
"""Tokens up to the end of every row group."""


def parquet_bytes(
    columns: dict[str, list[Any]], row_group_size: int = ROWS_PER_GROUP, **options: object
) -> bytes:
    """A file as pyarrow writes it, with a second column that nobody wants."""
    file = io.BytesIO()
    length = len(next(iter(columns.values())))
    table = pyarrow.table({"other": ["unwanted" * 9] * length, **columns})
    parquet.write_table(table, file, row_group_size=row_group_size, **options)
    return file.getvalue()


FILES = {
    f"data/part-{number}.parquet": parquet_bytes({"input_ids": ROWS[80 * number : 80 * number + 80]})
    for number in range(2)
}
TRAINING = {f"train-{number}.parquet": content for number, content in enumerate(FILES.values())}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub at which huggingface_hub looks, with nothing kept from before."""
    from huggingface_hub import constants

    monkeypatch.setenv("INTERBASIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with hub() as running:
        can_connect.cache_clear()  # an earlier server may have had this port
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        template = running.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield running


def same(one: Samples, other: Samples) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.all(), other.all(), strict=True))


def groups_asked(server: Hub, files: dict[str, bytes]) -> set[tuple[str, int]]:
    """Row groups of which any byte was asked for; nothing but their tokens and the ends of files, in which
    the footers are, may have been."""
    found = set()
    for path, content in files.items():
        metadata = parquet.read_metadata(io.BytesIO(content))
        for first, last in server.bytes_of(path):
            if last == len(content):
                continue
            own = [column_range(metadata.row_group(k)) for k in range(metadata.num_row_groups)]
            assert (first, last) in own, "the column of tokens of one row group"
            found.add((path, own.index((first, last))))
    return found


def column_range(group: Any) -> tuple[int, int]:
    chunk = group.column(1)
    first = chunk.dictionary_page_offset or chunk.data_page_offset
    return first, first + chunk.total_compressed_size


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "options", ["", ",part=all", ",prepend=yes,bos=0", ",held_out=0.5", ",column=input_ids"]
)
def test_streamed_data_are_the_downloaded_ones(server: Hub, options: str, split: Split) -> None:
    """Where rows have no tokens, and where the test set begins in the middle of a row group."""
    server.publish("lab/words", FILES)
    spec = f"hf:lab/words,context=9{options}"
    streamed, downloaded = open_data(f"{spec},stream=yes", split), open_data(spec, split)
    assert len(streamed) == len(downloaded)
    assert same(streamed, downloaded)
    again = open_data(streamed.spec, split)
    assert again.spec == streamed.spec
    assert same(again, downloaded)


def test_files_that_name_their_split(server: Hub) -> None:
    server.publish("lab/words", TRAINING | {"test-0.parquet": FILES["data/part-0.parquet"]})
    for split in ("train", "test"):
        assert same(open_data("hf:lab/words,stream=yes", split), open_data("hf:lab/words", split))
    server.asked.clear()
    assert len(open_data("hf:lab/words,stream=yes,context=9,samples=3")) == 3
    assert not server.bytes_of("train-1.parquet"), "beyond what is wanted, not even a footer is read"


def test_passes_resume_and_read_no_more_than_their_samples(server: Hub) -> None:
    server.publish("lab/words", TRAINING)
    spec = "hf:lab/words,context=9"
    wanted = list(Batches(open_data(spec)).chunks(7, start=100))
    server.asked.clear()
    batches = Batches(open_data(f"{spec},stream=yes"))
    assert groups_asked(server, TRAINING) == set()
    assert len(batches) == 100 + sum(len(inputs) for _, inputs in wanted)
    assert batches.fingerprint() != Batches(open_data(f"{spec},stream=yes,samples=9")).fingerprint()
    assert groups_asked(server, TRAINING) == set(), "neither lengths nor fingerprints read data"
    for _ in range(2):
        found = list(batches.chunks(7, start=100))
        assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in zip(found, wanted, strict=True))
    asked = sorted(groups_asked(server, TRAINING))
    assert len(asked) == sum(end > 1000 for end in ENDS)
    reads = [one for one in server.asked if one.last < len(TRAINING[one.path])]
    assert len(asked) == len(reads), "small data are read once"


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("streamed") / "model"
    random_model("gpt2", torch.float32).save_pretrained(folder)
    return f"hf:{folder},blocks=0-0"


def build_of(model: str, data: str, out: Path) -> list[Any]:
    """A command that takes a second: the features before an MLP."""
    return ["build", model, "--data", data, "--layers", "ln2_out.0,mlp_in.0", "--threads", 1, "--out", out]


@pytest.mark.usefixtures("one_thread", "in_blocks")
def test_jobs_read_their_own_row_groups(
    server: Hub,
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    language_model: str,
) -> None:
    """Two jobs of a build: each asks for its own half, and both for the first tokens, which are surveyed."""
    monkeypatch.setattr(survey, "MAX_TOKENS", 32)
    monkeypatch.setattr(windows, "TOKENS_PER_READ", 32)
    server.publish("lab/words", TRAINING)
    spec = "hf:lab/words,context=9"
    assert cli(*build_of(language_model, spec, tmp_path / "downloaded")).code == 0
    groups = [(path, number) for path in TRAINING for number in range(8)]
    total = ENDS[-1] // 10
    middle = total * 8 // 16  # samples of the first eight of sixteen blocks
    before = {group for group, first in zip(groups, [0, *ENDS[:-1]], strict=True) if first < middle * 10}
    after = {group for group, end in zip(groups, ENDS, strict=True) if middle * 10 < end}
    assert len(before & after) <= 1
    run, rounds = tmp_path / "streamed", 0
    while not (run / "config.json").is_file():
        for job, own in enumerate((before, after | {groups[0]})):
            server.asked.clear()
            command = build_of(language_model, f"{spec},stream=yes", run)
            assert cli(*command, "--shard", f"{job + 1}/2").code == 0
            assert groups_asked(server, TRAINING) == own
        assert cli("merge", run / "shards", "--out", run).code == 0
        rounds += 1
    assert rounds == 2
    assert_same_graph(tmp_path / "downloaded", run)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "in_blocks")
def test_two_processes_stream_one_build(server: Hub, tmp_path: Path, cli: Cli, language_model: str) -> None:
    server.publish("lab/words", TRAINING)
    spec = "hf:lab/words,context=9,samples=150"
    assert cli(*build_of(language_model, spec, tmp_path / "one")).code == 0
    command = build_of(language_model, f"{spec},stream=yes", tmp_path / "two")
    ended(torchrun(2, TESTS / "compute/in_blocks.py", *command, HF_ENDPOINT=server.address))
    assert_same_graph(tmp_path / "one", tmp_path / "two")


class Second(Team):
    """A process of two whose first one found a commit."""

    rank, size = 1, 2

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def once(self, name: str, make: Any) -> tuple[dict[Any, Any], dict[str, str]]:
        return {}, {"spec": self._spec}


def test_all_processes_read_the_commit_of_the_first(server: Hub) -> None:
    server.publish("lab/words", TRAINING)
    first = open_data("hf:lab/words,context=9,stream=yes")
    server.publish("lab/words", dict(zip(TRAINING, reversed(TRAINING.values()), strict=True)))
    second = open_data("hf:lab/words,context=9,stream=yes")
    assert not same(first, second)
    assert same(at_one_commit(second, Second(first.spec), open_data), first)


@pytest.mark.usefixtures("one_thread", "in_blocks")
def test_data_that_change_on_the_hub_do_not_change_in_a_run(
    server: Hub, tmp_path: Path, cli: Cli, language_model: str
) -> None:
    old = server.publish("lab/words", TRAINING)
    spec = "hf:lab/words,context=9,stream=yes"
    opened = open_data(spec)
    expected = opened.between(0, 50).all()
    run = tmp_path / "run"
    interrupted = build_of(language_model, spec, run)
    assert cli(*interrupted).code == 0
    new = server.publish("lab/words", dict(list(TRAINING.items())[1:]))
    assert all(torch.equal(*pair) for pair in zip(opened.between(0, 50).all(), expected, strict=True))
    assert {one.revision for one in server.asked} == {old}
    refused = cli(*interrupted)
    assert (refused.code, refused.out) == (2, "")
    assert f"revision={old}" in "".join(refused.err.split())
    assert f"revision={new}" in "".join(refused.err.split())
    assert cli("build", "--config", run, "--out", tmp_path / "again").code == 0
    assert_same_graph(run, tmp_path / "again")
    stored = load(run).provenance.request
    assert f"revision={old}" in stored.data
    server.asked.clear()
    assert cli("features", run, "--top", 1, "--data", f"{stored.data},samples=20").code == 0
    assert {one.revision for one in server.asked} == {old}


class KilledError(Exception):
    pass


def test_unfinished_work_on_another_commit_is_refused(
    server: Hub, tmp_path: Path, small_chunks: None
) -> None:
    network = CASES["gpt2"]().network.between(["ln2_out.0", "mlp_in.0"])
    spec = "hf:lab/words,context=6,samples=40,stream=yes"
    old = server.publish("lab/words", TRAINING)

    def kill(phase: str, done: int, total: int) -> None:
        if phase != "survey" and done > total / 2:
            raise KilledError

    with pytest.raises(KilledError):
        interbasis.build(network, open_data(spec), resume=tmp_path / "run", progress=kill)
    new = server.publish("lab/words", TRAINING)
    with pytest.raises(InterbasisError, match=f"revision of data = {old}, not {new};"):
        interbasis.build(network, open_data(spec), resume=tmp_path / "run")
    pinned = open_data(f"{spec},revision={old}")
    server.asked.clear()
    resumed = interbasis.build(network, pinned, resume=tmp_path / "run").graph
    assert_same_graph(
        resumed, interbasis.build(network, open_data("hf:lab/words,context=6,samples=40")).graph
    )


def test_a_connection_that_breaks_is_tried_again(server: Hub) -> None:
    server.publish("lab/words", FILES)
    streamed = open_data("hf:lab/words,context=9,part=all,stream=yes")
    server.broken_answers = 3
    assert same(streamed, open_data("hf:lab/words,context=9,part=all"))
    assert server.broken_answers == 0
    server.broken_answers = 10**6
    problem = r"^could not read data/part-0.parquet of the data set lab/words as a parquet file \(.*\); "
    with pytest.raises(InterbasisError, match=problem + "run .* again to resume"):
        open_data("hf:lab/words,context=9,part=all,stream=yes")


def test_a_hub_that_is_gone_is_one_sentence(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InterbasisError, match=r"^could not open .* lab/words \(http.* answer"):
        open_data("hf:lab/words,stream=yes")


BAD = {
    "no such data set": ("hf:lab/nothing,stream=yes", "data set lab/nothing .there is none on the"),
    "no such revision": ("hf:lab/words,stream=yes,revision=old", "lab/words at revision old .there is none"),
    "no name": ("hf:a/b/c,stream=yes", "could not open the data set a/b/c"),
    "a folder": ("hf:{tmp},stream=yes", "is a folder, which is read as it is; leave stream=yes out"),
    "no parquet files": ("hf:lab/empty,stream=yes", "hf:lab/empty has no parquet files"),
    "no parquet": ("hf:lab/broken,stream=yes", "broken.parquet of the data set lab/broken as a parquet file"),
    "stream what": ("hf:lab/words,stream=1", "expected stream=yes or no such option, not stream=1"),
    "stream a file": ("tokens:{tmp}/a.npy,stream=yes", "stream is an option of data sets of the Hub"),
    "documents": ("hf:lab/words,stream=yes,per=document", "requires the length of every document"),
    "no such column": ("hf:lab/words,stream=yes,column=ids", "has no column ids; it has other, input_ids"),
    "no counts": ("hf:lab/uncounted,stream=yes", "does not say how many tokens its row groups hold"),
    "no tokens": ("hf:lab/words,stream=yes,column=other", "expected lists of tokens in column 'other'"),
    "text without an end": ("hf:lab/text,stream=yes,tokenizer={tmp}/words", "add samples=N and part=all, or"),
    "text without a tokenizer": ("hf:lab/text,stream=yes,samples=2", "is text, so a tokenizer is needed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_streamed_is_one_sentence(server: Hub, tmp_path: Path, name: str) -> None:
    spec, problem = BAD[name]
    word_tokenizer(tmp_path / "words")
    server.publish("lab/words", FILES)
    server.publish("lab/empty", {"README.md": b"nothing"})
    server.publish("lab/broken", {"broken.parquet": b"PAR1 and something else"})
    server.publish("lab/text", {"a.parquet": parquet_bytes({"text": ["a b"] * 9})})
    uncounted = parquet_bytes({"input_ids": [[1, 2]] * 9}, write_statistics=False)
    server.publish("lab/uncounted", {"a.parquet": uncounted})
    with pytest.raises(InterbasisError, match=problem) as error:
        open_data(spec.format(tmp=tmp_path)).all()
    assert "\n" not in str(error.value)


def test_text_is_streamed_from_its_beginning(server: Hub, tmp_path: Path) -> None:
    """Up to the samples that are wanted, and once: tokens are kept."""
    folder = word_tokenizer(tmp_path / "words")
    texts = [" ".join("abcd"[k % 4] for k in range(n % 7)) for n in range(1200)]
    files = {f"train-{k}.parquet": parquet_bytes({"text": texts[600 * k :][:600]}, 300) for k in range(2)}
    server.publish("lab/text", files)
    spec = f"hf:lab/text,tokenizer={folder},context=4,samples=8"
    downloaded = open_data(spec)
    server.asked.clear()
    streamed = open_data(f"{spec},stream=yes")
    assert same(streamed, downloaded)
    assert groups_asked(server, files) == {("train-0.parquet", 0)}
    server.asked.clear()
    assert same(open_data(streamed.spec), downloaded)
    assert groups_asked(server, files) == set()
