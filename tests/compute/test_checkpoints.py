"""Work that is killed at any moment ends with the same bits as work that was not."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import interbasis
from cases import CASES
from command_line import Cli
from commands_at_once import Paused
from graphs import assert_same_graph
from interbasis import InterbasisError
from interbasis.analysis.stages import features
from interbasis.analysis.stored_results import load_result
from interbasis.base.version import VERSION
from interbasis.compute import checkpoints
from interbasis.compute.checkpoints import Checkpoint, Checkpoints
from interbasis.data import Batches
from interbasis.data.samples import Samples
from interbasis.graph.store import load
from interbasis.network.network import Network
from interbasis.run.run import open_run


class KilledError(Exception):
    pass


@pytest.fixture(autouse=True)
def save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")


def build_with_kills(
    network: Network, data: Tensor, run: Path, **settings: Any
) -> tuple[interbasis.InteractionGraph, int]:
    """Every attempt is stopped at its second report of progress after the survey, until one comes through."""
    for kills in range(1000):
        calls = iter(range(10**6))

        def stop(phase: str, done: int, total: int, calls: Iterator[int] = calls) -> None:
            if phase != "survey" and next(calls) == 1:
                raise KilledError

        try:
            return interbasis.build(network, data, progress=stop, resume=run, **settings).graph, kills
        except KilledError:
            continue
    raise AssertionError("no progress is made")


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("modadd-2-blocks", {"basis": "lib"}),
        ("modadd-2-blocks", {"basis": "gib", "edge_group": 3, "edge_method": "exact"}),
        ("relu", {"basis": "random", "edge_group": 4}),
        ("general", {"basis": "lib", "jacobian_sources": 2}),
        ("gelu", {"basis": "pca"}),
        ("gpt2", {"basis": "lib"}),
        ("llama", {"basis": "lib", "jacobian_queries": 2, "edge_group": 4}),
    ],
)
def test_a_build_that_is_killed_again_and_again_has_the_same_bits(
    tmp_path: Path, small_chunks: None, case: str, settings: dict[str, Any]
) -> None:
    network, data = CASES[case]().network, CASES[case]().inputs
    whole = interbasis.build(network, data, **settings).graph
    parts, kills = build_with_kills(network, data, tmp_path / "run", **settings)
    assert kills > 3
    assert_same_graph(whole, parts)
    parts.save(tmp_path / "run")
    assert not (tmp_path / "run/.resume").exists()


@pytest.mark.parametrize("case", ["modadd", "relu", "gpt2"])
def test_features_that_are_killed_again_and_again_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("interbasis.analysis.features.activations.CHUNK_BYTES", 40_000)
    network, data = CASES[case]().network, CASES[case]().inputs
    if case == "relu":
        data = (data, torch.arange(len(data)) % 3)
    run = interbasis.build(network, data).save(tmp_path / "run")
    request = features.FeaturesRequest(top=4, ends=2, bands=2, per_band=2)
    in_memory = open_run(load(run), network, data)
    whole = features.run(in_memory, request), in_memory.stored(features.ExamplesResult)
    reports, parts = set(), None

    def stop_at_something_new(*report: Any) -> None:
        if report not in reports:
            reports.add(report)
            raise KilledError

    while parts is None:
        try:
            parts = features.run(open_run(run, network, data, progress=stop_at_something_new), request)
        except KilledError:
            assert (run / ".resume/features").is_dir()
    assert len(reports) > 4
    assert parts == whole[0]
    assert load_result(run, features.ExamplesResult) == whole[1]
    assert not (run / ".resume").exists()


def test_other_settings_are_refused_with_old_and_new_value_and_a_remedy(
    tmp_path: Path, small_chunks: None
) -> None:
    network, data = CASES["relu"]().network, CASES["relu"]().inputs

    def stop(phase: str, done: int, total: int) -> None:
        if phase != "survey":
            raise KilledError

    with pytest.raises(KilledError):
        interbasis.build(network, data, resume=tmp_path, progress=stop)
    with pytest.raises(InterbasisError, match=r"basis = lib, not pca; .* delete .*\.resume/build"):
        interbasis.build(network, data, basis="pca", resume=tmp_path)
    with pytest.raises(InterbasisError, match="begun with data = "):
        interbasis.build(network, data[1:], resume=tmp_path)
    with pytest.raises(KilledError):
        interbasis.build(network, data, basis="pca", resume=tmp_path, restart=True, progress=stop)
    assert json.loads((tmp_path / ".resume/build/settings.json").read_text())["basis"] == "pca"


def test_work_that_version_0_1_0_began_is_refused(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, data = CASES["relu"]().network, CASES["relu"]().inputs

    def stop(phase: str, done: int, total: int) -> None:
        if phase != "survey":
            raise KilledError

    def work() -> None:
        interbasis.build(network, data, resume=tmp_path / "build", progress=stop)

    run = interbasis.build(network, data).save(tmp_path / "run")

    def features_of_run() -> None:
        features.run(open_run(run, network, data, progress=stop), features.FeaturesRequest())

    for task, begin, folder in (("build", work, tmp_path / "build"), ("features", features_of_run, run)):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "VERSION", "0.1.0")
            with pytest.raises(KilledError):
                begin()
        before = sorted((folder / ".resume" / task).iterdir())
        with pytest.raises(InterbasisError) as refusal:
            begin()
        message = str(refusal.value)
        assert message.startswith(f"{folder} holds an unfinished {task} ")
        assert f"interbasis = 0.1.0, not {VERSION};" in message
        assert f"delete {folder}/.resume/{task} " in message
        assert sorted((folder / ".resume" / task).iterdir()) == before


def test_a_fold_goes_on_behind_what_is_saved(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, "sums", {"a": 1})
    assert not kept.unfinished
    assert not (tmp_path / ".resume").exists()
    part = kept.checkpoint("pass", total=10)
    part.save(4, lambda: ({"x": torch.arange(3.0)}, {"count": 7}))
    again = Checkpoints(tmp_path, "sums", {"a": 1})
    part = again.checkpoint("pass", total=10)
    assert (part.done, part.values, part.tensors["x"].tolist()) == (4, {"count": 7}, [0, 1, 2])
    assert not part.complete
    part.save(10, lambda: ({}, {}))
    assert again.checkpoint("pass", total=10).complete
    made = []
    for _ in range(2):
        again.remember("once", lambda: made.append(1) or ({}, {"answer": 42}))
    assert made == [1]
    again.finish()
    assert list(tmp_path.iterdir()) == []


def test_results_are_remembered_by_name(tmp_path: Path) -> None:
    calls = []

    def result(number: int) -> tuple[dict[str, Tensor], dict[str, int]]:
        calls.append(number)
        return {"x": torch.arange(number)}, {"square": number**2}

    for _ in range(2):
        part = Checkpoints(tmp_path, "search").checkpoint("trials", total=3)
        for number in (3, 1, 3, 10):
            tensors, values = part.remember(str(number), partial(result, number))
            assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"x": list(range(number))}
            assert values == {"square": number**2}
        assert part.remember("nothing but a value", lambda: ({}, {"a": 1})) == ({}, {"a": 1})
        assert part.remember("1", lambda: ({}, {}))[1] == {"square": 1}
    assert calls == [3, 1, 10]
    assert Checkpoints(tmp_path, "search").checkpoint("trials", total=4).complete
    alone = Checkpoint()
    assert alone.remember("a", lambda: ({}, {"b": 2})) == ({}, {"b": 2})
    assert alone.remember("a", lambda: ({}, {"b": 3})) == ({}, {"b": 2})


def test_what_is_read_back_lies_where_a_fresh_tensor_does(tmp_path: Path) -> None:
    """BLAS rounds differently elsewhere; see the head of checkpoints.py."""
    part = Checkpoints(tmp_path, "sums").checkpoint("pass", total=9)
    part.save(3, lambda: ({name: torch.arange(7.0).double() for name in "abc"}, {"n": 1}))
    with safe_open(tmp_path / ".resume/sums/pass.safetensors", "pt") as file:
        assert any(file.get_tensor(name).data_ptr() % 16 for name in "abc")
    found = Checkpoints(tmp_path, "sums").checkpoint("pass", total=9).tensors
    assert [tensor.data_ptr() % 64 for tensor in found.values()] == [0, 0, 0]


def test_parts_of_larger_tensors_are_kept_alone(tmp_path: Path) -> None:
    part, large = Checkpoints(tmp_path, "sums").checkpoint("pass", total=9), torch.arange(24.0).view(4, 6)
    part.save(3, lambda: ({"row": large[1], "column": large[:, 2], "turned": large.T}, {}))
    found = Checkpoints(tmp_path, "sums").checkpoint("pass", total=9).tensors
    assert torch.equal(found["row"], large[1])
    assert torch.equal(found["column"], large[:, 2])
    assert torch.equal(found["turned"], large.T)


def test_states_are_not_written_more_often_than_is_cheap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "1000")
    part = Checkpoints(tmp_path, "sums").checkpoint("pass", total=10)
    part.save(4, lambda: pytest.fail("it is not due yet"))
    part.save(10, lambda: ({}, {}))
    assert (tmp_path / ".resume/sums/pass.safetensors").is_file()


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, "sums", {"a": 1})
    kept.checkpoint("pass").save(1, lambda: ({"x": torch.ones(9)}, {}))
    file = tmp_path / ".resume/sums/pass.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(InterbasisError, match=r"delete .*/sums to start again"):
        kept.checkpoint("pass")
    (tmp_path / ".resume/sums/settings.json").write_text("[")
    with pytest.raises(InterbasisError, match="delete it to start again"):
        Checkpoints(tmp_path, "sums", {"a": 1})


def test_a_flipped_bit_of_any_byte_of_a_state_is_refused(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, "sums", {"a": 1})
    kept.checkpoint("pass", 9).save(4, lambda: ({"x": torch.ones(3), "n": torch.tensor([7])}, {"count": 7}))
    file = tmp_path / ".resume/sums/pass.safetensors"
    whole = file.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        with pytest.raises(InterbasisError, match=r"not readable as unfinished.*delete .*/sums"):
            kept.checkpoint("pass", 9)


def flip_a_bit_of_the_tensors(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("options", [(), ("--shard", "1/2")])
def test_a_build_refuses_a_state_with_a_flipped_bit(
    cli: Cli,
    tmp_path: Path,
    small_addition: Path,
    one_thread: None,
    options: tuple[str, ...],
) -> None:
    build = "build", f"modadd:{small_addition}", "--threads", 1, *options, "--out", tmp_path / "run"
    Paused(tmp_path / "flag", *build).kill()
    (state,) = (tmp_path / "run/.resume").rglob("*.safetensors")
    flip_a_bit_of_the_tensors(state)
    ended = cli(*build)
    assert ended.code == 2
    assert "not readable as unfinished work (its SHA-256" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_merge_refuses_a_shard_with_a_flipped_bit(cli: Cli, tmp_path: Path, small_addition: Path) -> None:
    run = tmp_path / "run"
    for number in (1, 2):
        assert cli("build", f"modadd:{small_addition}", "--shard", f"{number}/2", "--out", run).code == 0
    flip_a_bit_of_the_tensors(run / "shards/round-1.shard-1-of-2.safetensors")
    ended = cli("merge", run / "shards", "--out", run)
    assert ended.code == 2
    assert "shard-1-of-2.safetensors is changed" in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("start", [0, 1, 6, 12, 23])
def test_chunks_behind_a_start_are_those_of_the_whole_pass(start: int) -> None:
    x, y = torch.arange(23.0)[:, None], torch.arange(23)
    read = []

    def reader(first: int, last: int) -> tuple[Tensor, Tensor]:
        read.append(first)
        return x[first:last], y[first:last]

    for data in ((x, y), [(x[:7], y[:7]), (x[7:], y[7:])], Samples(23, reader, batch=5)):
        found = list(Batches(data, offset=100).labelled_chunks(6, start))
        assert torch.cat([labels for _, _, labels in found] or [y[:0]]).tolist() == list(range(start, 23))
        assert [first for first, _, _ in found] == list(range(100 + start, 123, 6))
    assert min(read, default=start) == start


def test_a_full_disk_is_one_sentence_and_leaves_the_earlier_state(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, "sums")
    kept.checkpoint("pass", 9).save(3, lambda: ({"x": torch.ones(5)}, {}))
    code = f"""
import resource, torch
from interbasis.base.errors import InterbasisError
from interbasis.compute import checkpoints
from interbasis.compute.checkpoints import Checkpoint, Checkpoints
from interbasis_studies.training.modadd import Recipe, initial_weights
part = Checkpoints({str(tmp_path)!r}, "sums").checkpoint("pass", 9)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    part.save(6, lambda: ({{"x": torch.ones(50_000)}}, {{}}))
except InterbasisError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "could not write" in found.stdout
    assert "before is untouched" in found.stdout
    assert len(found.stdout.splitlines()) == 1
    assert kept.checkpoint("pass", 9).done == 3
    assert len(list((tmp_path / ".resume/sums").iterdir())) == 2


def test_a_kill_in_the_middle_of_writing_a_graph_is_no_obstacle(tmp_path: Path) -> None:
    """What was written until then is left behind, and taken away by the next that saves."""
    case, run = CASES["relu"](), tmp_path / "run"
    interbasis.build(case.network, case.inputs).save(tmp_path / "whole")
    code = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import interbasis, interbasis.graph.store
from cases import CASES
def killed(path, entries, metadata):
    path.write_bytes(b"half")
    (Path(path).parent / ".tmpAbC123").write_bytes(b"half")  # as safetensors names its own
    os.kill(os.getpid(), signal.SIGKILL)
interbasis.graph.store.write_tensors = killed
case = CASES["relu"]()
interbasis.build(case.network, case.inputs).save({str(run)!r})
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    left, half = sorted(path.name for path in run.iterdir())
    assert left == ".graph.lock"
    assert half.startswith(".graph.safetensors.new.")
    interbasis.build(case.network, case.inputs).save(run)
    names = [sorted(path.name for path in folder.iterdir()) for folder in (run, tmp_path / "whole")]
    assert names[0] == names[1]
