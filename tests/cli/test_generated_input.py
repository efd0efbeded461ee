"""Generated bad inputs: wrong values of options, names, specs and files, through the command line.

A command ends with a result and exit code 0, or with one sentence and exit code 2, never with a traceback,
and leaves nothing half-written: no run folder, or a run that opens.
"""

import io
import json
import random
import shutil
import string
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import interbasis
from command_line import Cli
from interbasis.graph.named_models import open_model
from interbasis.graph.store import load
from interbasis.models import mlp
from interbasis_studies.training.modadd import Recipe, initial_weights
from tiny_models import random_model

FEW, MANY = 30, 300
ODD_TEXT = (
    "", " ", "-1", "0", "1", "nan", "inf", "-inf", "1e30", "1e-300", "9" * 40, "0x10", "1_000", "½", "٣", "²",
    "true", "null", "[]", "{}", "a,b", ",", ":", "::", "=", "a=b", "..", "/", "~", "*", "%s", "{split}",
    "\x00", "\x1b[31m", "\ud800", "é", "名", "🙂", "a b", "'", '"', "\\", "\n", "-", "--", "--out", "1/0",
    "0/0", "-0.0", "1.5", "1e3", "None", "all", "x" * 300, "a" * 5000,
)  # fmt: skip
OPTIONS = {
    "build": [
        "basis", "threshold", "relative-threshold", "jacobian-sources", "jacobian-queries", "skip-positions",
        "norm-limit", "edge-method", "edge-points", "edge-group", "edge-sources", "edge-positions", "seed",
        "dtype", "layers", "data", "jacobian-data", "edge-data", "memory", "device", "cache-gigabytes",
        "threads", "config", "shard",
    ],
    "ablate": ["data", "metric", "tolerance", "sections", "level", "memory", "device", "model"],
    "curves": ["data", "metric", "model", "device"],
    "features": ["data", "top", "ends", "model", "device"],
    "modules": ["resolution", "seed", "trials"],
    "steer": ["feature", "by", "sample", "start", "top", "tokens", "prompt", "model"],
    "trace": ["sample", "output", "minus", "feature", "position", "node-threshold", "edge-threshold", "name"],
    "show": ["width"],
    "plan": ["data", "memory", "positions", "samples", "layers", "dtype"],
    "export": ["html", "graphml", "parquet", "json"],
    "figures": ["format", "out"],
    "compare": ["model"],
    "merge": ["round"],
    "shards": ["shards", "out"],
}  # fmt: skip
"""Options that may take a wrong value; some are of another command."""


KINDS = ("option", "option", "name", "spec", "npz", "jsonl", "safetensors", "config")
COMMANDS = ("show", "build", "plan", "ablate", "features", "report", "modules", "merge")
DATA = ("modadd", "npz:", "tokens:", "text:", "images:", "hf:", "mnist:", "cifar10:", "")
FILES = ("{zoo}/fine.npz", "{zoo}/tokens.uint16", "{zoo}/text", "{zoo}")
DATA_OPTIONS = (
    "samples", "context", "bos", "column", "part", "per", "held_out", "tokenizer", "p", "stream", "é",
)  # fmt: skip
ROWS: tuple[Any, ...] = (
    5, None, True, "", "a a a", [], [1], {}, {"role": "user"}, [{"role": "user"}], 1e999, "\ud800",
)  # fmt: skip
KINDS_OF_LAYERS = ("Linear", "ReLU", "Conv2d", "GELU", 5, None, "Module")
SIZES = (6, -1, "6", 2**40, 0.5, None)


class Generated:
    """Commands with something wrong in them, from one seed each."""

    def __init__(self, zoo: Path, folder: Path, seed: int) -> None:
        self.zoo, self.folder, self.random = zoo, folder, random.Random(seed)

    def command(self) -> tuple[str, list[str]]:
        kind = self.random.choice(KINDS)
        return kind, getattr(self, f"_{kind}")()

    def _text(self) -> str:
        if self.random.random() < 0.7:
            return self.random.choice(ODD_TEXT)
        letters = string.printable + "éß名🙂\x00\x7f\ud800"
        return "".join(self.random.choices(letters, k=self.random.randint(1, 30)))

    def _build(self, model: str, data: str | None = None, *more: str) -> list[str]:
        given = [] if data is None else ["--data", data]
        return ["build", model, *given, "--out", str(self.folder / "out"), *more]

    def _option(self) -> list[str]:
        command = self.random.choice(list(OPTIONS))
        option, value = self.random.choice(OPTIONS[command]), self._text()
        given = [f"--{option}={value}"] if self.random.random() < 0.5 else [f"--{option}", value]
        if command == "build":
            return self._build(f"modadd:{self.zoo}/modadd.safetensors", None, *given)
        if command == "plan":
            return ["plan", f"modadd:{self.zoo}/modadd.safetensors", *given]
        run = self.folder / "run"
        shutil.copytree(self.zoo / "run", run)
        needed = {
            "steer": ["--feature", "mlp_in.0:1", "--by", "1", "--sample", "0"],
            "trace": ["--sample", "0"],
            "compare": [str(self.zoo / "run")],
        }.get(command, [])
        return [command, str(run), *needed, *given]

    def _name(self) -> list[str]:
        command = self.random.choice(COMMANDS)
        family = self.random.choice(["", "modadd:", "mlp:", "hf:", "python:", "cifar10-conv:"])
        name = family + self._text() + self.random.choice(["", ":x", ":", ",blocks=9", ",output=maybe"])
        more = ["--out", str(self.folder / "out")] if command in ("build", "report", "merge") else []
        return [command, name, *more]

    def _spec(self) -> list[str]:
        family, number = self.random.choice(DATA), self.random.randint(0, 3)
        file = self.random.choice([self._text(), *FILES])
        options = "".join(f",{self.random.choice(DATA_OPTIONS)}={self._text()}" for _ in range(number))
        path = "" if family == "modadd" else file.replace("{zoo}", str(self.zoo))
        return self._build(f"mlp:{self.zoo}/mlp.safetensors", family + path + options)

    def _npz(self) -> list[str]:
        """An archive of random shapes and types, or a damaged one."""
        path, draw = self.folder / "generated.npz", self.random
        numbers = np.random.default_rng(draw.randint(0, 2**30))
        shape = tuple(draw.choice([0, 1, 2, 6, 20]) for _ in range(draw.randint(0, 4)))
        kind = draw.choice(["f8", "f4", "f2", "i8", "u2", "?", "c16", "U3", "M8[s]"])
        x = np.full((20, 6), draw.choice([np.nan, np.inf, 0.0, 1e308]))
        if draw.random() < 0.7:
            with np.errstate(all="ignore"):
                x = (10.0 ** draw.choice([0, 300, -300]) * numbers.normal(size=shape)).astype(kind)
        y = numbers.integers(-3, 9, size=draw.choice([(), (20,), shape[:1], (20, 2)]))
        arrays: dict[str, Any] = {draw.choice(["x", "inputs", "x_train", "z"]): x, "y": y}
        np.savez(path, **arrays)
        damage = draw.random()
        if damage < 0.3:
            self._damage(path)
        elif damage < 0.5:
            header = io.BytesIO()
            claimed = (2 ** draw.choice([10, 30, 50, 62]), draw.choice([6, 2**10]))
            about = {"descr": draw.choice(["<f8", "|O", "<f16"]), "fortran_order": False, "shape": claimed}
            np.lib.format.write_array_header_2_0(header, about)
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("x.npy", header.getvalue())
        return self._build(f"mlp:{self.zoo}/mlp.safetensors", f"npz:{path}")

    def _jsonl(self) -> list[str]:
        path, draw = self.folder / "generated.jsonl", self.random
        rows = [json.dumps({draw.choice(["text", "story", "x"]): draw.choice(ROWS)}) for _ in range(20)]
        rows += draw.sample(["", "{", "[]", "5", '"a"', "nul", '{"text": }', "\x00"], k=draw.randint(0, 2))
        draw.shuffle(rows)
        path.write_text("\n".join(rows), encoding="utf-8", errors="surrogatepass")
        if draw.random() < 0.2:
            self._damage(path)
        return self._build(f"hf:{self.zoo}/gpt2", f"text:{path},context=4")

    def _safetensors(self) -> list[str]:
        family = self.random.choice(["mlp", "modadd"])
        path = self.folder / "generated.safetensors"
        draw = self.random.random()
        if draw < 0.4:
            shutil.copy(self.zoo / f"{family}.safetensors", path)
            self._damage(path)
        elif draw < 0.7:
            size = self.random.choice(["in_features", "out_features", "x"])
            layer = {"type": self.random.choice(KINDS_OF_LAYERS), size: self.random.choice(SIZES)}
            whole = {"family": "mlp", "layers": [layer]}
            described = self.random.choice([whole, [], 5, {"family": "mlp"}, {"layers": {}}])
            save_file({"0.weight": torch.zeros(4, 6)}, path, {"architecture": json.dumps(described)})
        else:
            weights = initial_weights(Recipe(p=11, width=16, heads=2, hidden=24))
            name = self.random.choice(sorted(weights))
            right = weights[name]
            wrong = [torch.zeros(3), right[:0], right.long(), torch.full_like(right, torch.nan)]
            save_file(weights | {name: self.random.choice(wrong).contiguous()}, path)
        return self._build(f"{family}:{path}")

    def _config(self) -> list[str]:
        """A language model with one wrong setting."""
        model = self.folder / "model"
        shutil.copytree(self.zoo / "gpt2", model)
        config = json.loads((model / "config.json").read_text())
        values = [-1, 0, 1, 3, 2**40, 1.5, "1", "", None, True, [], {}, "swishy", float("nan"), [1, 2]]
        for _ in range(self.random.randint(1, 2)):
            config[self.random.choice([*config, "rope_scaling", "auto_map"])] = self.random.choice(values)
        (model / "config.json").write_text(json.dumps(config))
        if self.random.random() < 0.2:
            self._damage(model / self.random.choice(["config.json", "model.safetensors"]))
        command = self.random.choice(["show", "build", "plan"])
        name, tokens = f"hf:{model}", f"tokens:{self.zoo}/tokens.uint16,context=4"
        return self._build(name, tokens) if command == "build" else [command, name]

    def _damage(self, path: Path) -> None:
        """Some bytes changed, or the end cut off."""
        content = bytearray(path.read_bytes())
        if self.random.random() < 0.4:
            content = content[: self.random.randint(0, len(content))]
        else:
            for _ in range(self.random.randint(1, 8)):
                content[self.random.randrange(min(len(content), 4096))] = self.random.randrange(256)
        path.write_bytes(content)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is right, to be spoiled."""
    pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("zoo")
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(40, 6))
    np.savez(folder / "fine.npz", x=x, y=np.arange(40) % 3)
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    mlp.save(module, folder / "mlp.safetensors", data=f"npz:{folder}/fine.npz")
    save_file(initial_weights(Recipe(p=11, width=16, heads=2, hidden=24)), folder / "modadd.safetensors")
    (np.arange(200, dtype=np.uint16) % 23).tofile(folder / "tokens.uint16")
    (folder / "text").write_text("a a a\n")
    random_model("gpt2").save_pretrained(folder / "gpt2")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(
        str(folder / "gpt2/tokenizer.json")
    )
    model = open_model(f"modadd:{folder}/modadd.safetensors")
    interbasis.build(model.network, model.data, model=model.spec).save(folder / "run")
    return folder


def check(seed: int, zoo: Path, folder: Path, cli: Cli) -> tuple[str, int]:
    """One generated command: what is wrong in it, and its exit code."""
    kind, command = Generated(zoo, folder, seed).command()
    before = {path: path.stat().st_mtime_ns for path in zoo.rglob("*") if "__pycache__" not in path.parts}
    ended = cli(*command)
    told = (seed, command, ended)
    assert ended.code in (0, 2), told
    assert "Traceback" not in ended.err, told
    if ended.code:
        sentences = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        assert len(sentences) == 1, told
        assert ended.out == "", told
        out = folder / "out"
        assert not out.exists() or (out / ".resume").is_dir() or load(out), told
    elif command[0] == "build":
        assert load(folder / "out").layers, told
    left = [path for path in folder.rglob("*") if path.name.endswith((".tmp", ".new"))]
    assert not left, told
    assert before == {
        path: path.stat().st_mtime_ns for path in zoo.rglob("*") if "__pycache__" not in path.parts
    }, told
    return kind, ended.code


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERBASIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("interbasis.data.download._download", _out_of_reach)


def _out_of_reach(*arguments: object) -> None:
    raise OSError("there is no network in this test")


@pytest.mark.parametrize("seed", range(FEW))
def test_generated_input_is_a_result_or_one_sentence(
    seed: int, zoo: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path, monkeypatch)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    check(seed, zoo, folder, cli)


@pytest.mark.slow
def test_300_generated_inputs(
    zoo: Path,
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepared(tmp_path, monkeypatch)
    counts: Counter[tuple[str, int]] = Counter()
    for seed in range(MANY):
        folder = tmp_path / str(seed)
        folder.mkdir()
        monkeypatch.chdir(folder)
        counts[check(seed, zoo, folder, cli)] += 1
    with capsys.disabled():
        for (kind, code), number in sorted(counts.items()):
            print(f"{kind}: {number} ended with exit code {code}")
    assert sum(counts.values()) == MANY
    assert {kind for kind, _ in counts} == {"option", "name", "spec", "npz", "jsonl", "safetensors", "config"}
