"""Run by torchrun: builds of a few shared models by all processes together, and the commands."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

import interbasis
from cases import CASES
from compute.in_blocks import sum_in_blocks
from interbasis.cli import main
from interbasis.compute.team import torchrun_team
from interbasis.data.samples import Samples

BUILDS: dict[str, dict[str, Any]] = {
    "relu": {"basis": "jib"},
    "modadd-2-blocks": {"basis": "gib", "edge_group": 3},
    "gpt2": {"basis": "lib", "jacobian_queries": 2, "edge_group": 4},
    "llama": {"basis": "random", "edge_method": "exact", "statistics_samples": 5},
    "gpt-neox": {
        "jacobian_samples": 4,
        "jacobian_queries": 3,
        "edge_group": "positions",
        "edge_sources": 2,
        "edge_samples": (2, 5),
    },
}


def read_in_parts(inputs: Tensor) -> Samples:
    """Data that are read by index, as those of files are."""
    return Samples(len(inputs), lambda first, last: (inputs[first:last], inputs[first:last, 0].long() * 0))


def build_all(folder: Path, **options: Any) -> None:
    for name, settings in BUILDS.items():
        case = CASES[name]()
        data = read_in_parts(case.inputs) if name == "gpt2" else case.inputs
        graph = interbasis.build(case.network, data, **settings, **options).graph
        if not options or options["team"].is_first:
            graph.save(folder / name)


def run_commands(run: Path, model: str | Path) -> None:
    """Build, ablations, curves and features, as a user types them."""
    for command in (
        ["build", f"modadd:{model}", "--threads", "1", "--out", str(run)],
        ["ablate", str(run), "--edges", "--nodes", "--intervals", "--tolerance", "0.5"],
        ["curves", str(run)],
        ["features", str(run), "--top", "3"],
    ):
        with suppress(SystemExit):
            main(command)


if __name__ == "__main__":
    sum_in_blocks(setattr)
    build_all(Path(sys.argv[1]), team=torchrun_team())
    run_commands(Path(sys.argv[1]) / "run", sys.argv[2])
