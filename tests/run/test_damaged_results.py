"""Stored results that were damaged or tampered with: every reader works, or ends with one sentence."""

from pathlib import Path

import pytest

from interbasis.runtime.errors import InterbasisError
from interbasis.viewer.page import html_of_runs
from interbasis.viewer.notes import save_notes
from run import damage

FAST, SLOW = 40, 300
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
def whole(made_once, small_addition) -> Path:
    """A run with every result that commands store; nobody writes to it."""

    def make(folder: Path) -> None:
        run = damage.write_run(folder, small_addition)
        place = {"layer": "mlp_in.0", "index": 1}
        save_notes(run, {"pinned": [place], "names": [place | {"name": "mine"}]})

    return made_once("damaged", make) / "run"


def check_readers(cli, whole: Path, folder: Path, seed: int, readers) -> None:
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
        html_of_runs([run], "token").encode()
    except InterbasisError as error:
        assert len(str(error)) <= MAX_MESSAGE  # noqa: PT017
    except Exception as error:
        raise AssertionError(f"the page after damage {seed} ({done}): {error!r}") from error


@pytest.mark.parametrize("seed", range(FAST))
def test_damaged_results_end_in_a_sentence(cli, whole, tmp_path, seed):
    """Figures take longest, and are drawn for some of the damage only."""
    drawn = {0: ["figures"], 5: ["report"]}.get(seed % 10, [])
    check_readers(cli, whole, tmp_path, seed, ["show", "compare", "export", *drawn])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST, FAST + SLOW))
def test_more_damaged_results_end_in_a_sentence(cli, whole, tmp_path, seed):
    check_readers(cli, whole, tmp_path, seed, READERS)
