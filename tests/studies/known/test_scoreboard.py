"""The board: resumed and repeated bit for bit, its page complete in itself, its sentences true."""

import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoints
from interbasis_studies.cli.scoreboard import _tables
from interbasis_studies.known import PlantedSpec, scoreboard_axes
from interbasis_studies.known import scoreboard as module
from interbasis_studies.known.conclusions import axis_conclusions, row_conclusion
from interbasis_studies.known.page import markdown, page
from interbasis_studies.known.records import Estimate, RecoveryScores, Row, Scoreboard, ScoreboardRequest
from widths import check_parts

SMALL = PlantedSpec(parts=2, size=2, hidden=4, depth=1, samples=200)
AXES: dict[str, Any] = {"correlation": (("0", SMALL), ("0.6", SMALL.model_copy(update={"correlation": 0.6})))}
REQUEST = ScoreboardRequest(quick=True, seeds=2, bases="lib,jib,ica,random,ceiling")


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    before, scoreboard_axes.QUICK_AXES = scoreboard_axes.QUICK_AXES, AXES
    yield
    scoreboard_axes.QUICK_AXES = before


@pytest.fixture(scope="module")
def board(small: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Scoreboard]:
    folder = tmp_path_factory.mktemp("board")
    return folder, module.run(REQUEST, folder, progress=False)


def test_the_same_bits_after_an_interruption(
    board: tuple[Any, Scoreboard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first = board
    done: list[Any] = []
    scores = module._scores

    def killed(
        cell: Any,
    ) -> Iterator[tuple[str, RecoveryScores]]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(cell)
        return scores(cell)

    monkeypatch.setattr(module, "_scores", killed)
    with pytest.raises(KeyboardInterrupt):
        module.run(REQUEST, tmp_path, progress=False)
    monkeypatch.setattr(module, "_scores", lambda cell: (done.append(cell), scores(cell))[1])
    again = module.run(REQUEST, tmp_path, progress=False)
    assert len(done) == 4  # two before, two after
    assert (tmp_path / "scoreboard.json").read_bytes() == (folder / "scoreboard.json").read_bytes()
    assert markdown(again) == markdown(first)
    assert not (tmp_path / ".resume").exists()


def test_the_page_holds_everything(board: tuple[Any, Scoreboard]) -> None:
    folder, first = board
    html = page(first)
    assert html.count("data:image/png;base64,") == len(first.axes)
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    for name in ("LIB", "JIB", "ICA", "best rotation", "random rotation"):
        assert name in html
    row = first.estimate("correlation", "0.6", "lib", "modules")
    assert f"{row.mean:.2f} ({row.low:.2f} to {row.high:.2f})" in html
    assert f"{row.mean:.2f} ({row.low:.2f} to {row.high:.2f})" in markdown(first)
    assert Scoreboard.model_validate_json((folder / "scoreboard.json").read_text()) == first


def test_the_table_at_any_width(board: tuple[Any, Scoreboard]) -> None:
    folder, first = board
    assert "0.6" in check_parts(_tables(first, folder / "scoreboard.html"))


def test_ceiling_and_sentences(board: tuple[Any, Scoreboard]) -> None:
    _, first = board
    for value in ("0", "0.6"):
        ceiling = first.estimate("correlation", value, "ceiling", "features")
        assert ceiling.mean >= 1 - 1e-9
        assert ceiling.low <= ceiling.mean <= ceiling.high
        lib = first.estimate("correlation", value, "lib", "modules")
        assert f"LIB scores {lib.mean:.2f}" in row_conclusion(first, "correlation", value)
    sentences = " ".join(axis_conclusions(first, "correlation"))
    below = first.breakdown("correlation", "random")
    assert (f"at correlation {below} for the first time" in sentences) == (below is not None)


def test_an_interval_is_students() -> None:
    estimate = Estimate.over_seeds([0.0, 1.0, 2.0, 3.0, 4.0])
    assert estimate.mean == 2
    assert estimate.high - 2 == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, rel=1e-3)


def scored(axis: str, means: list[Any]) -> Scoreboard:
    """A board of one basis with given scores of modules, at values 0, 0.1, 0.2, …"""
    rows = []
    for number, mean in enumerate(means):
        scores = {name: Estimate.over_seeds([mean, mean]) for name in RecoveryScores.model_fields}
        rows.append(Row(axis=axis, value=f"{number / 10:g}", basis="lib", scores=scores))
    return Scoreboard(request=REQUEST, versions={}, rows=tuple(rows))


def test_where_a_score_falls_below_a_half() -> None:
    board = scored("correlation", [0.9, 0.7, 0.4, 0.6, 0.1])
    assert board.breakdown("correlation", "lib") == "0.2"
    assert board.crossing("correlation", "lib") == pytest.approx(0.1 + 0.1 * 0.2 / 0.3)
    assert "LIB (about 0.17)" in " ".join(axis_conclusions(board, "correlation"))
    assert scored("correlation", [0.9, 0.8]).crossing("correlation", "lib") is None


@pytest.mark.slow
def test_processes_share_the_cells(tmp_path: Path) -> None:
    cells = [module._Cell(SMALL, seed, ("lib",)) for seed in (0, 1)]
    checkpoints = Checkpoints(tmp_path, "scoreboard", {})
    checkpoints.begin()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        shared = list(pool.map(partial(module._stored, checkpoints), cells))
    alone = [module._stored(NO_CHECKPOINTS, cell) for cell in cells]
    assert shared == alone
    assert all(checkpoints.checkpoint(cell.key).complete for cell in cells)


def test_bad_input(cli: Cli) -> None:
    code, _, error = cli("scoreboard", "--axes", "nonsense")
    assert code == 2
    assert "there is no axis 'nonsense'" in error
    code, _, error = cli("scoreboard", "--bases", "nonsense")
    assert code == 2
    assert "there is no basis 'nonsense'" in error
