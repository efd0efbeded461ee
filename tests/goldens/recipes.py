"""Small runs whose numbers are stored: the commands that make them, from models and data that are stored too.

    python tests/goldens/recipes.py inputs     writes the models and the data (once)
    python tests/goldens/recipes.py runs       writes the runs, with the code of this working tree

The test beside this file repeats the commands and compares. Store runs again only where a number was wrong.
"""

import os
import shutil
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
INPUTS, RUNS = FOLDER / "inputs", FOLDER / "stored"

ROWS = ["mlp:mlp.safetensors", "--data", "npz:rows.npz"]
GPT2 = ["hf:gpt2", "--data", "tokens:tokens.uint16,context=8"]
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
}  # fmt: skip


def make(name: str, folder: Path) -> Path:
    """Run the commands of a recipe in a folder that holds the inputs."""
    from command_line import run_command

    shutil.copytree(INPUTS, folder, dirs_exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        for command, *options in RECIPES[name]:
            where = [*options, "--out", name] if command == "build" else [name, *options]
            ended = run_command(command, *where, "--quiet")
            assert ended.code == 0, (command, ended.err)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("conv", None)
        os.chdir(before)
    return folder / name


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
    images = normal(20, 2, 6, 6, seed=6)
    np.savez(INPUTS / "images.npz", x=images.numpy(), y=(images.mean((1, 2, 3)) > 0).long().numpy())


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))
    if sys.argv[1:] == ["inputs"]:
        write_inputs()
    else:
        import tempfile

        for recipe in sys.argv[2:] or RECIPES:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XDG_CONFIG_HOME"] = folder  # a key for these runs alone
                made = make(recipe, Path(folder))
                shutil.rmtree(RUNS / recipe, ignore_errors=True)
                shutil.copytree(
                    made, RUNS / recipe, ignore=shutil.ignore_patterns("signature.json", "examples.json")
                )
