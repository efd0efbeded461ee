"""Runs, pages and a browser for the viewer's tests."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interbasis.base.records import Basis
from interbasis.run.run import open_run
from interbasis.show.viewer import ViewerServer, write_page
from show.viewer import runs


@pytest.fixture(scope="session")
def built(
    made_once: Callable[[str, Callable[[Path], object]], Path], shipped_run: Callable[[Basis], Path]
) -> Path:
    """A folder with the runs lib (and its results) and pca, which nobody writes to."""

    def make(folder: Path) -> None:
        for basis in ("lib", "pca"):
            shutil.copytree(shipped_run(basis), folder / basis)
        runs.add_results(folder / "lib")

    return made_once("viewed", make)


@pytest.fixture(scope="session")
def partly_ablated(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The LIB run, one section of it ablated, on so many pairs that trials that fail are broken off."""
    run = tmp_path_factory.mktemp("partly") / "lib"
    shutil.copytree(built / "lib", run, ignore=shutil.ignore_patterns("ablation.*", "curves.*"))
    open_run(run).ablate(sections="mlp_in.0", data="modadd,samples=3000", stable=False)
    return run


@pytest.fixture
def lib(built: Path, tmp_path: Path) -> Path:
    """A copy of the LIB run with all results."""
    return Path(shutil.copytree(built / "lib", tmp_path / "lib"))


@pytest.fixture
def pca(built: Path, tmp_path: Path) -> Path:
    """A copy of the PCA run, without results."""
    return Path(shutil.copytree(built / "pca", tmp_path / "pca"))


@contextmanager
def serving(*folders: Path) -> Iterator[ViewerServer]:
    with ViewerServer(folders) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(lib: Path) -> Iterator[ViewerServer]:
    with serving(lib) as running:
        yield running


@pytest.fixture(scope="session")
def stories(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A run of a small language model with a traced prompt, which nobody writes to."""
    return made_once("stories", runs.story_run) / "run"


@pytest.fixture(scope="session")
def stories_page(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of its page as one file."""
    return write_page([stories], tmp_path_factory.mktemp("stories") / "page.html").as_uri()
