"""What all tests share: outside data, the command line, a browser, small checkpoints."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import settings
from safetensors.torch import save_file

from command_line import Cli, run_command
from interbasis.base.records import Basis
from interbasis.graph.store import load

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from interbasis import InteractionGraph

SHARED_DATA = Path(os.environ.get("INTERBASIS_SHARED_DATA") or Path(__file__).parents[2] / "shared" / "data")
REAL_MODELS = Path(os.environ.get("INTERBASIS_MODELS") or Path(__file__).parents[2] / "models")

LONG_FILES = (
    "cli/test_demo.py", "show/viewer/test_browser.py", "compute/test_team.py",
    "studies/paper/test_edges_required.py", "docs/test_docs.py", "show/viewer/test_new_user.py",
    "studies/paper/test_language.py", "network/cores/test_cores.py", "show/viewer/test_dictionary_graph.py",
    "studies/paper/test_reproduction_figures.py", "lib/test_edges.py", "show/viewer/test_schema.py",
    "data/test_padding.py", "show/viewer/test_prompts.py", "studies/paper/test_stored_graphs.py",
    "show/viewer/test_needed_edges.py", "compute/test_kills.py", "analysis/modules/test_modules.py",
    "test_notebooks.py",
)  # fmt: skip
"""The files that take longest, the longest first: begun early, no process waits long for another's last.
Those that share a folder of `made_once` are apart, so that no process waits for another to make it."""

settings.register_profile("interbasis", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("interbasis")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def config_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's configuration folder, temporary and shared by all test processes: runs are signed there."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "config"
    before = os.environ.get("XDG_CONFIG_HOME")
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_CONFIG_HOME"]
    else:
        os.environ["XDG_CONFIG_HOME"] = before


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the paper's checkpoints and stored graphs, which a user's clone does not have."""
    if not SHARED_DATA.is_dir():
        pytest.skip(
            f"requires the paper's checkpoints and stored graphs, and there is no {SHARED_DATA}; "
            "set INTERBASIS_SHARED_DATA to their folder"
        )
    return SHARED_DATA


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """real_model(name): the folder of real weights, which a user's clone does not have."""

    def folder(name: str) -> Path:
        if not (REAL_MODELS / name).is_dir():
            pytest.skip(f"requires the real model {name}; set INTERBASIS_MODELS to the folder that holds it")
        return REAL_MODELS / name

    return folder


@pytest.fixture(scope="session")
def cli() -> Cli:
    """`interbasis` in this process, as a user types it: cli("show", run, "--json").json."""
    return run_command


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """A real Chromium, one per process: playwright cannot be started twice in one."""
    from show.viewer import chromium

    if reason := chromium.why_not():
        pytest.skip(reason)
    with chromium.browser() as running:
        yield running


@pytest.fixture(scope="session")
def small_addition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of modular addition mod 11 with random weights; nobody writes to it."""
    from interbasis_studies.training.modadd import Recipe, initial_weights

    path = tmp_path_factory.mktemp("models") / "small.safetensors"
    save_file(initial_weights(Recipe(seed=3, p=11, width=16, heads=2, hidden=24)), path)
    return path


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Folders that are expensive to make, made by one test process and read by all: made_once(name, make)."""
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-once"
    base.mkdir(exist_ok=True)

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        with FileLock(base / f"{name}.lock"):
            if not (base / f"{name}.made").exists():
                make(base / name)
                (base / f"{name}.made").touch()
        return base / name

    return folder


@pytest.fixture(scope="session")
def paper_graph(
    shared: Path, made_once: Callable[[str, Callable[[Path], object]], Path]
) -> Callable[..., "InteractionGraph"]:
    """paper_graph(basis, seed, …): the graph of one of the paper's two checkpoints of modular addition."""
    import interbasis

    def graph(basis: Basis, seed: int, relative_threshold: float | None = None) -> "InteractionGraph":
        def make(folder: Path) -> None:
            network = interbasis.modadd.load(shared / "modadd" / f"seed{seed}.safetensors")
            train, _ = interbasis.modadd.split()
            interbasis.build(network, train, basis=basis, relative_threshold=relative_threshold).save(folder)

        floor = "own" if relative_threshold is None else relative_threshold
        return load(made_once(f"modadd-{basis}-seed{seed}-floor-{floor}", make))

    return graph


@pytest.fixture(scope="session")
def shipped_run(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Callable[[Basis], Path]:
    """shipped_run(basis): a run of the shipped modular-addition model, which nobody writes to."""
    from interbasis import build
    from interbasis.graph.named_models import open_model

    def run(basis: Basis) -> Path:
        def make(folder: Path) -> None:
            opened = open_model("modadd")
            build(opened.network, opened.data, basis=basis, model="modadd").save(folder)

        return made_once(f"shipped-{basis}", make)

    return run


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes over the data in chunks of a few samples, as over data that do not fit in memory."""
    from interbasis.compute import executor

    monkeypatch.setattr(executor, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(executor, "FINE_CHUNK_BYTES", 2000)


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data summed in many blocks, as large data are."""
    from compute.in_blocks import sum_in_blocks

    sum_in_blocks(monkeypatch.setattr)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Computes as the processes do that a test starts."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
