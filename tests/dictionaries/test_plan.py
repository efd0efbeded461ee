"""Plans of graphs between dictionaries, from a short trial."""

from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Cli
from interbasis import dictionaries
from placed_dictionaries import dictionary

PHASES = ("survey", "bases", "edges", "fixed")


@pytest.fixture
def command(tmp_path: Path) -> list[Any]:
    """A plan of the model that comes with interbasis, with two dictionaries."""
    places = ("attn_in.0", "unembed")
    for seed, place in enumerate(places):
        dictionaries.save(dictionary(128, 300, "topk", seed).to(torch.float32), tmp_path / place)
    named = [word for place in places for word in ("--dictionary", f"{place}={tmp_path / place}")]
    return ["plan", "modadd", *named]


def test_a_plan_has_time_memory_and_disk(cli: Cli, command: list[Any]) -> None:
    plan = cli(*command, "--json").json
    assert plan["samples"] * plan["positions"] == 3830 * 3
    assert plan["bases"]["wall"] == 0
    assert all(plan[phase]["processor"] > 0 for phase in ("survey", "edges", "forward"))
    pairs = 300 * 303
    assert 48 * pairs <= plan["disk"] < 100 * pairs
    assert plan["unfinished"] == 16 * 24 * pairs
    assert plan["memory"] > 1e8
    sampled = cli(*command, "--edge-positions", 1, "--json").json
    assert sampled["unfinished"] == 16 * 32 * pairs
    printed = " ".join(cli(*command, "--nodes", 2).out.split())
    assert "edges, sums over the data" in printed
    assert "2 devices" in printed


def test_more_tokens_take_longer_in_proportion(cli: Cli, command: list[Any]) -> None:
    few, many = (cli(*command, "--tokens", n * 3 * 1000, "--json").json for n in (1, 1000))
    assert (few["samples"], many["samples"]) == (1000, 1_000_000)
    assert many["edges"]["processor"] > 100 * few["edges"]["processor"]
    assert many["memory"] == pytest.approx(few["memory"], rel=0.5)
    assert many["disk"] == few["disk"]


def test_bases_of_lib_are_planned_for(cli: Cli, command: list[Any]) -> None:
    plain, lib = (cli(*command, *more, "--json").json for more in ([], ["--no-only-dictionaries"]))
    assert lib["bases"]["processor"] > 0
    assert lib["disk"] > plain["disk"]
