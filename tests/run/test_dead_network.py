"""Networks that answer alike whatever they are given: every command works or says in a sentence why not."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import interbasis
from command_line import Cli
from interbasis.analysis.ablation.search import edges_required
from interbasis.base.records import Basis
from interbasis.run.run import Run

COMMANDS = {
    "show": ["show", "{run}"],
    "report": ["report", "{run}", "--out", "{out}/report"],
    "figures": ["figures", "{run}", "--out", "{out}/figures", "--format", "svg"],
    "html": ["export", "{run}", "--html", "{out}/page.html"],
    "graphml": ["export", "{run}", "--graphml", "{out}/run.graphml"],
    "parquet": ["export", "{run}", "--parquet", "{out}/tables"],
    "neuronpedia": ["export", "{run}", "--neuronpedia", "{out}/run.json"],
    "compare": ["compare", "{run}", "{run}"],
}


def stages(folder: Path, basis: Basis) -> Run:
    """A run of a network whose second weights are all 0, with every result that it can have."""
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential(
        nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        module[2].weight.zero_()
    inputs = torch.randn(1000, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (1000,), generator=generator)
    network = interbasis.from_torch(module)
    interbasis.build(network, inputs, basis=basis, progress=False).save(folder)
    run = interbasis.open_run(folder, network, (inputs, labels), progress=False)
    run.ablate(nodes=True)
    run.curves()
    run.features()
    return run


@pytest.fixture(scope="module", params=["lib", "pca"])
def dead(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return stages(tmp_path_factory.mktemp("dead") / "run", request.param)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_read_a_run_work(cli: Cli, dead: Run, tmp_path: Path, command: str) -> None:
    ended = cli(*(word.format(run=dead.folder, out=tmp_path) for word in COMMANDS[command]))
    assert (ended.code, ended.err) == (0, "")


def test_modules_are_found_among_what_has_edges(cli: Cli, dead: Run, tmp_path: Path) -> None:
    """PCA keeps the features of the layers before the dead one; LIB keeps nothing but constants."""
    run = shutil.copytree(dead.folder, tmp_path / "run", ignore=shutil.ignore_patterns("ablation.*"))
    ended = cli("modules", run, "--null-graphs", "2", "--json")
    if dead.graph.config.basis == "lib":
        assert ended.code == 2
        assert "no edge of the graph" in ended.err
        return
    assert sum(ended.json["sizes"]) > 1
    first, *others = ended.json["epsilons"].values()
    assert first > 0
    assert others == [0.0, 0.0]
    assert cli("export", run, "--neuronpedia", tmp_path / "run.json").code == 0


def test_no_edges_are_no_share_of_them(dead: Run) -> None:
    required = edges_required(dead.network, dead.graph, dead.train_data)
    assert [one.kept_fraction for one in required if not one.possible] == [0.0] * (
        3 if dead.graph.config.basis == "lib" else 2
    )
