"""Symbolic links in a run are never followed: nothing outside it is read, written or deleted."""

from pathlib import Path

import pytest

from command_line import Cli
from interbasis import InterbasisError
from interbasis.base.files import remove
from interbasis.graph.store import load
from small_runs import addition


@pytest.fixture(scope="module")
def run_to_copy(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """A run of the shipped model on a few samples, which needs no trust, with results."""
    run = tmp_path_factory.mktemp("links") / "run"
    built = cli(
        "build", "modadd", "--data", "modadd,samples=64", "--layers", "unembed,output", "--basis", "pca",
        "--out", run,
    )  # fmt: skip
    assert built.code == 0, built.err
    assert cli("modules", run).code == 0
    assert cli("trace", run, "--sample", "1").code == 0
    return run


@pytest.fixture
def run(run_to_copy: Path, tmp_path: Path) -> Path:
    from shutil import copytree

    return copytree(run_to_copy, tmp_path / "run")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A user's folder beside the run."""
    folder = tmp_path / "thesis"
    (folder / "chapters").mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    (folder / "chapters" / "one.tex").write_text("more of it")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("link", "command"),
    [
        (".resume/curves", ("curves",)),
        (".resume", ("curves",)),
        (".resume/features", ("features",)),
        ("traces", ("trace", "--sample", "0")),
        ("ablation.json", ("modules",)),
    ],
)
def test_a_planted_link_is_refused_and_its_target_left_alone(
    cli: Cli, run: Path, outside: Path, link: str, command: tuple[str, ...]
) -> None:
    before = contents(outside)
    path = run / link
    if path.is_dir():
        remove(path)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside)
    ended = cli(command[0], run, *command[1:])
    assert ended.code == 2
    assert f"{path} is a link, " in ended.err
    assert contents(outside) == before


def test_a_result_that_is_a_link_is_neither_read_nor_written_through(
    cli: Cli, run: Path, outside: Path
) -> None:
    result = run / "modules.json"
    aside = outside / "modules.json"
    result.replace(aside)
    result.symlink_to(aside)
    before = contents(outside)
    assert "is a link" in cli("compare", run, run).err
    ended = cli("modules", run)
    assert ended.code == 2
    assert "is a link" in ended.err
    assert contents(outside) == before
    shown = cli("report", run, "--out", outside.parent / "report")
    assert shown.code in (0, 2)
    assert contents(outside) == before


@pytest.mark.parametrize("name", ["config.json", "graph"])
def test_the_graph_itself_is_not_read_through_a_link(cli: Cli, run: Path, outside: Path, name: str) -> None:
    file = next(run.glob("graph-*")) if name == "graph" else run / name
    aside = outside / file.name
    file.replace(aside)
    file.symlink_to(aside)
    ended = cli("show", run)
    assert ended.code == 2
    assert "is a link, " in ended.err
    with pytest.raises(InterbasisError, match="is a link"):
        load(run)


def test_overwriting_a_run_removes_links_but_not_what_they_lead_to(
    cli: Cli, run: Path, outside: Path
) -> None:
    before = contents(outside)
    (run / "graph-000000000000.safetensors").symlink_to(outside / "thesis.tex")
    (run / "graph.safetensors.new").symlink_to(outside / "thesis.tex")
    (run / ".config.json.old.tmp").symlink_to(outside)
    arguments = ("modadd", "--data", "modadd,samples=65", "--layers", "unembed,output", "--basis", "pca")
    assert cli("build", *arguments, "--overwrite", "--out", run).code == 0
    assert contents(outside) == before
    assert not [path for path in run.iterdir() if path.is_symlink()]


@pytest.mark.parametrize("link", [".resume", ".resume/build", ".resume/build.2", "shards"])
def test_builds_do_not_follow_links(cli: Cli, run: Path, outside: Path, link: str) -> None:
    before = contents(outside)
    path = run / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside)
    (run / "config.json").unlink()
    for stale in [*run.glob("*.json"), *run.glob("graph-*"), run / "traces"]:
        remove(stale)
    arguments = ("modadd", "--data", "modadd,samples=64", "--layers", "unembed,output", "--basis", "pca")
    extra = ("--shard", "1/1") if link == "shards" else ("--overwrite",)
    ended = cli("build", *arguments, *extra, "--out", run)
    assert ended.code == 2
    assert "is a link, " in ended.err
    assert contents(outside) == before


def test_a_shard_that_is_a_link_is_not_merged(cli: Cli, tmp_path: Path, outside: Path) -> None:
    run = tmp_path / "sharded"
    arguments = ("modadd", "--data", "modadd,samples=64", "--layers", "unembed,output", "--basis", "pca")
    assert cli("build", *arguments, "--shard", "1/1", "--out", run).code == 0
    shard = next((run / "shards").glob("*.safetensors"))
    shard.replace(outside / shard.name)
    shard.symlink_to(outside / shard.name)
    ended = cli("merge", run / "shards", "--out", run)
    assert ended.code == 2
    assert "is a link" in ended.err


def test_notes_are_not_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    from interbasis.show.viewer.notes import save_notes

    opened = addition(tmp_path / "noted")
    (tmp_path / "noted" / "notes.json").symlink_to(outside / "thesis.tex")
    before = contents(outside)
    with pytest.raises(InterbasisError, match="is a link"):
        save_notes(opened.folder, {"pinned": [], "names": [], "groups": []})
    assert contents(outside) == before


def test_a_run_may_itself_be_a_link(cli: Cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(run)
    assert cli("show", tmp_path / "alias").code == 0
    assert cli("modules", tmp_path / "alias").code == 0
