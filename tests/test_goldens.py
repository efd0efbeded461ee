"""Runs that an earlier version stored: they open, and their commands give the same numbers today."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from command_line import Cli
from goldens import recipes
from interbasis.graph.store import load

MAX_RELATIVE_ERROR = 1e-10
"""Sums may be added up in another order, and another processor rounds differently."""
NOT_COMPARED = {"timings", "processor_timings", "versions", "trusted", "label"}
"""What a repetition may change; a label is a sentence about the evidence, whose numbers are compared."""


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_the_commands_give_the_same_numbers(name: str, tmp_path: Path) -> None:
    stored, made = recipes.RUNS / name, recipes.make(name, tmp_path)
    before, now = (load(run) for run in (stored, made))
    assert now.layer_names == before.layer_names
    for old, new in zip(before.layers, now.layers, strict=True):
        assert new.features == old.features
        for kind in ("transform", "inverse", "eigenvalues", "variances"):
            same(getattr(new, kind), getattr(old, kind))
    for old, new in zip(before.edges, now.edges, strict=True):
        same(new, old)
    for result in sorted(path for path in stored.rglob("*.json") if path.name != "config.json"):
        old, new = (
            json.loads((run / result.relative_to(stored)).read_text())["result"] for run in (stored, made)
        )
        assert differences(old, new, result.stem) == []


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_stored_runs_are_shown(name: str, cli: Cli) -> None:
    shown = cli("show", recipes.RUNS / name, "--json").json
    assert shown["layers"]


def same(new: torch.Tensor, old: torch.Tensor) -> None:
    assert new.shape == old.shape
    assert (new - old).abs().max() <= MAX_RELATIVE_ERROR * old.abs().max()


def differences(old: object, new: object, where: str) -> list[str]:
    """Places where two results differ; numbers may differ by rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [name for name in old if name not in NOT_COMPARED]
        missing = [f"{where}.{name} is missing" for name in names if name not in new]
        return missing + [d for n in names if n in new for d in differences(old[n], new[n], f"{where}.{n}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            d for k, pair in enumerate(zip(old, new, strict=True)) for d in differences(*pair, f"{where}.{k}")
        ]
    if isinstance(old, float) and isinstance(new, float | int):
        return [] if math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-8) else [f"{where}: {old} and {new}"]
    return [] if old == new else [f"{where}: {old} and {new}"]


@pytest.mark.usefixtures("one_thread")
def test_unfinished_work_of_an_earlier_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    interrupted, in_shards = ([*commands[0]] for commands in recipes.INTERRUPTED.values())
    with recipes.inputs_in(tmp_path):
        for name in recipes.INTERRUPTED:
            shutil.copytree(recipes.UNFINISHED / name, tmp_path / name)
        resumed = recipes.run(*interrupted, folder="build")
        same_shard, merged = (recipes.run(*words, folder="shards") for words in (in_shards, ["merge"]))
    for refused in (resumed, same_shard, merged):
        assert refused.code == 2
        assert refused.err.count("\n") == 1, refused.err
    assert "unfinished build" in resumed.err
    assert "interbasis = 0.1.0, not" in resumed.err
    assert "delete build/.resume/build " in resumed.err
    assert "was computed with interbasis = 0.1.0, " in same_shard.err
    assert "lacks the shard 2/2" in merged.err
