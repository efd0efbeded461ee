"""Runs that a stranger has tampered with: no traceback, no code of theirs, nothing outside the run touched.

A real run with results of all stages, written by the commands, is changed at random: other names of model and
data, links at every path, control characters in every stored string, other sizes and types in config.json.
Then commands of all kinds are run on it.
"""

import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy
import pytest

from command_line import Cli
from interbasis import InterbasisError
from interbasis.base import signatures
from interbasis.base.files import remove

FAST, SLOW = range(8), range(1000, 1300)
SECRET = "the-secret-7f3a91"
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x9b31m\r\x7f\u202e"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
NET = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
"""
CANARY = "import pathlib; pathlib.Path(__file__).with_name('executed').touch()\n" + NET
OWN = ("--model", "python:tampered_net:make", "--data", "npz:rows.npz")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Iterator[Path]:
    """A user's working folder: a model, data, a run with all results, and a folder beside it."""
    folder = tmp_path_factory.mktemp("tampered")
    before = Path.cwd()
    os.chdir(folder)
    Path("tampered_net.py").write_text(NET)
    generator = numpy.random.default_rng(0)
    rows = generator.normal(size=(60, 6)).astype(numpy.float32)
    numpy.savez("rows.npz", x=rows, y=generator.integers(0, 3, 60))
    assert cli("build", OWN[1], *OWN[2:], "--out", "original").code == 0
    stages = (
        ("modules",), ("ablate", "--edges", "--nodes"), ("curves",), ("features", "--top", "2"),
        ("trace", "--sample", "1"), ("controls", "--stressed", "", "--bases", "pca"),
    )  # fmt: skip
    for command in stages:
        ended = cli(command[0], "original", *command[1:])
        assert ended.code == 0, ended.err
    from interbasis.show.viewer.notes import save_notes

    layer = json.loads(Path("original/config.json").read_text())["layers"][0]["name"]
    save_notes(Path("original"), {"pinned": [{"layer": layer, "index": 1}], "names": [], "groups": []})
    yield folder
    os.chdir(before)
    sys.path[:] = [place for place in sys.path if place != str(folder)]
    sys.modules.pop("tampered_net", None)


class Place:
    """A copy of the run that a stranger has changed, and all that must stay as it is."""

    def __init__(self, world: Path, folder: Path) -> None:
        self.run, self.outside, self.folder = folder / "run", folder / "outside", folder
        copytree(world / "original", self.run)
        copytree(world / "original", self.outside / "another-run")
        (self.outside / "secret.txt").write_text(SECRET)
        (self.outside / "canary_beside.py").write_text(CANARY)
        (self.run / "canary_within.py").write_text(CANARY)
        numpy.savez(self.outside / "rows.npz", x=numpy.zeros((9, 6)), y=numpy.zeros(9, dtype=int))
        self.before = self.snapshot()

    def snapshot(self) -> dict[str, object]:
        """Times and contents of everything outside the run."""
        paths = [self.outside, *self.outside.rglob("*")]
        contents = [path.read_bytes() if path.is_file() else sorted(os.listdir(path)) for path in paths]
        return {
            str(path): (path.stat().st_mtime_ns, held) for path, held in zip(paths, contents, strict=True)
        }


Tampering = Callable[[random.Random, Place], None]


def change_names(chance: random.Random, place: Place) -> None:
    """Names of a model and data that are code, or files of the user."""
    run, outside = place.run, place.outside
    models = (
        f"python:{run.name}.canary_within:make", "python:canary_within:make", "python:canary_beside:make",
        "python:os:abort", "python:.:x", f"hf:{outside}", f"hf:{outside}/another-run",
        f"mlp:{outside}/secret.txt", f"modadd:{outside}/secret.txt", "hf:stranger/model", HOSTILE,
        "python:", "",
    )  # fmt: skip
    data = (
        f"text:{outside}/secret.txt", f"npz:{outside}/rows.npz", f"tokens:{outside}/secret.txt,context=4",
        f"images:{outside}", "tokens:/dev/zero,context=8", "hf:stranger/data", f"cifar10:{outside}", HOSTILE,
        "modadd,p=1000000007", f"modadd,samples=4,tokenizer={outside}",
    )  # fmt: skip
    values = json.loads((run / "config.json").read_text())
    provenance = values["provenance"]
    if chance.random() < 0.7:
        provenance["model"] = chance.choice(models)
    if chance.random() < 0.7:
        provenance["request"]["model"] = chance.choice(models)
    for name in ("data", "jacobian_data", "edge_data"):
        if chance.random() < 0.5:
            provenance["request"][name] = chance.choice(data)
    (run / "config.json").write_text(json.dumps(values))


def plant_links(chance: random.Random, place: Place) -> None:
    """Links in place of files and folders of the run, and where commands will write some."""
    there = [str(path.relative_to(place.run)) for path in place.run.rglob("*")]
    stages = ("ablation", "curves", "features", "controls", "build", "build.2")
    new = [f".resume/{stage}" for stage in stages] + [
        ".resume",
        "shards",
        "traces/sample-0.json",
        "traces.json",
    ]
    new += ["graph.safetensors.new", "graph-000000000000.safetensors", ".ablation.json.x.tmp", "steer.json"]
    for name in chance.sample([*there, *new], chance.choice((1, 2, 5))):
        path = place.run / name
        if any(parent.is_symlink() for parent in path.parents):
            continue
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        same = place.outside / "another-run" / name
        targets = [
            place.outside,
            place.outside / "secret.txt",
            place.outside / "another-run",
            place.outside / "no",
        ]
        path.symlink_to(same if same.exists() and chance.random() < 0.5 else chance.choice(targets))


def add_control_characters(chance: random.Random, place: Place) -> None:
    """Control characters in every stored string, of values alone or of names of fields, too."""
    share, keys = chance.choice((0.02, 0.3, 1.0)), chance.random() < 0.3
    spared = ("format", "sha256", "file", "basis", "edge_method", "graph", "tensors", "dtype", "metric")

    def hostile(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {
                k + HOSTILE if keys and chance.random() < share / 10 else k: hostile(v, k)
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [hostile(item, key) for item in value]
        if isinstance(value, str) and key not in spared and chance.random() < share:
            return value + chance.choice((HOSTILE, "\ud800", "\x00", "[red]", "\n\x1b[2J"))
        return value

    files = sorted(place.run.rglob("*.json"))
    for path in chance.sample(files, chance.choice((1, len(files)))):
        path.write_text(json.dumps(hostile(json.loads(path.read_text()))))


def change_sizes_and_types(chance: random.Random, place: Place) -> None:
    """Other numbers, types and shapes in config.json."""
    values = json.loads((place.run / "config.json").read_text())
    odd: tuple[Any, ...] = (
        None,
        -1,
        0,
        2**70,
        1e308,
        True,
        "x" * 3000,
        [],
        {},
        [[]],
        "1",
        -0.5,
        ["a"] * 100,
        {"a": {"b": 1}},
    )
    for _ in range(chance.choice((1, 3))):
        parent: object = values
        while True:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))  # type: ignore[arg-type]
            key = chance.choice(keys)
            child = parent[key]
            if not isinstance(child, dict | list) or not child or chance.random() < 0.2:
                break
            parent = child
        if chance.random() < 0.2:
            del parent[key]  # type: ignore[attr-defined]
        else:
            parent[key] = chance.choice(odd)
    (place.run / "config.json").write_text(json.dumps(values))


TAMPERINGS: tuple[Tampering, ...] = (
    change_names,
    plant_links,
    add_control_characters,
    change_sizes_and_types,
)


def readers(run: Path, out: Path) -> list[tuple[object, ...]]:
    """Commands that open neither model nor data."""
    return [
        ("show", run, "--json"), ("modules", run), ("compare", run, run),
        ("export", run, "--html", out / "page.html", "--graphml", out / "graph.graphml"),
        ("export", run, "--parquet", out / "tables", "--neuronpedia", out / "neuronpedia.json"),
        ("report", run, "--out", out / "report"),
        ("figures", run, "--out", out / "figures", "--format", "svg"),
        ("compare", run, "original"), ("report", run, "original", "--out", out / "both"),
    ]  # fmt: skip


def openers(run: Path, out: Path) -> list[tuple[object, ...]]:
    """Commands that open a model and data: by the run's names, which are a stranger's, or by the user's."""
    steer = ("steer", run, "--sample", "0", "--feature", "linear.0:1", "--by", "1")
    merge = ("merge", run / "shards", "--out", run)
    stages: list[tuple[object, ...]] = [
        ("ablate", run), ("curves", run), ("features", run, "--top", "1"), ("trace", run, "--sample", "0"),
        steer,
        ("controls", run, "--stressed", "", "--bases", "pca"),
    ]  # fmt: skip
    own = [(*stage, *OWN) for stage in stages]
    rebuild: list[tuple[object, ...]] = [
        ("build", "--config", run, "--out", out / "again"), merge,
        ("shards", "--config", run, "--out", out / "sharded", "--shards", "2"),
        ("ablate", run, "--memory", "4GB"), ("build", OWN[1], *OWN[2:], "--out", run),
        ("build", OWN[1], *OWN[2:], "--basis", "pca", "--overwrite", "--out", run),
    ]  # fmt: skip
    return [*stages, *own, *rebuild]


WATCHED: list[tuple[str, set[str]]] = []
"""The folder outside the run while commands run, and what of it was opened or imported."""


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if not WATCHED:
        return
    outside, seen = WATCHED[-1]
    if event == "open" and isinstance(arguments[0], str | os.PathLike):
        path = os.path.realpath(os.fspath(arguments[0]))
        if isinstance(path, str) and path.startswith(outside):
            seen.add(path)
    elif event == "import" and "canary" in str(arguments[0]):
        seen.add(str(arguments[0]))


sys.addaudithook(_watch)  # it stays, and does nothing while nothing is watched


def check(seed: int, world: Path, folder: Path, cli: Cli, count: int) -> None:
    """Tamper with a run, and run ``count`` commands on it."""
    chance = random.Random(seed)
    place = Place(world, folder)
    TAMPERINGS[seed % len(TAMPERINGS)](chance, place)
    out = folder / "out"
    out.mkdir()
    commands = [*readers(place.run, out), *openers(place.run, out)]
    chosen = chance.sample(commands, count)
    seen: set[str] = set()
    WATCHED.append((str(place.outside), seen))
    try:
        for command in [("show", place.run), *chosen]:
            ended = cli(*command)
            told = (seed, command, ended.err)
            assert ended.code in (0, 2), told
            assert "Traceback" not in ended.err, told
            assert CONTROL.search(ended.out + ended.err) is None, told
            assert SECRET not in ended.out + ended.err, told
            if "--json" in command and ended.code == 0:
                json.loads(ended.out)
        serve(place.run)
    finally:
        WATCHED.pop()
    assert not seen, (seed, seen)
    assert not list(folder.rglob("executed")), seed
    assert not (world / "executed").exists(), seed
    assert place.snapshot() == place.before, seed
    for path in [*place.run.rglob("*"), *out.rglob("*")]:
        if path.is_file() and not path.is_symlink():
            assert SECRET.encode() not in path.read_bytes(), (seed, path)


def serve(run: Path) -> None:
    """The page that `interbasis view` serves."""
    from interbasis.show.viewer import ViewerServer

    try:
        with ViewerServer([run]) as server:
            assert b"<script" in server.page()
    except InterbasisError as refusal:
        message = str(refusal)
    else:
        message = ""
    assert CONTROL.search(message) is None


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Path) -> Path:
    """A user who has built nothing of this here."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(signatures, "_trusted", set())
    monkeypatch.syspath_prepend(world)
    return tmp_path


@pytest.mark.parametrize("seed", FAST)
def test_a_tampered_run_harms_nobody(seed: int, world: Path, stranger: Path, cli: Cli) -> None:
    check(seed, world, stranger / "case", cli, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_300_tampered_runs_harm_nobody(seed: int, world: Path, stranger: Path, cli: Cli) -> None:
    check(seed, world, stranger / "case", cli, 8)


def test_the_watch_sees_what_is_opened(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    WATCHED.append((str(tmp_path), set()))
    (tmp_path / "secret.txt").read_text()
    assert WATCHED.pop()[1] == {str(tmp_path / "secret.txt")}
