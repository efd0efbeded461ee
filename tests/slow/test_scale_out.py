"""Builds by several processes and in shards, on real models; processes that are killed at random moments."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import torch

from command_line import run_command
from compute.torchrun import children, ended, torchrun
from graphs import assert_same_graph, tensors_of
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import load_result
from tiny_models import random_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

KILLS = int(os.environ.get("INTERBASIS_KILLS", "20"))
"""Fewer are for trying the test itself."""
MAX_SECONDS_TO_END = 30
"""How long the other processes may go on after one was killed."""


def command(*arguments: object) -> str:
    done = run_command(*arguments)
    assert done.code == 0, done.err
    return done.out


def requests(name: str, folder: Path, shared: Path) -> tuple[list[Any], list[Any]]:
    """Arguments of build and ablate."""
    if name == "modadd":
        return ["modadd"], ["--data", "modadd,samples=2000"]
    if name == "cifar10":
        data = f"cifar10:{shared}/cifar10/cifar10.npz"
        command("train", "cifar10", "--data", data, "--epochs", 1, "--out", folder / "mlp.safetensors")
        build = [f"mlp:{folder}/mlp.safetensors", "--data", f"{data},samples=10000"]
        return build, ["--data", f"{data},samples=1000"]
    if name == "tinystories":
        model = shared / "tinystories-gpt-280k"
        data = f"tokens:{model}/tokens_train.uint16,context=128,samples=48"
        test = f"tokens:{model}/tokens_test.uint16,context=128,samples=16"
        return [f"hf:{model}", "--data", data, "--dtype", "float64"], [
            "--data", test, "--sections", "attn_in.2,mlp_in.3",
        ]  # fmt: skip
    model = folder / "llama"
    random_model("llama").save_pretrained(model)
    tokens = torch.randint(23, (1000,), generator=torch.Generator().manual_seed(0))
    (folder / "train.uint16").write_bytes(tokens.to(torch.uint16).numpy().tobytes())
    (folder / "test.uint16").write_bytes(tokens.flip(0).to(torch.uint16).numpy().tobytes())
    data = f"tokens:{folder}/train.uint16,context=8"
    return [f"hf:{model}", "--data", data, "--dtype", "float64"], ["--tolerance", 0.01]


def difference(one: Path, other: Path) -> float:
    """The largest relative difference of bases and edges."""
    a, b = tensors_of(one), tensors_of(other)
    assert a.keys() == b.keys()
    return max(((a[name] - b[name]).norm() / a[name].norm().clamp_min(1e-300)).item() for name in a)


def edges_required(run: Path) -> dict[str, int]:
    result = load_result(run, AblationResult)
    assert result is not None
    return {name: section.count for name, section in result.sections.items()}


@pytest.mark.parametrize("name", ["modadd", "cifar10", "tinystories", "rotary"])
def test_processes_and_shards_give_one_result(
    name: str, tmp_path: Path, shared: Path, record_property: Callable[[str, object], None]
) -> None:
    model, ablation = requests(name, tmp_path, shared)
    build = ["build", *model, "--threads", 1]
    command(*build, "--out", tmp_path / "1")
    command("ablate", tmp_path / "1", *ablation)
    found, required = {}, {"1 process": edges_required(tmp_path / "1")}
    for processes in (2, 4):
        run = tmp_path / str(processes)
        ended(torchrun(processes, "-m", "interbasis", *build, "--out", run), 900)
        ended(torchrun(processes, "-m", "interbasis", "ablate", run, *ablation), 900)
        found[f"{processes} processes"] = difference(tmp_path / "1", run)
        required[f"{processes} processes"] = edges_required(run)
    order = random.Random(0)
    for shards in (1, 3, 7):
        run = tmp_path / f"shards{shards}"
        rounds = 0
        while not (run / "config.json").is_file():
            rounds += 1
            for number in order.sample(range(1, shards + 1), shards):
                command(*build, "--out", run, "--shard", f"{number}/{shards}")
            files = [*(run / "shards").glob(f"round-{rounds}.shard-*")]
            command("merge", *order.sample(files, shards), "--out", run)
        found[f"{shards} shards in {rounds} rounds"] = difference(tmp_path / "1", run)
    command("ablate", run, *ablation)
    required[f"{shards} shards"] = edges_required(run)
    text = f"{name}: relative differences {found}, edges required {required}"
    record_property("result", text)
    print(text)
    assert max(found.values()) <= 1e-10
    assert all(counts == required["1 process"] for counts in required.values())


def test_twenty_kills_of_a_random_process(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Of three that build and ablate modular addition: a kill at a random moment, then the next start."""
    chance = random.Random(20)
    commands = {
        "build": ["build", "modadd", "--threads", 1, "--out"],
        "ablate": ["ablate", "--data", "modadd,samples=500", "--tolerance", 0.01],
    }

    def start(name: str, run: Path) -> Popen[str]:
        verb, *rest = commands[name]
        arguments = [verb, *rest, run] if name == "build" else [verb, run, *rest]
        return torchrun(3, "-m", "interbasis", *arguments, INTERBASIS_SAVE_EVERY="0")

    seconds, results = {}, {"build": "config.json", "ablate": "ablation.json"}
    for name in commands:
        began = time.monotonic()
        ended(start(name, tmp_path / "whole"), 600)
        seconds[name] = time.monotonic() - began
    kills = {"within the work": 0, "before it": 0, "too late": 0}
    slowest, sentences = 0.0, 0
    for name in commands:
        run, done = tmp_path / "parts", 0
        while done < KILLS // 2:
            process = start(name, run)
            time.sleep(chance.uniform(0.25, 0.85) * seconds[name])
            workers = children(process)
            if process.poll() is not None or (run / results[name]).is_file() or not workers:
                process.communicate(timeout=600)
                kills["too late"] += 1
                (run / results[name]).unlink(missing_ok=True)
                continue
            begun = any((run / ".resume").glob("*/**/*.safetensors"))
            os.kill(chance.choice(workers), signal.SIGKILL)
            killed = time.monotonic()
            _, err = process.communicate(timeout=600)
            slowest = max(slowest, time.monotonic() - killed)
            assert process.returncode != 0
            sentences += " ".join(err.split()).count("ended; run the same command again to resume")
            kills["within the work" if begun else "before it"] += 1
            done += 1
        ended(start(name, run), 600)
    text = f"{kills}, the others ended within {slowest:.1f} s, {sentences} sentences of the two others"
    record_property("kills", text)
    print(text)
    assert sentences == 2 * (kills["within the work"] + kills["before it"])
    assert slowest <= MAX_SECONDS_TO_END
    assert_same_graph(tmp_path / "whole", tmp_path / "parts")
    whole, parts = ((tmp_path / run / "ablation.json").read_text() for run in ("whole", "parts"))
    assert whole == parts
