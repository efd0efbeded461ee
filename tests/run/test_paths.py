"""A run finds its model and data from any folder, and stores no path of the machine."""

import json
import sys
from pathlib import Path
from shutil import copytree, move

import numpy
import pytest
import torch
from torch import nn

import interbasis
from command_line import Cli
from interbasis.base import signatures
from interbasis.graph.named_sources import with_paths
from interbasis.models import mlp


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a checkpoint, code and data, and two runs that were built there."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    torch.manual_seed(0)
    mlp.save(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), folder / "net.safetensors")
    numpy.savez(folder / "data" / "rows.npz", x=torch.randn(60, 4).numpy(), y=numpy.arange(60) % 3)
    (folder / "own_net.py").write_text(
        "import interbasis\ndef make():\n    return interbasis.mlp.load(__file__[:-10] + 'net.safetensors')\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(folder)
    sys.modules.pop("own_net", None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


@pytest.fixture
def runs(project: Path, cli: Cli) -> Path:
    data = project / "data" / "rows.npz"  # an absolute path
    for name, model in (("file", f"mlp:{project}/net.safetensors"), ("code", "python:own_net:make")):
        assert cli("build", model, "--data", f"npz:{data},samples=50", "--out", f"runs/{name}").code == 0
    return project / "runs"


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_trusted", set())
    monkeypatch.delitem(sys.modules, "own_net", raising=False)


@pytest.mark.parametrize("name", ["file", "code"])
def test_a_run_opens_from_any_folder(
    name: str, runs: Path, project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    monkeypatch.chdir(project.parent / "elsewhere")
    ended = cli("steer", runs / name, "--feature", "linear.1:1", "--by", "1", "--sample", "0")
    assert ended.code == 0, ended.err
    ended = cli("features", runs / name, "--top", "2", "--json")
    assert ended.json["data"]["spec"] == "npz:data/rows.npz,samples=50"


def test_nothing_in_a_run_names_the_machine(runs: Path, project: Path, cli: Cli) -> None:
    assert cli("ablate", runs / "file", "--data", f"npz:{project}/data/rows.npz").code == 0
    for file in runs.rglob("*.json"):
        assert str(project) not in file.read_text(), file.name
    provenance = json.loads((runs / "file" / "config.json").read_text())["provenance"]
    assert provenance["working_folder"] == "../.."
    assert provenance["model"] == "mlp:net.safetensors"


def test_a_moved_run_is_found_from_the_folder_where_it_was_built(
    runs: Path, project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(runs / "file", project.parent / "file")
    new_process(monkeypatch)
    assert cli("curves", project.parent / "file").code == 0


def test_a_moved_project_asks_for_trust_once(
    runs: Path, project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = project.parent / "moved"
    monkeypatch.chdir(project.parent)
    move(project, moved)
    new_process(monkeypatch)
    code, _, err = cli("curves", moved / "runs" / "file")
    assert code == 2
    assert f"that is {moved / 'net.safetensors'}" in err
    assert cli("curves", moved / "runs" / "file", "--trust").code == 0
    assert cli("curves", moved / "runs" / "file").code == 0


def test_other_files_of_the_same_names_are_not_opened(
    runs: Path, project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a user's run beside a stranger's files: they are nearer than the user's, and are refused."""
    trap = project.parent / "trap"
    copytree(project, trap)
    new_process(monkeypatch)
    code, _, err = cli("curves", trap / "runs" / "file")
    assert code == 2
    assert f"that is {trap / 'net.safetensors'}" in err


def test_a_changed_way_to_the_working_folder_is_not_signed(
    runs: Path, project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's copy that looks for its names where the user's files are has no signature of the user."""
    copytree(project / "runs", project.parent / "theirs" / "runs")
    config = project.parent / "theirs" / "runs" / "code" / "config.json"
    values = json.loads(config.read_text())
    values["provenance"]["working_folder"] = "../../../project"
    config.write_text(json.dumps(values))
    new_process(monkeypatch)
    monkeypatch.chdir(project.parent / "elsewhere")
    code, _, err = cli("curves", config.parent)
    assert code == 2
    assert "has no signature of yours" in err


def test_a_module_is_imported_from_the_place_that_was_signed(
    runs: Path, project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = project.parent / "elsewhere"
    (trap / "own_net.py").write_text("import pathlib; pathlib.Path('executed').touch()")
    new_process(monkeypatch)
    monkeypatch.chdir(trap)
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(project)])
    assert cli("curves", runs / "code").code == 0
    assert not (trap / "executed").exists()


def test_a_missing_model_is_looked_for_in_two_places(
    runs: Path, project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "net.safetensors").unlink()
    monkeypatch.chdir(project.parent / "elsewhere")
    code, _, err = cli("curves", runs / "file")
    assert code == 2
    places = f"at {project / 'net.safetensors'} and at {Path.cwd() / 'net.safetensors'}"
    assert f"mlp:net.safetensors was looked for {places}," in err


def test_a_missing_folder_is_not_taken_for_a_name_of_the_hub(
    runs: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = runs / "file" / "config.json"
    values = json.loads(config.read_text())
    values["provenance"]["model"] = "hf:./small-lm"
    config.write_text(json.dumps(values))
    with pytest.raises(interbasis.InterbasisError, match=r"hf:\./small-lm .*no such file"):
        interbasis.open_run(runs / "file").ablate()


def test_the_same_command_finds_its_run_and_config_builds_it_from_elsewhere(
    runs: Path, project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ["build", f"mlp:{project}/net.safetensors", "--out", "runs/file"]
    assert cli(*again, "--data", f"npz:{project}/data/rows.npz,samples=50").code == 0
    monkeypatch.chdir(project.parent / "elsewhere")
    assert cli("build", "--config", runs / "file", "--out", "copy").code == 0
    provenance = json.loads(Path("copy/config.json").read_text())["provenance"]
    assert provenance["model"] == "mlp:../project/net.safetensors"
    assert interbasis.open_run("copy").summary().model == "mlp:project/net.safetensors"


def test_a_saved_copy_of_a_run_finds_its_model(
    runs: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.parent / "elsewhere")
    interbasis.open_run(runs / "file").save("deep/copy")
    new_process(monkeypatch)
    monkeypatch.chdir(project.parent)
    assert interbasis.open_run("elsewhere/deep/copy").steer("linear.1:1", 1.0, sample=0).outputs


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("modadd", "modadd"),
        ("modadd,p=11", "modadd,p=11"),
        ("python:net:make", "python:net:make"),
        ("text:a.txt,tokenizer=t,context=8", "text:A.TXT,tokenizer=T,context=8"),
        ("npz:a,b.npz,classes=c", "npz:A,B.NPZ,classes=C"),
        ("hf:org/name,blocks=1-2", "hf:ORG/NAME,blocks=1-2"),
    ],
)
def test_paths_of_a_name(name: str, changed: str) -> None:
    assert with_paths(name, lambda path, _: path.upper()) == changed
