"""Runs to look at: the shipped modular-addition model with results that the real stages wrote."""

from pathlib import Path

from command_line import run_command
from interbasis import build
from interbasis.run.opened import open_run
from interbasis.run.specs import open_model

DATA = "modadd,samples=600"


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
