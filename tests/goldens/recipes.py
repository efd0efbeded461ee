"""Small runs whose numbers are stored: the commands that make them, from models and data that are stored too.

    python tests/goldens/recipes.py inputs     writes the models and the data (once)
    python tests/goldens/recipes.py runs       writes the runs, with the code of this working tree
    python tests/goldens/recipes.py unfinished writes builds that are not finished: one interrupted, one shard

The test beside this file repeats the commands and compares. Store runs again only where a number was wrong.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from command_line import Ended

FOLDER = Path(__file__).parent
INPUTS, RUNS, UNFINISHED = FOLDER / "inputs", FOLDER / "stored", FOLDER / "unfinished"

ROWS = ["mlp:mlp.safetensors", "--data", "npz:rows.npz"]
GPT2 = ["hf:gpt2", "--data", "tokens:tokens.uint16,context=8"]
TWO_BLOCKS = [
    "hf:gpt2", "--data", "tokens:many-tokens.uint16,context=15", "--dtype", "float64",
    "--layers", "attn_in.0,ln2.0,ln2_out.0,mlp_in.0,ln1.1",
]  # fmt: skip
"""Data of more than one chunk, which processes and shards divide."""
LLAMA = ["hf:llama", "--data", "tokens:tokens.uint16,context=8", "--dtype", "float64"]

RECIPES: dict[str, list[list[str]]] = {
    "mlp-lib": [
        ["build", *ROWS, "--edge-method", "exact"],
        ["ablate", "--edges", "--nodes", "--metric", "cross_entropy", "--tolerance", "0.0001"],
        ["curves", "--metric", "cross_entropy"],
        ["modules", "--null-graphs", "2"],
        ["features", "--top", "4"],
    ],
    "mlp-pca": [["build", *ROWS, "--basis", "pca", "--edge-method", "quadrature", "--edge-points", "5"]],
    "mlp-gib": [["build", *ROWS, "--basis", "gib"]],
    "mlp-jib": [["build", *ROWS, "--basis", "jib"]],
    "mlp-random": [["build", *ROWS, "--basis", "random", "--seed", "3"]],
    "mlp-neuron": [["build", *ROWS, "--basis", "neuron"], ["ablate", "--metric", "cross_entropy"]],
    "conv-lib": [["build", "python:conv:network", "--data", "npz:images.npz"], ["ablate"]],
    "modadd-lib": [
        ["build", "modadd:modadd.safetensors"],
        ["ablate", "--metric", "cross_entropy", "--tolerance", "0.001", "--nodes", "--edges"],
        ["features", "--top", "3"],
    ],
    "gpt2-lib": [
        ["build", *GPT2, "--dtype", "float64"],
        ["ablate", "--sections", "attn_in.0,mlp_in.1"],
        ["trace", "--sample", "2", "--name", "golden"],
    ],
    "gpt2-pca": [["build", *GPT2, "--dtype", "float64", "--basis", "pca", "--skip-positions", "1"]],
    "llama-lib": [["build", *LLAMA, "--edge-method", "quadrature", "--edge-points", "3"]],
    "llama-sampled": [
        ["build", *LLAMA, "--jacobian-queries", "4", "--edge-group", "4", "--edge-positions", "3"]
    ],
    "gpt2-ranks": [["torchrun", *TWO_BLOCKS]],
    "gpt2-shards": 3 * [*(["build", *TWO_BLOCKS, "--shard", f"{k}/2"] for k in (2, 1)), ["merge"]],
}  # fmt: skip
INTERRUPTED: dict[str, list[list[str]]] = {
    "build": [["build", *ROWS]],
    "shards": [["build", *ROWS, "--shard", "1/2"]],
}
"""Builds that end before they are done."""


def make(name: str, folder: Path) -> Path:
    """Run the commands of a recipe in a folder that holds the inputs."""
    with inputs_in(folder):
        for command, *options in RECIPES[name]:
            if command == "torchrun":
                run_in_two_processes("build", *options, "--out", name)
                continue
            ended = run(command, *options, folder=name)
            assert ended.code == 0, (command, ended.err)
    return folder / name


@contextmanager
def inputs_in(folder: Path) -> Iterator[None]:
    """Work in a folder that holds the inputs."""
    shutil.copytree(INPUTS, folder, dirs_exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("conv", None)
        os.chdir(before)


def run(command: str, *options: str, folder: str) -> "Ended":
    """Run a command on a run in the working folder."""
    from command_line import run_command

    shards = [f"{folder}/shards"] if command == "merge" else []
    where = [*options, *shards, "--out", folder] if command in ("build", "merge") else [folder, *options]
    return run_command(command, *where, "--quiet")


def run_in_two_processes(*arguments: str) -> None:
    from compute.torchrun import ended, torchrun

    ended(torchrun(2, "-m", "interbasis", *arguments, "--quiet"))


def write_unfinished() -> None:
    """Interrupt a build where it squares attributions, and run one of the two jobs of a build in shards."""
    import torch

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    torch.Tensor.square_ = interrupt  # type: ignore[method-assign, assignment]
    os.environ["INTERBASIS_SAVE_EVERY"] = "0"
    for name, commands in INTERRUPTED.items():
        with tempfile.TemporaryDirectory() as folder, inputs_in(Path(folder)):
            for command, *options in commands:
                run(command, *options, folder=name)
            shutil.rmtree(UNFINISHED / name, ignore_errors=True)
            shutil.copytree(
                name, UNFINISHED / name, ignore=shutil.ignore_patterns("*.lock", "signature.json")
            )


def write_inputs() -> None:
    import numpy as np
    import torch
    from safetensors.torch import save_file
    from torch import nn

    import interbasis
    from cases import normal
    from interbasis_studies.training.modadd import Recipe, initial_weights
    from tiny_models import random_model

    INPUTS.mkdir(exist_ok=True)  # conv.py, a network by name, is there
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 4)).double()
    interbasis.mlp.save(module, INPUTS / "mlp.safetensors")
    rows = normal(80, 6, seed=1) + 0.3
    np.savez(INPUTS / "rows.npz", x=rows.numpy(), y=module(rows).argmax(-1).numpy())
    save_file(
        initial_weights(Recipe(seed=3, p=7, width=12, heads=2, hidden=16)), INPUTS / "modadd.safetensors"
    )
    for name in ("gpt2", "llama"):
        random_model(name).save_pretrained(INPUTS / name)
    tokens = torch.randint(2, 23, (16 * 9,), generator=torch.Generator().manual_seed(5))
    tokens.numpy().astype("<u2").tofile(INPUTS / "tokens.uint16")
    many = torch.randint(2, 23, (9_000,), generator=torch.Generator().manual_seed(7))
    many.numpy().astype("<u2").tofile(INPUTS / "many-tokens.uint16")
    images = normal(20, 2, 6, 6, seed=6)
    np.savez(INPUTS / "images.npz", x=images.numpy(), y=(images.mean((1, 2, 3)) > 0).long().numpy())


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))
    if sys.argv[1:] == ["inputs"]:
        write_inputs()
    elif sys.argv[1:] == ["unfinished"]:
        write_unfinished()
    else:
        for recipe in sys.argv[2:] or RECIPES:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XDG_CONFIG_HOME"] = folder  # a key for these runs alone
                made = make(recipe, Path(folder))
                shutil.rmtree(RUNS / recipe, ignore_errors=True)
                shutil.copytree(
                    made, RUNS / recipe, ignore=shutil.ignore_patterns("signature.json", "examples.json")
                )
