"""Runs to look at: the shipped modular-addition model with results that the real stages wrote."""

import importlib.util
from pathlib import Path
from types import ModuleType

from command_line import run_command
from interbasis import build
from interbasis.run.opened import open_run
from interbasis.run.specs import open_model
from pages import ROOT

DATA = "modadd,samples=600"
PROMPT = "Once there was a girl named Lily . She went to the park and saw a cat ."


def built_run(folder: Path, basis: str) -> Path:
    opened = open_model("modadd")
    return build(opened.network, opened.data, basis, model="modadd").save(folder)


def command(*arguments: object) -> None:
    """What a user types behind `interbasis`."""
    ended = run_command(*arguments)
    assert ended.code == 0, ended.err


def add_results(folder: Path) -> None:
    """All results that a page can show, measured on few pairs."""
    run = open_run(folder)
    run.ablate(data=DATA, stable=False)
    run.curves(data=DATA)
    run.modules(null_graphs=3)
    run.features(data=DATA, top=40, ends=4, bands=2, per_band=2)


def story_run(folder: Path) -> Path:
    """A language model with layer norms, made in seconds, with features, modules and a traced prompt."""
    small_model = load_example("small_model")
    model = small_model.make(folder / "model", steps=120)
    data = f"tokens:{model}/tokens.uint16,context=34,samples=60"
    command("build", f"hf:{model}", "--data", data, "--out", folder / "run")
    run = open_run(folder / "run")
    run.features(top=12, ends=3, bands=0)
    run.modules(null_graphs=2)
    run.trace(prompt=PROMPT, checks=4)
    return folder / "run"


def load_example(name: str) -> ModuleType:
    """A Python file of `examples/`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
