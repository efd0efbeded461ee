"""A stranger's run names a model and data: neither is opened unless the user trusts the run."""

import json
import os
import sys
from pathlib import Path
from shutil import copytree

import numpy
import pytest

import interbasis
from command_line import Cli
from interbasis import InterbasisError, open_run
from interbasis.base import signatures
from interbasis.base.signatures import SIGNATURE
from interbasis.graph.named_models import open_data, open_model
from interbasis.graph.store import load

CODE = """
import torch
{before}
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
"""
STAGES = (("ablate",), ("curves",), ("features", "--top", "2"), ("trace", "--sample", "0"),
          ("steer", "--sample", "0", "--feature", "0:1", "--by", "1"),
          ("controls", "--stressed", "", "--bases", "pca"))  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's configuration folder without a key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(signatures, "_trusted", set())
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A working folder with a model as code and data as a file."""
    folder = tmp_path / "project"
    write_project(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(folder)])
    monkeypatch.delitem(sys.modules, "trusted_net", raising=False)
    return folder


def write_project(folder: Path, before: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trusted_net.py").write_text(CODE.format(before=before))
    generator = numpy.random.default_rng(0)
    inputs, labels = generator.normal(size=(60, 6)), generator.integers(0, 3, 60)
    numpy.savez(folder / "rows.npz", x=inputs.astype(numpy.float32), y=labels)


@pytest.fixture
def run(project: Path, cli: Cli) -> Path:
    built = cli("build", "python:trusted_net:make", "--data", "npz:rows.npz", "--out", "runs/lib")
    assert built.code == 0, built.err
    return Path("runs/lib")


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process trusts and has imported, as another command would."""
    monkeypatch.setattr(signatures, "_trusted", set())
    for name in [name for name in sys.modules if name == "trusted_net" or name.startswith("theirs")]:
        del sys.modules[name]


def replace_names(run: Path, **names: str) -> None:
    """Change the model, or names of the request, as a stranger would."""
    values = json.loads((run / "config.json").read_text())
    for name, value in names.items():
        if name == "model":
            values["provenance"]["model"] = value
        values["provenance"]["request"][name] = value
    (run / "config.json").write_text(json.dumps(values))


@pytest.fixture
def theirs(run: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's run, with a model that is code beside it: it leaves a file when it is imported."""
    folder = copytree(run, project / "theirs")
    (folder / "canary.py").write_text(CODE.format(before="import pathlib; pathlib.Path('executed').touch()"))
    (project / "canary.py").write_bytes((folder / "canary.py").read_bytes())
    replace_names(folder, model="python:theirs.canary:make")
    new_process(monkeypatch)
    return Path("theirs")


def test_a_run_that_the_user_built_works_without_a_word(
    cli: Cli, run: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    key = home / "interbasis" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    layer = load(run).layer_names[0]
    for command in STAGES:
        arguments = [word.replace("0:1", f"{layer}:1") for word in command[1:]]
        ended = cli(command[0], run, *arguments, "--quiet")
        assert ended.code == 0, (command, ended.err)
        assert "trust" not in ended.err
        assert "sign" not in ended.err
    assert cli("build", "--config", run, "--out", "runs/again").code == 0
    assert cli("shards", "--config", run, "--out", "runs/other", "--shards", "2").code == 0
    assert open_run(run).ablate().sections


@pytest.mark.parametrize("command", [*STAGES, ("ablate", "--memory", "4GB"), ("config",), ("shards",)])
def test_code_that_a_stranger_names_is_not_imported(
    cli: Cli, theirs: Path, project: Path, command: tuple[str, ...]
) -> None:
    if command[0] in ("config", "shards"):
        name = "build" if command[0] == "config" else "shards"
        extra = ("--shards", "2") if name == "shards" else ()
        ended = cli(name, "--config", theirs, "--out", "new", *extra)
    else:
        layer = load(theirs).layer_names[0]
        ended = cli(command[0], theirs, *(word.replace("0:1", f"{layer}:1") for word in command[1:]))
    assert ended.code == 2
    assert "theirs has no signature" in ended.err
    assert "run python:theirs.canary:make" in ended.err
    assert "--trust" in ended.err
    assert "--model and --data" in ended.err
    assert not (project / "executed").exists()


def test_nor_by_the_methods_of_a_run(theirs: Path, project: Path) -> None:
    run = open_run(theirs)
    for call in (lambda: run.trace(sample=0), run.features, run.ablate, lambda: run.network):
        with pytest.raises(InterbasisError, match=r"interbasis\.trust"):
            call()
    with pytest.raises(InterbasisError, match="no signature"):
        open_run(run.graph).ablate()
    assert not (project / "executed").exists()


def test_a_function_that_needs_no_file_is_not_called(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    replace_names(run, model="python:os:abort")
    assert "run python:os:abort" in cli("ablate", run).err


def test_data_that_a_stranger_names_are_not_read(
    cli: Cli, run: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    (project / "secret.txt").write_text("a secret")
    replace_names(run, data="text:secret.txt,tokenizer=nowhere")
    os.chmod(project / "secret.txt", 0)
    ended = cli("features", run, "--model", "python:trusted_net:make")
    assert ended.code == 2
    assert "read text:secret.txt" in ended.err
    given = ("--model", "python:trusted_net:make", "--data", "npz:rows.npz")
    ended = cli("ablate", run, *given)
    assert ended.code == 0, ended.err


def test_trust_is_given_once(cli: Cli, theirs: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("ablate", theirs, "--trust").code == 0
    assert (project / "executed").exists()
    new_process(monkeypatch)
    assert cli("curves", theirs).code == 0
    assert cli("build", "--config", theirs, "--out", "again").code == 0
    new_process(monkeypatch)
    replace_names(theirs, data="npz:other.npz")
    assert cli("curves", theirs).code == 2


def test_trust_in_python(theirs: Path, project: Path) -> None:
    interbasis.trust(theirs)
    assert open_run(theirs).features(top=1).layers
    assert (project / "executed").exists()
    with pytest.raises(InterbasisError, match="expected a run"):
        interbasis.trust(project / "nothing")


def test_readers_need_no_trust(cli: Cli, theirs: Path, project: Path) -> None:
    assert cli("show", theirs).code == 0
    assert cli("modules", theirs).code == 0
    assert cli("compare", theirs, theirs).code == 0
    assert cli("export", theirs, "--html", "page.html", "--graphml", "graph.graphml").code == 0
    assert cli("report", theirs, "--out", "report").code == 0
    assert cli("figures", theirs, "--out", "figures", "--format", "svg").code == 0
    assert not (project / "executed").exists()


def test_a_run_of_version_0_1_is_a_strangers_until_it_is_trusted_or_built_again(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "signature.json").unlink()
    new_process(monkeypatch)
    ended = cli("ablate", run)
    assert ended.code == 2
    assert "version 0.1" in ended.err
    new_process(monkeypatch)
    assert cli("build", "python:trusted_net:make", "--data", "npz:rows.npz", "--out", run).code == 0
    new_process(monkeypatch)
    assert cli("ablate", run).code == 0


def test_a_run_that_was_moved_keeps_its_signature(
    cli: Cli, run: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    moved = copytree(run, tmp_path / "elsewhere" / "lib")
    assert cli("ablate", moved).code == 0


def test_a_signature_does_not_fit_other_names_or_another_graph(
    cli: Cli, run: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    signature = (run / "signature.json").read_bytes()
    (theirs / "signature.json").write_bytes(signature)
    assert cli("ablate", theirs).code == 2
    assert cli("build", "python:trusted_net:make", "--data", "npz:rows.npz", "--basis", "pca",
               "--out", "pca").code == 0  # fmt: skip
    new_process(monkeypatch)
    Path("pca/signature.json").write_bytes(signature)
    assert cli("ablate", "pca").code == 2


def test_a_relative_name_is_signed_for_the_place_it_means(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger gives the user's own published run back, with other code under the same relative name."""
    trap = tmp_path / "trap"
    write_project(trap, "import pathlib; pathlib.Path('executed').touch()")
    copytree(run, trap / "lib")
    new_process(monkeypatch)
    monkeypatch.chdir(trap)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not place.endswith("project")])
    ended = cli("ablate", "lib")
    assert ended.code == 2
    assert "its names meant other files" in ended.err
    assert not (trap / "executed").exists()


def test_a_stranger_cannot_launder_names_through_a_copy(
    theirs: Path, cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(theirs).save(project / "copy")
    new_process(monkeypatch)
    assert cli("ablate", "copy").code == 2
    assert not (project / "executed").exists()


def test_a_copy_of_a_signed_graph_is_signed(run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    open_run(run).save("copy")
    new_process(monkeypatch)
    assert cli("ablate", "copy").code == 0


def test_a_folder_that_is_no_run_cannot_pass_as_settings(cli: Cli, project: Path) -> None:
    (project / "disguise").mkdir()
    (project / "disguise" / "config.json").write_text('{"model": "python:trusted_net:make"}')
    ended = cli("build", "--config", "disguise", "--out", "new")
    assert ended.code == 2
    assert "is not an interbasis run" in ended.err


def test_shards_of_a_stranger_are_not_merged_by_their_names(
    cli: Cli, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ("python:trusted_net:make", "--data", "npz:rows.npz", "--out", "sharded")
    assert cli("build", *arguments, "--shard", "1/1").code == 0
    shards, elsewhere = Path("sharded/shards"), tmp_path / "other-home"
    new_process(monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(elsewhere))
    ended = cli("merge", shards, "--out", "sharded")
    assert ended.code == 2
    assert "run python:trusted_net:make" in ended.err
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    assert cli("merge", shards, "--out", "sharded").code == 0
    new_process(monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(elsewhere))
    assert cli("build", *arguments, "--shard", "1/1").code == 0
    assert cli("merge", shards, "--out", "sharded", "--trust").code == 0


def test_without_a_key_the_run_is_a_strangers_and_one_sentence_says_so(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "file" / "config"))
    built = cli("build", "python:trusted_net:make", "--data", "npz:rows.npz", "--out", "lib")
    assert built.code == 0
    assert "lib is not signed, " in built.err
    new_process(monkeypatch)
    ended = cli("ablate", "lib")
    assert ended.code == 2
    assert "there is no key in" in ended.err
    assert cli("ablate", "lib", "--trust").code == 0


@pytest.mark.parametrize("text", ["", "short", "zz" * 32, "ab" * 40])
def test_a_damaged_key_is_no_key(
    cli: Cli, run: Path, home: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    new_process(monkeypatch)
    (home / "interbasis" / "key").write_text(text)
    ended = cli("ablate", run)
    assert ended.code == 2
    assert "does not hold a key;" in ended.err


def test_a_key_that_others_can_read_is_no_key(
    cli: Cli, run: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(monkeypatch)
    (home / "interbasis" / "key").chmod(0o644)
    assert "can be read by others" in cli("ablate", run).err


def test_processes_that_make_the_key_at_once_agree(home: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(lambda _: signatures.user_key(make=True), range(64)))
    assert len(keys) == 1
    assert [path.name for path in (home / "interbasis").iterdir()] == ["key"]


NOT_ASCII = '{"format": "interbasis-signature", "signatures": [{"places": "ä", "names": "ö"}]}'


@pytest.mark.parametrize("text", ["", "[]", "{}", NOT_ASCII, "x" * 200_000])
def test_a_file_of_signatures_that_is_none_holds_none(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    new_process(monkeypatch)
    (run / "signature.json").write_text(text)
    assert "has no signature of yours" in cli("ablate", run).err


def test_several_users_of_a_shared_folder_sign_beside_each_other(
    cli: Cli, run: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new_process(monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "colleague"))
    assert cli("ablate", run).code == 2
    assert cli("ablate", run, "--trust").code == 0
    new_process(monkeypatch)
    assert cli("curves", run).code == 0
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    new_process(monkeypatch)
    assert cli("curves", run).code == 0


def test_what_comes_with_interbasis_needs_no_trust(cli: Cli, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "shipped"
    arguments = ("modadd", "--data", "modadd,samples=64", "--layers", "unembed,output", "--basis", "pca")
    assert cli("build", *arguments, "--out", out).code == 0
    assert not home.exists()
    assert not (out / "signature.json").exists()
    assert cli("features", out, "--top", "1").code == 0


def test_trust_without_a_run_is_refused(cli: Cli, project: Path) -> None:
    ended = cli("build", "python:trusted_net:make", "--data", "npz:rows.npz", "--out", "new", "--trust")
    assert ended.code == 2
    assert "add --config RUN" in ended.err


def test_options_take_the_place_of_a_strangers_names(cli: Cli, theirs: Path, project: Path) -> None:
    arguments = ("python:trusted_net:make", "--data", "npz:rows.npz")
    assert cli("build", *arguments, "--config", theirs, "--out", "new").code == 0
    assert not (project / "executed").exists()


def test_an_unsaved_run_opens_what_it_was_built_from(project: Path) -> None:
    network = open_model("python:trusted_net:make").network
    run = interbasis.build(network, open_data("npz:rows.npz"), model="python:trusted_net:make")
    assert run.features(top=1).layers
    assert (run.save(project / "saved") / SIGNATURE).is_file()


def test_the_same_request_does_not_sign_another_name_of_the_model(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = json.loads((run / "config.json").read_text())
    values["provenance"]["model"] = "python:os:abort"
    (run / "config.json").write_text(json.dumps(values))
    new_process(monkeypatch)
    ended = cli("build", "python:trusted_net:make", "--data", "npz:rows.npz", "--out", run)
    assert ended.code == 2
    assert "built with model = python:os:abort" in ended.err


def test_an_installed_model_imports_nothing_from_the_working_folder(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signed name of an installed module stays safe where a stranger has put modules of the same names."""
    installed, trap = tmp_path / "site", tmp_path / "trap"
    write_project(installed, "try:\n    import helper_of_net\nexcept ImportError:\n    pass")
    monkeypatch.syspath_prepend(installed)
    (project / "trusted_net.py").unlink()
    rows = project / "rows.npz"
    build = ("build", "python:trusted_net:make", "--data", f"npz:{rows}")
    assert cli(*build, "--out", "lib").code == 0
    trap.mkdir()
    (trap / "helper_of_net.py").write_text("import pathlib; pathlib.Path('executed').touch()")
    new_process(monkeypatch)
    monkeypatch.chdir(trap)
    ended = cli("ablate", project / "lib")
    assert ended.code == 0, ended.err
    assert not (trap / "executed").exists()


def test_a_job_does_not_sign_the_names_in_a_strangers_shard(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard that a job finds done may hold another request than the job's."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    from interbasis.base.tensor_file import tensor_digest

    job = ("build", "python:trusted_net:make", "--data", "npz:rows.npz", "--out", "sharded", "--shard", "1/1")
    assert cli(*job).code == 0
    shard = next(Path("sharded/shards").glob("*.safetensors"))
    with safe_open(shard, "pt") as file:
        metadata = file.metadata()
    tensors = {name: tensor.clone() for name, tensor in load_file(shard).items()}
    metadata["header"] = metadata["header"].replace("python:trusted_net:make", "python:os:abort")
    metadata["sha256"] = tensor_digest({}, *(metadata[name] for name in ("header", "values", "digests")))
    save_file(tensors, shard, metadata)
    Path("sharded/shards/signature.json").unlink()
    new_process(monkeypatch)
    assert cli(*job).code == 0
    ended = cli("merge", "sharded/shards", "--out", "sharded")
    assert ended.code == 2
    assert "run python:os:abort" in ended.err
