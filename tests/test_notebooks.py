"""The notebooks of examples/: they run from top to bottom, show what they compute, and are stored bare."""

from pathlib import Path

import pytest

from notebooks import EXAMPLES, code_cells, execute, read

NAMES = ("1-digits", "2-language-model", "3-one-prompt", "4-modular-addition", "5-dictionaries")
LONG = "4-modular-addition"
MAX_TEXT = 1500
"""Characters of the text of a value: no screens of numbers."""


def test_all_are_here_without_outputs() -> None:
    paths = sorted(EXAMPLES.glob("*.ipynb"))
    assert tuple(path.stem for path in paths) == NAMES
    for path in paths:
        for cell in code_cells(read(path)):
            assert (cell["outputs"], cell["execution_count"]) == ([], None), path.name


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == LONG else []) for name in NAMES]
)
def test_a_notebook_runs_and_shows_what_it_computes(name: str, tmp_path: Path) -> None:
    cells = code_cells(execute(read(EXAMPLES / f"{name}.ipynb"), tmp_path))
    values = [output["data"] for cell in cells for output in cell["outputs"] if "data" in output]
    shown = ["".join(data.get("text/html", [])) or data["image/png"] for data in values]
    assert any(html.startswith("<iframe") for html in shown)
    assert any("<table" in html for html in shown)
    assert all(len("".join(data["text/plain"])) < MAX_TEXT for data in values)


def test_the_tutorial_has_a_hint_and_an_answer_for_every_exercise() -> None:
    cells = read(EXAMPLES / f"{LONG}.ipynb")["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    exercises = [k for k, text in enumerate(texts) if "**Exercise.**" in text]
    assert len(exercises) >= 6
    for k in exercises:
        assert "<details><summary>Hint</summary>" in texts[k]
        assert cells[k + 1]["cell_type"] == "code"
        assert texts[k + 1].startswith("# Answer")


def test_an_error_in_a_cell_is_seen(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": ["1 / 0\n"]}
    with pytest.raises(ZeroDivisionError):
        execute({"cells": [cell]}, tmp_path)
