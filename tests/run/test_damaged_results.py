"""Stored results that were damaged or tampered with: every reader works, or ends with one sentence."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from interbasis.base.errors import InterbasisError
from interbasis.show.viewer.notes import save_notes
from interbasis.show.viewer.page import runs_html
from interbasis.show.viewer.payload import run_payload
from run import damage

FAST, SLOW = 10, 300
READERS = {
    "show": ("show", "{run}"),
    "show as JSON": ("show", "{run}", "--json"),
    "compare": ("compare", "{run}", "{whole}"),
    "export": (
        "export", "{run}", "--html", "{out}/page.html", "--graphml", "{out}/run.graphml", "--parquet",
        "{out}/tables", "--neuronpedia", "{out}/run.json",
    ),
    "figures": ("figures", "{run}", "--out", "{out}/figures", "--format", "svg"),
    "report": ("report", "{run}", "--out", "{out}/report"),
}  # fmt: skip
MAX_MESSAGE = 1500
"""Characters of a sentence that a person reads."""


@pytest.fixture(scope="module")
def whole(made_once: Callable[[str, Callable[[Path], object]], Path], small_addition: Path) -> Path:
    """A run with every result that commands store; nobody writes to it."""

    def make(folder: Path) -> None:
        run = damage.write_run(folder, small_addition)
        place = {"layer": "mlp_in.0", "index": 1}
        save_notes(run, {"pinned": [place], "names": [place | {"name": "mine"}]})

    return made_once("damaged", make) / "run"


def check_readers(
    cli: Cli,
    whole: Path,
    folder: Path,
    seed: int,
    readers: list[Any] | dict[str, tuple[str, ...]],
) -> None:
    """Damage a copy of a run, and read it with every command."""
    run = folder / "run"
    done = damage.damaged(whole, run, seed)
    for name in readers:
        try:
            ended = cli(*(word.format(run=run, whole=whole, out=folder) for word in READERS[name]))
        except BaseException as error:
            raise AssertionError(f"{name} after damage {seed} ({done}): {error!r}") from error
        told = f"{name} after damage {seed} ({done}): {ended.err[:2000]!r}"
        (ended.out + ended.err).encode()
        if ended.code == 0:
            continue
        assert ended.code == 2, told
        assert ended.err.startswith("error: "), told
        assert len(ended.err) <= MAX_MESSAGE, told
        assert ended.err.count("\n") == 1, told
    try:
        runs_html([run], "token").encode()
    except InterbasisError as error:
        assert len(str(error)) <= MAX_MESSAGE  # noqa: PT017
    except Exception as error:
        raise AssertionError(f"the page after damage {seed} ({done}): {error!r}") from error


def is_refused(cli: Cli, run: Path, *words: object) -> str:
    """A command ends with one sentence, which is returned."""
    ended = cli(*words)
    assert ended.code == 2, ended.out
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    return ended.err


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def changed(run: Path, name: str, change: Callable[..., Any]) -> None:
    document = json.loads((run / name).read_text())
    change(document.get("result", document))
    (run / name).write_text(json.dumps(document))


@pytest.mark.parametrize("name", ["config.json", "ablation.json", "modules.json"])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
def test_deep_json_is_refused(
    cli: Cli, run: Path, tmp_path: Path, name: str, brackets: tuple[str, str]
) -> None:
    opening, closing = brackets
    (run / name).write_text(opening * 100_000 + "1" + closing * 100_000)
    assert "nested too deeply" in is_refused(cli, run, "report", run, "--out", tmp_path / "report")
    assert "nested too deeply" in is_refused(cli, run, "compare", run, run)
    if name == "config.json":
        assert "nested too deeply" in is_refused(cli, run, "show", run)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e308", "1" + "0" * 30])
def test_numbers_that_no_result_holds_are_refused(cli: Cli, run: Path, tmp_path: Path, number: str) -> None:
    text = (run / "ablation.json").read_text()
    (run / "ablation.json").write_text(re.sub(r'"baseline": [^,]+', f'"baseline": {number}', text))
    told = is_refused(cli, run, "report", run, "--out", tmp_path / "report")
    assert "ablation.json" in told
    assert "run 'interbasis ablate" in told


def test_more_isolated_features_than_there_are_are_refused(cli: Cli, run: Path) -> None:
    """They were listed one by one, until memory ended."""
    changed(run, "config.json", lambda config: config["layers"][0].update(isolated=10**15))
    assert "isolates 1000000000000000 of its" in is_refused(cli, run, "show", run)


def test_half_a_surrogate_pair_can_be_told(cli: Cli, run: Path) -> None:
    """As a name and as a value: what is printed has to be UTF-8."""
    changed(run, "config.json", lambda config: config["provenance"].update(model="mod\udfffel"))
    ended = cli("show", run)
    assert ended.code == 0
    assert "mod\ufffdel" in ended.out
    ended.out.encode()
    changed(run, "config.json", lambda config: config["provenance"].update({"a\ud800": 1}))
    assert "a\ufffd: extra inputs" in is_refused(cli, run, "show", run)


def test_missing_masks_are_told(cli: Cli, run: Path, tmp_path: Path) -> None:
    (run / "ablation.safetensors").unlink()
    assert "ablation.safetensors" in is_refused(cli, run, "report", run, "--out", tmp_path / "report")
    document = json.loads((run / "ablation.json").read_text())
    (run / "ablation.json").write_text(json.dumps(document | {"tensors": None}))
    told = is_refused(cli, run, "report", run, "--out", tmp_path / "report")
    assert "section from 'attn_in.0' is missing" in told


EMPTIED = {
    "curves.json": lambda result: result["curves"].update(fractions=[]),
    "controls.json": lambda result: result["rows"]["lib"]["curves"]["whole"].update(value_intervals=[]),
    "modules.json": lambda result: result["layers"].update({"mlp_in.0": []}),
    "features.json": lambda result: result["layers"]["mlp_in.0"]["features"][0]["histogram"].update(edges=[]),
    "ablation.json": lambda result: result["sections"].update(other=result["sections"].pop("mlp_in.0")),
}
"""A list of each result that cannot be empty, and a section under a name that the graph does not have."""


@pytest.mark.parametrize("name", EMPTIED)
def test_results_that_do_not_fit_together_are_refused(cli: Cli, run: Path, tmp_path: Path, name: str) -> None:
    changed(run, name, EMPTIED[name])
    told = is_refused(cli, run, "report", run, "--out", tmp_path / "report")
    assert f"{name} is damaged" in told
    (problem,) = run_payload(run).unreadable
    assert name in problem


@pytest.mark.parametrize("seed", range(FAST))
def test_damaged_results_end_in_a_sentence(cli: Cli, whole: Path, tmp_path: Path, seed: int) -> None:
    """Figures take longest, and are drawn for some of the damage only."""
    drawn = {0: ["figures"], 5: ["report"]}.get(seed % 10, [])
    check_readers(cli, whole, tmp_path, seed, ["show", "compare", "export", *drawn])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 40 + SLOW))
def test_more_damaged_results_end_in_a_sentence(cli: Cli, whole: Path, tmp_path: Path, seed: int) -> None:
    check_readers(cli, whole, tmp_path, seed, READERS)
