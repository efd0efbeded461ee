"""Run by torchrun: builds of a few shared models by all processes together, saved by the first of them."""

import sys
from pathlib import Path

import interbasis
from cases import CASES
from interbasis.data.samples import Samples
from interbasis.runtime.team import team_of_torchrun

BUILDS = {
    "relu": {"basis": "lib"},
    "modadd-2-blocks": {"basis": "gib", "edge_group": 3},
    "gpt2": {"basis": "lib", "jacobian_queries": 2, "edge_group": 4},
    "llama": {"basis": "random", "edge_method": "exact"},
}


def read_in_parts(inputs) -> Samples:
    """Data that are read by index, as those of files are."""
    return Samples(len(inputs), lambda first, last: (inputs[first:last], inputs[first:last, 0].long() * 0))


def build_all(folder: Path, **options) -> None:
    for name, settings in BUILDS.items():
        case = CASES[name]()
        data = read_in_parts(case.inputs) if name == "gpt2" else case.inputs
        graph = interbasis.build(case.network, data, **settings, **options)
        if not options or options["team"].is_first:
            graph.save(folder / name)


if __name__ == "__main__":
    build_all(Path(sys.argv[1]), team=team_of_torchrun())
