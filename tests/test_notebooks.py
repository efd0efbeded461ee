"""The notebooks of examples/: they run from top to bottom, and are stored with their outputs."""

import pytest

from notebooks import EXAMPLES, code_cells, execute, read

NAMES = ("1-digits", "2-language-model", "3-one-prompt")


def test_there_are_three():
    assert tuple(path.stem for path in sorted(EXAMPLES.glob("*.ipynb"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_has_its_outputs(name, tmp_path):
    path = EXAMPLES / f"{name}.ipynb"
    stored = code_cells(read(path))
    assert [cell["execution_count"] for cell in stored] == list(range(1, len(stored) + 1))
    again = code_cells(execute(read(path), tmp_path))
    for before, after in zip(stored, again, strict=True):
        assert [one["output_type"] for one in before["outputs"]] == [
            one["output_type"] for one in after["outputs"]
        ]
    (page,) = [
        output["data"]["text/html"] for cell in again for output in cell["outputs"] if "data" in output
    ]
    assert "".join(page).startswith("<iframe")


def test_an_error_in_a_cell_is_seen(tmp_path):
    cell = {"cell_type": "code", "source": ["1 / 0\n"]}
    with pytest.raises(ZeroDivisionError):
        execute({"cells": [cell]}, tmp_path)
