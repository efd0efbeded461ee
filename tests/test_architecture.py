"""The tree shows the order of the computation: imports between packages point one way."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import interbasis
from pages import ROOT

PACKAGE, STUDIES = ROOT / "src" / "interbasis", ROOT / "src" / "interbasis_studies"
ORDER = (
    "base", "numerics", "network", "data", "models", "compute", "graph", "lib", "dictionaries", "analysis",
    "show", "run", "cli",
)  # fmt: skip
"""Every package may import itself and those before it."""
ORDER_OF_STUDIES = ("training", "known", "paper", "bench", "cli")
"""The same; each may import all of interbasis."""

AT_THE_ROOT = {"__init__.py", "__main__.py", "py.typed", "weights"}
"""The public surface, `python -m interbasis`, the mark of a typed package, and the shipped weights."""


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Full names of the modules of a package that a file imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == package)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == package:
                yield from (f"{package}.{alias.name}" for alias in node.names)
            elif node.module and node.module.startswith(f"{package}."):
                yield node.module


def back_edges(
    folder: Path, package: str = "interbasis", order: Sequence[str] = ORDER
) -> set[tuple[str, str]]:
    """(file, package it imports) wherever the import points to a later package, or to none of the list."""
    edges = set()
    for name in order:
        for file in (folder / name).rglob("*.py"):
            for module in imported_modules(ast.parse(file.read_text(encoding="utf-8")), package):
                target = module.split(".")[1] if "." in module else package
                if target not in order[: order.index(name) + 1]:
                    edges.add((str(file.relative_to(folder)), target))
    return edges


def test_every_module_belongs_to_a_package_of_the_list() -> None:
    entries = {entry.name for entry in PACKAGE.iterdir() if entry.name != "__pycache__"}
    assert entries == AT_THE_ROOT | set(ORDER)
    assert not list((PACKAGE / "weights").glob("*.py"))
    studies = {entry.name for entry in STUDIES.iterdir() if entry.name != "__pycache__"}
    assert studies == {"__init__.py", "py.typed", *ORDER_OF_STUDIES}


def test_imports_point_one_way() -> None:
    assert back_edges(PACKAGE) == set()
    assert back_edges(STUDIES, STUDIES.name, ORDER_OF_STUDIES) == set()


def test_the_library_does_not_know_the_studies() -> None:
    naming = [str(file) for file in PACKAGE.rglob("*.py") if STUDIES.name in file.read_text(encoding="utf-8")]
    assert naming == []


def test_a_back_edge_is_seen(tmp_path: Path) -> None:
    for name in ORDER:
        (tmp_path / name).mkdir()
    (tmp_path / "lib" / "edges.py").write_text("def f():\n    from interbasis.run.run import x\n")
    (tmp_path / "cli" / "show.py").write_text(
        "from interbasis import lib, nothing\nimport interbasis.base.errors"
    )
    assert back_edges(tmp_path) == {("lib/edges.py", "run"), ("cli/show.py", "nothing")}


FREE_FORM_JSON = {
    "compute/checkpoints.py": 5,  # settings and states of any work, as JSON holds them
    "run/run.py": 1,  # local variables of a method, before they are validated
    "run/request.py": 3,  # what a config file says before it is validated
    "training/state.py": 2,  # the recipe of any training, compared field by field
    "models/mlp.py": 4,  # arguments of torch modules, which differ by their type
    "models/own_output.py": 2,  # the dictionaries of a torch module
    "show/declared_tables.py": 1,  # columns and texts of tables, as TOML holds them
    "show/figures/style.py": 2,  # keywords of matplotlib
    "show/figures/eigenvalues.py": 1,  # keywords of matplotlib
    "show/export/neuronpedia.py": 1,  # the schema of somebody else
}
"""How often a file says `dict[str, Any]`, each with the reason why its keys cannot be known."""

NOT_FOR_VIEWING = (
    "interbasis.lib", "interbasis.analysis.ablation", "interbasis.models.hf",
    *(f"interbasis_studies.{name}" for name in ORDER_OF_STUDIES if name != "cli"),
)  # fmt: skip
RECORDS = {"interbasis.analysis.ablation", "interbasis.analysis.ablation.records"}
"""What ablations measured; reading it computes nothing."""


def test_untyped_dictionaries_are_free_form_json() -> None:
    counts = {
        str(file.relative_to(folder)): file.read_text(encoding="utf-8").count("dict[str, Any]")
        for folder in (PACKAGE, STUDIES)
        for file in folder.rglob("*.py")
    }
    assert {name: count for name, count in counts.items() if count} == FREE_FORM_JSON


VIEW = """
import json, sys, threading, urllib.request
from pathlib import Path
import interbasis.cli.view
from interbasis.show.viewer import ViewerServer, write_page
with ViewerServer([Path(sys.argv[1])]) as server:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    page = urllib.request.urlopen(server.url).read().decode()
    server.shutdown()
print(json.dumps({"page": "<script" in page, "modules": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def saved_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    graph = interbasis.build(interbasis.from_torch(module), torch.randn(20, 4)).graph
    return graph.save(tmp_path_factory.mktemp("saved") / "lib")


def test_viewing_imports_nothing_that_fits_or_ablates(saved_graph: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", VIEW, str(saved_graph)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["page"]
    assert [n for n in told["modules"] if n.startswith(NOT_FOR_VIEWING) and n not in RECORDS] == []


def test_class_names_are_unique() -> None:
    """One name, one concept, over the library and the studies."""
    owners: dict[str, list[str]] = {}
    for folder in (PACKAGE, STUDIES):
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    owners.setdefault(node.name, []).append(str(file))
    assert {name: files for name, files in owners.items() if len(files) > 1} == {}
