"""Whatever is wrong: one sentence on standard error, exit code 2, and nothing written."""

import contextlib
import ctypes
import gc
import io
import json
import os
import re
import resource
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import interbasis
from bad_input import CASES, SMALL
from command_line import Cli, run_command
from interbasis.base.memory import parse_bytes, resident_bytes
from interbasis.models import mlp
from interbasis_studies.training.modadd import Recipe, initial_weights
from tiny_models import random_model


def sequential(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that can be wrong, and a few things that are right."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "words").mkdir()
    _models(folder)
    _data(folder)
    _runs(folder)
    _language_models(folder)
    for name, text in {
        "bad.toml": "basis =", "list.json": "[1]", "key.toml": 'model = "modadd"\nbassis = "lib"\n',
        "failing.py": "1 / 0\n", "syntax.py": "def f(:\n",
        "empty.json": "{}", "text": "neither a model nor data\n", "text.docx": "", "text.parquet": "no",
        "bad_models.py": "from torch import nn\ndef norm():\n"
        "    return nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 2))\n",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    tokenizers = pytest.importorskip("tokenizers")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(
        str(folder / "words/tokenizer.json")
    )
    return folder


def _models(folder: Path) -> None:
    mlp.save(sequential(6, 4, 3), folder / "mlp.safetensors", data=f"npz:{folder}/fine.npz")
    mlp.save(sequential(6, 4, 3), folder / "alone.safetensors")
    spoiled = sequential(6, 4, 3)
    spoiled[2].weight.data[1, 2] = torch.nan
    mlp.save(spoiled, folder / "spoiled.safetensors", data=f"npz:{folder}/fine.npz")
    weights = initial_weights(Recipe(p=11, width=16, heads=2, hidden=24))
    save_file(weights, folder / "modadd.safetensors")
    whole = (folder / "modadd.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    for name, layer in (
        ("kind", {"type": "Conv2d"}),
        ("shape", {"type": "Linear", "in_features": 9, "out_features": 4}),
    ):
        about = {"architecture": json.dumps({"family": "mlp", "layers": [layer]})}
        save_file(
            {"0.weight": torch.zeros(4, 6), "0.bias": torch.zeros(4)}, folder / f"{name}.safetensors", about
        )


def _data(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6))
    y = np.arange(40) % 3
    bad = {"nan": (3, np.nan), "inf": (5, np.inf)}
    for name, (row, value) in bad.items():
        spoiled = x.copy()
        spoiled[row, 2] = value
        np.savez(folder / f"{name}.npz", x=spoiled, y=y)
    np.savez(folder / "fine.npz", x=x, y=y)
    np.savez(folder / "large.npz", x=np.full((40, 6), 1e200), y=y)
    np.savez(folder / "number.npz", x=np.float64(5))
    np.savez(folder / "wide.npz", x=x[:, :5], y=y)
    np.savez(folder / "labels.npz", x=x, y=y[:7])
    np.savez(folder / "empty.npz", x_train=x[:0], y_train=y[:0])
    np.savez(folder / "other.npz", weights=x)
    np.savez(folder / "pickled.npz", x=np.array([{}], dtype=object), y=np.zeros(1, int))
    np.savez(folder / "small_images.npz", x_train=np.zeros((2, 8, 8, 3), np.uint8), y_train=y[:2])
    np.arange(50, dtype=np.uint16).tofile(folder / "stories.uint16")
    (folder / "odd.uint16").write_bytes(b"\xff\xfe\xff")
    (folder / "numbers.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
    (folder / "latin.jsonl").write_bytes('{"text": "é"}'.encode("latin-1"))
    (folder / "deep.jsonl").write_text(100_000 * "[" + 100_000 * "]")
    header = io.BytesIO()
    shape = (2**40, 2**10)  # 7 PiB of float64 in a file of a few bytes
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(folder / "petabytes.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(64))


def _language_models(folder: Path) -> None:
    """Hugging Face folders with a wrong number each in their config.json."""
    pytest.importorskip("transformers")
    right = folder / "gpt2"
    random_model("gpt2").save_pretrained(right)
    for name, value in (
        ("n_layer", -1), ("n_layer", "1"), ("n_embd", 0), ("n_head", 5), ("activation_function", "swishy"),
    ):  # fmt: skip
        wrong = folder / f"{name}={value}"
        shutil.copytree(right, wrong)
        config = json.loads((wrong / "config.json").read_text())
        (wrong / "config.json").write_text(json.dumps(config | {name: value}))


def _runs(folder: Path) -> None:
    data = torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name, widths in (("run", (6, 4, 3)), ("other", (6, 5, 3))):
        interbasis.build(interbasis.from_torch(sequential(*widths)), data).save(folder / name)
    for name in ("newer", "truncated", "damaged", "later"):
        interbasis.build(interbasis.from_torch(sequential(6, 4, 3)), data).save(folder / name)
    header = json.loads((folder / "newer/config.json").read_text())
    (folder / "newer/config.json").write_text(json.dumps(header | {"schema": 99}))
    network = interbasis.from_torch(sequential(6, 4, 3))
    interbasis.open_run(folder / "later", network, (data, network(data).argmax(-1))).ablate()
    result = folder / "later/ablation.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"schema_version": 99}))
    options = ["--relative-threshold", "0.3", "--out", folder / "rough"]
    built = run_command("build", f"modadd:{folder}/modadd.safetensors", *options)
    assert built.code == 0  # with too few features to do what the network does
    tensors = next((folder / "truncated").glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:-8])
    (folder / "damaged/config.json").write_text('{"format": "interbasis-gr')


def written(folder: Path) -> dict[Path, int]:
    """When every file was last written; of folders, which change while a lock is in them, that they exist."""
    paths = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in paths}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_exit_code_2_and_nothing_written(
    case: str, zoo: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, message = CASES[case]
    monkeypatch.chdir(zoo)
    monkeypatch.setenv("INTERBASIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    before = written(zoo)
    code, out, err = cli(*(argument.format(zoo=zoo, out=tmp_path / "out") for argument in arguments))
    assert code == 2
    assert out == ""
    assert message.replace("{zoo}", str(zoo)) in err
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert not (tmp_path / "out").exists()
    assert before == written(zoo)


def test_a_full_disk_is_one_sentence_and_nothing_is_written(zoo: Path, tmp_path: Path, cli: Cli) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        code, out, err = cli(*(argument.format(zoo=zoo, out=tmp_path / "out") for argument in SMALL))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "could not write" in err
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".safetensors", ".tmp")]


@pytest.fixture
def nobody(zoo: Path, cli: Cli, tmp_path: Path) -> Iterator[None]:
    """Not root, to whom no folder is read-only."""
    if os.getuid() != 0:
        yield
        return
    # the interpreter's own folder may be root's alone, so what the commands import must have been imported
    import networkx.readwrite.graphml  # noqa: F401
    import numpy.f2py  # noqa: F401

    shutil.copytree(zoo / "rough", tmp_path / "rough")
    cli("report", tmp_path / "rough", "--out", tmp_path / "report")
    cli("export", tmp_path / "rough", "--graphml", tmp_path / "x.graphml")
    cli("modules", tmp_path / "rough", "--null-graphs", "0")
    os.setresuid(65534, 65534, 0)
    yield
    os.setresuid(0, 0, 0)


@pytest.fixture
def read_only(tmp_path_factory: pytest.TempPathFactory, zoo: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    shutil.copy(zoo / "modadd.safetensors", folder)
    shutil.copytree(zoo / "rough", folder / "rough")
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in (folder, folder / "rough"):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "modadd:{folder}/modadd.safetensors", "--out", "{folder}/run"],
        ["train", "modadd", "--steps", "1", "--out", "{folder}/m.safetensors"],
        ["report", "{folder}/rough", "--out", "{folder}/report"],
        ["export", "{folder}/rough", "--graphml", "{folder}/x.graphml"],
        ["modules", "{folder}/rough", "--null-graphs", "0"],
        ["build", "modadd:{folder}/modadd.safetensors", "--out", "{folder}/rough", "--overwrite"],
    ],
)
def test_a_read_only_folder_is_one_sentence(
    arguments: list[str], read_only: Path, nobody: None, cli: Cli
) -> None:
    before = sorted(read_only.rglob("*"))
    code, out, err = cli(*(argument.format(folder=read_only) for argument in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "could not write" in err
    assert sorted(read_only.rglob("*")) == before


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "x"}, "RANK is 'x', expected a whole number of at least 0"),
        ({"RANK": "0", "WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2', expected a whole number of at least 1"),
        ({"RANK": "7", "WORLD_SIZE": "2"}, "RANK is 7, expected less than WORLD_SIZE, 2"),
    ],
)
def test_an_environment_that_torchrun_did_not_make(
    environment: dict[str, str],
    message: str,
    zoo: Path,
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for command in (
        ["show", zoo / "run"],
        ["build", f"mlp:{zoo}/mlp.safetensors", "--out", tmp_path / "out"],
    ):
        code, out, err = cli(*command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_data_that_do_not_vary_are_warned_of(value: float, zoo: Path, tmp_path: Path, cli: Cli) -> None:
    np.savez(tmp_path / "same.npz", x=np.full((20, 6), value), y=np.zeros(20, int))
    built = cli(
        "build", f"mlp:{zoo}/mlp.safetensors", "--data", f"npz:{tmp_path}/same.npz", "--out", tmp_path / "run"
    )
    assert built.code == 0
    assert "no features at linear.0, linear.1:" in built.err
    fine = cli("build", f"mlp:{zoo}/mlp.safetensors", "--out", tmp_path / "fine")
    assert "warning" not in fine.err


def test_a_threshold_above_some_layers_is_warned_of(tmp_path: Path, cli: Cli) -> None:
    """Of the first layer it keeps all features; the numbers of the second are much smaller."""
    module = sequential(6, 4, 3)
    module[0].weight.data.div_(1e5)
    x = 100 * np.random.default_rng(0).normal(size=(40, 6))
    np.savez(tmp_path / "large.npz", x=x, y=np.arange(40) % 3)
    mlp.save(module, tmp_path / "mlp.safetensors", data=f"npz:{tmp_path}/large.npz")
    arguments = ["build", f"mlp:{tmp_path}/mlp.safetensors", "--basis", "pca", "--threshold", "10"]
    built = cli(*arguments, "--out", tmp_path / "run")
    assert built.code == 0
    assert "warning: the threshold 10" in built.err
    assert "at linear.1" in built.err


def test_the_memory_that_a_refusal_names_is_enough(zoo: Path, tmp_path: Path, cli: Cli) -> None:
    """Also where the amount given and the amount needed would be rounded to the same number."""
    options = ["build", f"modadd:{zoo}/modadd.safetensors", "--out", tmp_path / "run"]
    gc.collect()  # what tests before this one left would be freed in the build, which would then fit
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    for given in (resident_bytes(), resident_bytes() // 2):
        refused = cli(*options, "--memory", f"{given}B")
        assert refused.code == 2
        named = re.search(r"give --memory (\S+GB) or more", refused.err)[1]
        assert parse_bytes(named) > given
    assert cli(*options, "--memory", named).code == 0
