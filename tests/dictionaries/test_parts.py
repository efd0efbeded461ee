"""Graphs between dictionaries by several processes, in shards and in parts: the bits of one process."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import interbasis
from command_line import Cli
from compute.in_shards import in_shards
from compute.torchrun import TESTS, ended, torchrun
from interbasis import InterbasisError, dictionaries
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.dictionaries import strongest_edges
from interbasis.dictionaries.build import measure_edges
from interbasis.dictionaries.edge_sums import DictionaryEdgeSettings, EdgePart, PairOfDictionaries
from interbasis.dictionaries.graph import load_graph
from interbasis.dictionaries.memory import PairMemory, edge_passes, pair_memory
from interbasis.graph.store import graph_digest
from interbasis.lib.memory import RESERVE
from interbasis.numerics.integration import rule
from placed_dictionaries import dictionary, placed
from tiny_models import random_model

TOKENS = torch.randint(0, 23, (9, 7), generator=torch.Generator().manual_seed(6))


@pytest.mark.usefixtures("one_thread", "in_blocks")
@pytest.mark.parametrize("only_dictionaries", [True, False])
def test_shards_have_the_bits_of_one_process(tmp_path: Path, only_dictionaries: bool) -> None:
    network = interbasis.from_hf(random_model("gpt2")).to(torch.float64)
    given = {"ln1.0": dictionary(12, 40, "topk", 1), "mlp_in.0": dictionary(12, 30, "relu", 2)}

    def build(**options: Any) -> Any:
        chosen: dict[str, Any] = {
            "dictionaries": given,
            "only_dictionaries": only_dictionaries,
            "edge_positions": 4,
        }
        return interbasis.build(network, TOKENS, **chosen, progress=False, **options).graph

    alone = build()
    merged, taken = in_shards(tmp_path, 3, build)
    assert [names[0] for names in taken] == (
        ["edges"]
        if only_dictionaries
        else ["statistics of the data", *(f"Jacobian at attn_in.{k}" for k in (1, 0)), "edges"]
    )
    for name, tensor in alone._tensors().items():
        assert torch.equal(tensor, merged._tensors()[name]), name
    assert merged.header.pairs == alone.header.pairs
    given["mlp_in.0"] = dictionary(12, 30, "relu", 3)
    with pytest.raises(InterbasisError, match="with dictionaries = "):
        in_shards(tmp_path, 3, build)


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    """Options that name two dictionaries of the small model."""
    places = ("attn_in.0", "unembed")
    for seed, place in enumerate(places):
        dictionaries.save(dictionary(16, 40, "topk", seed).to(torch.float32), tmp_path / place)
    return [word for place in places for word in ("--dictionary", f"{place}={tmp_path / place}")]


@pytest.mark.usefixtures("one_thread", "in_blocks")
def test_commands_by_two_ranks_and_shards_build_the_run_of_one_process(
    cli: Cli, small_addition: Path, saved: list[str], tmp_path: Path
) -> None:
    """With LIB's basis at the layer between; the run builds itself again, and shards of others are named."""
    build = ["build", f"modadd:{small_addition}", *saved, "--no-only-dictionaries", "--threads", 1, "--out"]
    assert cli(*build, tmp_path / "one").code == 0
    assert load_graph(tmp_path / "one").places == ["attn_in.0", "mlp_in.0", "unembed"]
    ended(torchrun(2, TESTS / "compute/in_blocks.py", *build, tmp_path / "two"))
    run = tmp_path / "shards"
    listed = cli("shards", *build[1:], run, "--shards", 2, "--json").json["rounds"]
    assert [names["passes"][0] for names in listed] == [
        "statistics of the data", "Jacobian at attn_in.0", "edges",
    ]  # fmt: skip
    for shard_round in listed:
        for number in (2, 1):
            words = shard_round["job"].replace("SHARD/", f"{number}/").split()[1:]
            assert cli(*words).code == 0
        told = cli(*shard_round["merge"].split()[1:])
        assert told.code == 0, told.err
    assert "holds a finished run" in cli(*words).err
    assert cli("build", "--config", tmp_path / "one", "--threads", 1, "--out", tmp_path / "again").code == 0
    digests = {graph_digest(tmp_path / name) for name in ("one", "two", "shards", "again")}
    assert len(digests) == 1
    assert not (run / "shards").exists()
    told = cli("build", f"modadd:{small_addition}", "--no-only-dictionaries", "--out", tmp_path / "x")
    assert "no use without --dictionary" in " ".join(told.err.split())


def memory_of(limit: int, *sizes: tuple[int, int]) -> Any:
    pairs = [
        PairMemory(f"from {k} to {k + 1}", rows, row, copies=1, products=1000, working=500, stored=50)
        for k, (rows, row) in enumerate(sizes)
    ]
    return edge_passes(pairs, limit, 300)


def test_pairs_are_divided_so_that_each_pass_fits() -> None:
    """Every target feature is in one pass, and no pass takes more than the limit."""
    sizes = (100, 40), (300, 90), (10, 40)
    for limit in (7000, 9000, 20_000, 100_000):
        passes = memory_of(limit, *sizes)
        rows: list[list[int]] = [[], [], []]
        for parts in passes:
            taken = 300 + 500 + 3 * 50
            for part in parts:
                taken += 1000 + (part.rows.stop - part.rows.start) * sizes[part.pair][1]
                rows[part.pair] += range(part.rows.start, part.rows.stop)
            assert taken <= (1 - RESERVE) * limit
        assert rows == [list(range(count)) for count, _ in sizes]
    assert len(memory_of(100_000, *sizes)) == 1
    with pytest.raises(InterbasisError, match=r"--memory 2\.2 KB.* from 1 to 2, which"):
        memory_of(2200, *sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_have_the_bits_of_one_pass(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole pairs and parts of them, through attention and not, with sampled positions, few edges kept."""
    monkeypatch.setattr(strongest_edges, "MAX_STORED_EDGES", 200)
    monkeypatch.setattr(strongest_edges, "MAX_SEARCHED", 300)
    network = interbasis.from_hf(random_model("gpt2")).to(torch.float64)
    places = ("ln1.0", "lib attn_in.0", "ln2.0", "mlp_in.0", "ln1.1")
    layers = [placed(network, place, "topk", seed) for seed, place in enumerate(places)]
    network = network.to(dtype)
    layers = [type(a).from_network(network, a.name, a.dictionary) for a in layers]
    settings = DictionaryEdgeSettings(rule("gradient"), positions=3)
    executor, data = Executor(network), Batches(TOKENS)
    pairs = [PairOfDictionaries(network, a, b, settings) for a, b in pairwise(layers)]
    sizes = pair_memory(pairs, data, executor)
    held = max(p.working for p in sizes) + sum(p.stored for p in sizes)
    monkeypatch.setattr("interbasis.dictionaries.build.resident_bytes", lambda: 0)
    passes: list[list[list[EdgePart]]] = []

    def divided(*arguments: Any) -> list[list[EdgePart]]:
        passes.append(edge_passes(*arguments))
        return passes[-1]

    monkeypatch.setattr("interbasis.dictionaries.build.edge_passes", divided)
    statistics, whole = measure_edges(layers, settings, data, executor)
    for room in (max(p.products + p.row * p.rows for p in sizes), max(p.products + 7 * p.row for p in sizes)):
        again, parts = measure_edges(layers, settings, data, executor, int((held + room) / (1 - RESERVE)) + 2)
        assert len(passes[-1]) > 1
        assert all(torch.equal(a.square, b.square) for a, b in zip(statistics, again, strict=True))
        for (_, a, numbers), (_, b, other) in zip(whole, parts, strict=True):
            assert numbers == other
            assert all(torch.equal(getattr(a, name), getattr(b, name)) for name in a.FIELDS)
    assert any(part.rows != slice(0, layers[part.pair + 1].features) for part in passes[-1][0])
    with pytest.raises(InterbasisError, match=r"from ln1\.0 to attn_in\.0, which"):
        measure_edges(layers, settings, data, executor, held)


def test_memory_that_does_not_suffice_is_refused_in_one_sentence(
    cli: Cli, small_addition: Path, saved: list[str], tmp_path: Path
) -> None:
    build = ["build", f"modadd:{small_addition}", *saved, "--out", tmp_path / "run"]
    told = cli(*build, "--memory", "50MB")
    assert told.code == 2
    for words in ("--memory 50 MB", "from attn_in.0 to unembed", "in 64 parts", "or more"):
        assert words in " ".join(told.err.split())
    told = cli(*build, "--memory", "50MB", "--shard", "1/2")
    assert "--shard cannot be" in " ".join(told.err.split())
    assert not (tmp_path / "run").exists()
