"""Ablations within a limit on memory: the same counts, a measured peak, and refusals before any work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interbasis
from cases import CASES
from command_line import Cli
from graphs import assert_same_graph
from interbasis import InterbasisError
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.ablation.memory import AblationPlan
from interbasis.graph.store import load_identified

MEASURED = """
import atexit, json, sys
from interbasis.cli import main
from interbasis.base.memory import peak_bytes
atexit.register(lambda: print(json.dumps({"peak": peak_bytes()})))  # main ends the process
main(sys.argv[1:])
"""
LIMIT = 550_000_000
"""Bytes: one sample of the model below takes 12 MB, the process with its model 430 MB."""
ROBUST = 100_000_000
"""More for robust counts: with gradients a sample takes 40 MB."""


@pytest.mark.parametrize("case", ["gelu", "modadd", "gpt2"])
def test_scores_do_not_depend_on_the_plan(case: str) -> None:
    network, data = CASES[case]().network.double(), CASES[case]().inputs
    labels = network(data).argmax(-1)
    graph = interbasis.build(network, data).graph
    whole = Evaluation(network, graph, (data, labels), "cross_entropy")
    parts = Evaluation(
        network, graph, (data, labels), "cross_entropy", plan=AblationPlan(3, cache_bytes=1000)
    )
    for k, edges in enumerate(graph.edges):
        mask = top_edges(edges, edges.numel() // 3, graph.layers[k].constant)
        one, other = whole.edges({k: mask}).losses, parts.edges({k: mask}).losses
        assert (one - other).abs().max() <= 1e-10 * one.abs().max()
        one, other = whole.nodes(k, 2).losses, parts.nodes(k, 2).losses
        assert (one - other).abs().max() <= 1e-10 * one.abs().max()


def test_the_command_finds_the_same_counts(tmp_path: Path, cli: Cli, small_addition: Path) -> None:
    run = tmp_path / "run"
    assert cli("build", f"modadd:{small_addition}", "--out", run).code == 0
    command = ["ablate", run, "--edges", "--nodes", "--tolerance", 0.1, "--json"]
    wanted = cli(*command).json
    (run / "ablation.json").unlink()
    found = cli(*command, "--memory", "100GB").json
    assert {k: v["count"] for k, v in found["sections"].items()} == {
        k: v["count"] for k, v in wanted["sections"].items()
    }
    assert {k: v["count"] for k, v in found["layers"].items()} == {
        k: v["count"] for k, v in wanted["layers"].items()
    }
    assert_same_graph(load_identified(run, in_memory=False)[0], run)


def test_what_does_not_fit_is_refused_before_work_begins(
    tmp_path: Path, cli: Cli, small_addition: Path
) -> None:
    run = tmp_path / "run"
    assert cli("build", f"modadd:{small_addition}", "--out", run).code == 0
    for options, problem in (
        (["--memory", "1MB"], "--memory 1.0 MB is too little for this ablation, which requires about"),
        (["--memory", "much"], "expected an amount of memory as 8GB, 500MB or 7.5GiB, received 'much'"),
        (["--memory", "1MB", "--robust"], "leave out --robust, or choose narrower sections with --sections"),
    ):
        code, out, err = cli("ablate", run, *options)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert problem in err
        assert not (run / "ablation.json").exists()
    _, _, err = cli("ablate", run, "--memory", "1MB")
    needed = err.split("give --memory ")[1].split(" or more")[0]
    assert needed.endswith("GB")
    assert "for one sample of 3 positions" in err


def test_a_stored_graph_that_was_changed_is_refused(tmp_path: Path) -> None:
    case = CASES["relu"]()
    interbasis.build(case.network, case.inputs).save(tmp_path / "run")
    file = next((tmp_path / "run").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InterbasisError, match="is truncated or changed"):
        load_identified(tmp_path / "run", in_memory=False)


@pytest.fixture(scope="module")
def language_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """A model whose logits weigh most, and its graph."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from command_line import run_command

    folder = tmp_path_factory.mktemp("memory")
    sizes = {"n_embd": 24, "n_layer": 1, "n_head": 2, "n_positions": 128, "vocab_size": 6000}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)).save_pretrained(folder / "model")
    np.random.default_rng(0).integers(0, 6000, 60 * 129).astype(np.uint16).tofile(folder / "tokens.uint16")
    data = f"tokens:{folder / 'tokens.uint16'},context=128,part=all"
    command = ["build", f"hf:{folder / 'model'}", "--data", f"{data},samples=4", "--out", folder / "run"]
    assert run_command(*command, "--layers", "ln2.0,ln2_out.0").code == 0
    return folder / "run", data


def ablated(run: Path, data: str, *options: str) -> tuple[int, dict[str, Any]]:
    """The peak of a process that ablates one section, and its result."""
    command = ["ablate", run, "--data", data, "--tolerance", 1, "--no-stable", "--json", *options]
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, command)],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    *printed, last = ended.stdout.splitlines()
    return json.loads(last)["peak"], json.loads("\n".join(printed))


def test_the_peak_stays_below_the_limit(language_run: tuple[Any, str]) -> None:
    run, data = language_run
    peak, result = ablated(run, f"{data},samples=24", "--memory", f"{LIMIT}B")
    print(f"limit {LIMIT:,}, peak {peak:,}")
    assert peak <= LIMIT
    assert result["sections"]["ln2.0"]["count"] >= 0


@pytest.mark.slow
def test_robust_counts_stay_below_the_limit(language_run: tuple[Any, str]) -> None:
    run, data = language_run
    limit = LIMIT + ROBUST
    peak, result = ablated(run, f"{data},samples=24", "--memory", f"{limit}B", "--robust")
    print(f"limit {limit:,}, peak {peak:,}")
    assert peak <= limit
    section = result["sections"]["ln2.0"]
    assert section["robust"]["count"] >= section["count"] >= 0


@pytest.mark.slow
def test_without_a_limit_the_same_takes_more(language_run: tuple[Any, str]) -> None:
    free, wanted = ablated(*language_run)
    limited, found = ablated(*language_run, "--memory", f"{LIMIT}B")
    print(f"peak {free:,} without a limit, {limited:,} with {LIMIT:,}")
    assert free > 1.4 * LIMIT
    assert limited <= LIMIT
    assert found["sections"]["ln2.0"]["count"] == wanted["sections"]["ln2.0"]["count"]
