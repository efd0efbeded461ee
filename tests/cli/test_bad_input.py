"""Whatever is wrong: one sentence on standard error, exit code 2, and nothing written."""

import json
import os
import resource
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import interbasis
from command_line import run_command
from interbasis.models import mlp
from interbasis.training.modadd import Recipe, initial_weights

MODEL = "mlp:{zoo}/mlp.safetensors"
BUILD = ["build", MODEL, "--out", "{out}"]
WITH = [*BUILD, "--data"]
SMALL = ["build", "modadd:{zoo}/modadd.safetensors", "--out", "{out}"]
TOKENS = "tokens:{zoo}/stories.uint16"

CASES = {
    # models
    "no such checkpoint": (["build", "modadd:{zoo}/none", "--out", "{out}"], "there is no such file"),
    "unknown family": (["build", "bert:x", "--out", "{out}"], "expected a model as modadd:PATH"),
    "no path": (["build", "mlp:", "--out", "{out}"], "expected a model as"),
    "no model": (["build", "--out", "{out}"], "expected a model"),
    "checkpoint is text": (["build", "modadd:{zoo}/text", "--out", "{out}"], "could not read"),
    "checkpoint is cut off": (["build", "modadd:{zoo}/cut.safetensors", "--out", "{out}"], "could not read"),
    "tensors are missing": (["build", "modadd:{zoo}/mlp.safetensors", "--out", "{out}"], "is missing"),
    "no such MLP": (["build", "mlp:{zoo}/none", "--out", "{out}"], "there is no such file"),
    "MLP is text": (["build", "mlp:{zoo}/text", "--out", "{out}"], "could not read"),
    "no architecture": (["build", "mlp:{zoo}/modadd.safetensors", "--out", "{out}"], "have no architecture"),
    "architecture of another kind": (["build", "mlp:{zoo}/kind.safetensors", "--out", "{out}"], "layer 0"),
    "shapes that do not fit": (["build", "mlp:{zoo}/shape.safetensors", "--out", "{out}"], "requires 0"),
    "no function": (["build", "python:json", "--out", "{out}"], "python:MODULE:FUNCTION"),
    "no such module": (["build", "python:no_such_module:f", "--out", "{out}"], "could not import"),
    "no such function": (["build", "python:json:no_such", "--out", "{out}"], "has no no_such"),
    "not a function": (["build", "python:math:pi", "--out", "{out}"], ", not a function"),
    "function fails": (["build", "python:json:dumps", "--out", "{out}"], "failed with TypeError"),
    "function gives no module": (["build", "python:builtins:dict", "--out", "{out}"], "returned dict"),
    "unsupported module": (["build", "python:bad_models:norm", "--out", "{out}"], "'1' is a LayerNorm"),
    "no such language model": (["build", "hf:{zoo}/none", "--out", "{out}"], "with a config.json"),
    "Hub id with no network": (["build", "hf:no-one/nothing", "--out", "{out}"], "while there is a network"),
    "blocks of what": (["build", "hf:{zoo}/none,block=1", "--out", "{out}"], "have no option 'block'"),
    "Hub data with no network": ([*WITH, "hf:no-one/nothing"], "could not fetch the data set no-one/nothing"),
    # data
    "model without data": (["build", "mlp:{zoo}/alone.safetensors", "--out", "{out}"], "with --data"),
    "unknown data": ([*WITH, "imagenet"], "expected data as modadd"),
    "option of other data": ([*WITH, "npz:{zoo}/fine.npz,context=8"], "no option 'context'"),
    "no samples": ([*WITH, "npz:{zoo}/fine.npz,samples=0"], "samples is a whole number of at least 1"),
    "too many samples": ([*WITH, "npz:{zoo}/fine.npz,samples=1000"], "the first 1000 cannot be taken"),
    "no such npz": ([*WITH, "npz:{zoo}/none.npz"], "there is no such file"),
    "npz is text": ([*WITH, "npz:{zoo}/text"], "could not read"),
    "npz is pickled": ([*WITH, "npz:{zoo}/pickled.npz"], "plain arrays"),
    "npz without inputs": ([*WITH, "npz:{zoo}/other.npz"], "has no array x_train or x"),
    "npz with odd labels": ([*WITH, "npz:{zoo}/labels.npz"], "expected integer labels y"),
    "empty npz": ([*WITH, "npz:{zoo}/empty.npz"], "is empty"),
    "inputs of another width": ([*WITH, "npz:{zoo}/wide.npz"], "expected inputs of shape [samples, 6]"),
    "NaN": ([*WITH, "npz:{zoo}/nan.npz"], "'linear.0' are not finite (NaN or infinite), first for sample 3"),
    "infinite": ([*WITH, "npz:{zoo}/inf.npz"], "first for sample 5 of the data"),
    "NaN in the weights": (
        ["build", "mlp:{zoo}/spoiled.safetensors", "--out", "{out}"],
        "'output' are not finite (NaN or infinite), first for sample 0"),
    "images for tokens": ([*SMALL, "--data", "npz:{zoo}/fine.npz"], "expected integer tokens"),
    "tokens out of range": ([*SMALL, "--data", TOKENS + ",context=3,part=all"], "tokens lie between"),
    "no such tokens": ([*WITH, "tokens:{zoo}/none.npy"], "there is no such file"),
    "half a token": ([*WITH, "tokens:{zoo}/odd.uint16"], "expected a multiple of 2"),
    "tokens by another name": ([*WITH, "tokens:{zoo}/text.docx"], "expected a token file that ends in"),
    "unknown option": ([*WITH, TOKENS + ",contxt=8"], "there is no option 'contxt'"),
    "no context": ([*WITH, TOKENS + ",context=0"], "context cannot be '0'"),
    "too few tokens": ([*WITH, TOKENS + ",part=all"], "fewer than the 513"),
    "documents not known": ([*WITH, TOKENS + ",context=4,per=document"], "bos=TOKEN"),
    "what to prepend": ([*WITH, TOKENS + ",context=4,prepend=yes,part=all"], "name it as bos=TOKEN"),
    "unknown part": ([*WITH, TOKENS + ",context=4,part=half"], "the only part that can be chosen is"),
    "parquet is text": ([*WITH, "tokens:{zoo}/text.parquet"], "could not read"),
    "text without tokenizer": ([*WITH, "text:{zoo}/text"], "a tokenizer is needed"),
    "no such tokenizer": ([*WITH, "text:{zoo}/text,tokenizer={zoo}/none"], "expected a tokenizer at"),
    "text that is none": ([*WITH, "text:{zoo}/odd.uint16,tokenizer={zoo}/words"], "not text in UTF-8"),
    "data set without files": ([*WITH, "hf:{zoo}/words"], "has no parquet files"),
    "no such images": ([*WITH, "cifar10:{zoo}/none.npz"], "there is no such file"),
    "images of another shape": ([*WITH, "cifar10:{zoo}/small_images.npz"], "uint8 of shape [n, 32, 32, 3]"),
    "no digits": ([*WITH, "mnist:{zoo}/words"], "there is no train-images"),
    # settings
    "unknown layer": ([*SMALL, "--layers", "attn_in.0,mlp_inn.0"], "did you mean 'mlp_in.0'?"),
    "layers out of order": ([*SMALL, "--layers", "mlp_in.0,attn_in.0"], "in the network's order"),
    "layers with a gap": ([*SMALL, "--layers", "attn_in.0,unembed"], "without gaps"),
    "one layer": ([*SMALL, "--layers", "attn_in.0"], "at least two neighbouring"),
    "unknown basis": ([*SMALL, "--basis", "ica"], "--basis"),
    "unknown option of the command": ([*SMALL, "--bais", "lib"], "--bais"),
    "no points": ([*SMALL, "--edge-points", "0"], "--edge-points cannot be 0"),
    "negative seed": ([*SMALL, "--seed", "-1"], "seed cannot be -1"),
    "negative threshold": ([*SMALL, "--threshold", "-0.1"], "threshold cannot be -0.1"),
    "threshold above one": ([*SMALL, "--relative-threshold", "1.5"], "--relative-threshold cannot be 1.5"),
    "no threads": ([*SMALL, "--threads", "0"], "threads cannot be 0"),
    "no such config": (["build", "--config", "{zoo}/none.toml", "--out", "{out}"], "there is no such file"),
    "config is not TOML": (["build", "--config", "{zoo}/bad.toml", "--out", "{out}"], "could not read"),
    "config is a list": (["build", "--config", "{zoo}/list.json", "--out", "{out}"], "settings by name"),
    "config of no kind": (["build", "--config", "{zoo}/text", "--out", "{out}"], ".toml, .yaml or .json"),
    "unknown key": (["build", "--config", "{zoo}/key.toml", "--out", "{out}"], "no setting 'bassis'"),
    "config without model": (["build", "--config", "{zoo}/empty.json", "--out", "{out}"], "expected a model"),
    "run made from Python": (["build", "--config", "{zoo}/run", "--out", "{out}"], "was built from Python"),
    "a file in the way": ([*SMALL[:-1], "{zoo}/text"], "is a file"),
    "a folder in a file": ([*SMALL[:-1], "{zoo}/text/run"], "since {zoo}/text is a file"),
    "a checkpoint in a file": (["train", "modadd", "--out", "{zoo}/text/m.safetensors"], "is a file"),
    "a foreign folder": ([*SMALL[:-1], "{zoo}"], "not an interbasis run"),
    "a run in the way": ([*SMALL[:-1], "{zoo}/run"], "--overwrite"),
    # runs
    "no such run": (["show", "{zoo}/none"], "is not a folder"),
    "newer schema": (["show", "{zoo}/newer"], "upgrade interbasis"),
    "tensors cut off": (["show", "{zoo}/truncated"], "truncated or changed"),
    "config cut off": (["show", "{zoo}/damaged"], "not readable JSON"),
    "newer schema of a run to ablate": (["ablate", "{zoo}/newer"], "upgrade interbasis"),
    "newer schema of a run to build again": (
        ["build", "--config", "{zoo}/newer", "--out", "{out}"], "upgrade interbasis"),
    "newer schema of a result": (["modules", "{zoo}/later"], "upgrade interbasis"),
    "nothing to ablate": (["ablate", "{zoo}/none"], "is not a folder"),
    "nothing for curves": (["curves", "{zoo}/none"], "is not a folder"),
    "nothing to control": (["controls", "{zoo}/none"], "is not a folder"),
    "nothing to find modules in": (["modules", "{zoo}/none"], "is not a folder"),
    "nothing to find features in": (["features", "{zoo}/none"], "is not a folder"),
    "nothing to look at": (["view", "{zoo}/none", "--no-open"], "is not a folder"),
    "nothing to export": (["export", "{zoo}/none", "--html", "{out}"], "is not a folder"),
    "nothing to report": (["report", "{zoo}/none", "--out", "{out}"], "is not a folder"),
    "no model to ablate": (["ablate", "{zoo}/run"], "does not name its model; add --model"),
    "tolerance that cannot be met": (
        ["ablate", "{zoo}/rough", "--metric", "cross_entropy", "--tolerance", "0"],
        "even with all edges the cross-entropy misses"),
    "tolerance that no control can meet": (
        ["controls", "{zoo}/rough", "--metric", "cross_entropy", "--tolerance", "0"],
        "even with all edges the cross-entropy misses"),
    "tolerance below zero": (["ablate", "{zoo}/rough", "--tolerance", "-1"], "--tolerance cannot be -1"),
    "no such section": (["ablate", "{zoo}/rough", "--sections", "mlp"], "no section from 'mlp'"),
    "no features wanted": (["features", "{zoo}/rough", "--top", "0"], "--top cannot be 0: input should be"),
    "no examples wanted": (["features", "{zoo}/rough", "--ends", "0"], "--ends cannot be 0: input should be"),
    "features of other data": (["features", "{zoo}/rough", "--data", "npz:{zoo}/fine.npz"], "integer tokens"),
    "different models": (["compare", "{zoo}/run", "{zoo}/other"], "runs of different models"),
    "half a comparison": (["compare", "{zoo}/run", "{zoo}/none"], "is not a folder"),
    # training
    "unknown task": (["train", "parity"], "parity"),
    "file in the way": (["train", "modadd", "--out", "{zoo}/text"], "exists already"),
    "other task's option": (["train", "cifar10", "--steps", "5", "--out", "{out}"], "--steps is not"),
    "no steps": (["train", "modadd", "--steps", "0", "--out", "{out}"], "--steps cannot be 0"),
    "seed below zero": (["train", "modadd", "--seed", "-1", "--out", "{out}"], "--seed cannot be -1"),
    "no images": (["train", "cifar10", "--data", "cifar10:{zoo}/x", "--out", "{out}"], "no such file"),
    "digits for images": (["train", "cifar10", "--data", "mnist", "--out", "{out}"], "cifar10:PATH"),
    "unknown command": (["biuld", "modadd"], "biuld"),
}  # fmt: skip


def sequential(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Everything that can be wrong, and a few things that are right."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "words").mkdir()
    _models(folder)
    _data(folder)
    _runs(folder)
    for name, text in {
        "bad.toml": "basis =", "list.json": "[1]", "key.toml": 'model = "modadd"\nbassis = "lib"\n',
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


def _models(folder):
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


def _data(folder):
    x = np.random.default_rng(0).normal(size=(40, 6))
    y = np.arange(40) % 3
    bad = {"nan": (3, np.nan), "inf": (5, np.inf)}
    for name, (row, value) in bad.items():
        spoiled = x.copy()
        spoiled[row, 2] = value
        np.savez(folder / f"{name}.npz", x=spoiled, y=y)
    np.savez(folder / "fine.npz", x=x, y=y)
    np.savez(folder / "wide.npz", x=x[:, :5], y=y)
    np.savez(folder / "labels.npz", x=x, y=y[:7])
    np.savez(folder / "empty.npz", x_train=x[:0], y_train=y[:0])
    np.savez(folder / "other.npz", weights=x)
    np.savez(folder / "pickled.npz", x=np.array([{}], dtype=object), y=np.zeros(1, int))
    np.savez(folder / "small_images.npz", x_train=np.zeros((2, 8, 8, 3), np.uint8), y_train=y[:2])
    np.arange(50, dtype=np.uint16).tofile(folder / "stories.uint16")
    (folder / "odd.uint16").write_bytes(b"\xff\xfe\xff")


def _runs(folder):
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
def test_one_sentence_exit_code_2_and_nothing_written(case, zoo, tmp_path, cli, monkeypatch):
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


def test_a_full_disk_is_one_sentence_and_nothing_is_written(zoo, tmp_path, cli):
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
def nobody(zoo, cli, tmp_path):
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
def read_only(tmp_path_factory, zoo):
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
def test_a_read_only_folder_is_one_sentence(arguments, read_only, nobody, cli):
    before = sorted(read_only.rglob("*"))
    code, out, err = cli(*(argument.format(folder=read_only) for argument in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "could not write" in err
    assert sorted(read_only.rglob("*")) == before
