"""Running the notebooks of examples/ without Jupyter, which the tests do not require.

Cells are run one after the other in one namespace, as a kernel does: what they print is kept, and the value
of the last line as text, as HTML and as a picture where it has them. The repository holds notebooks without
outputs; `python tests/notebooks.py FOLDER [FILE…]` runs them and writes them with outputs to a folder, from
which the documentation takes them (docs/hooks/notebooks.py).
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same notebook with new outputs, its cells run in a folder; an error in a cell is an error here."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    before, path = Path.cwd(), list(sys.path)
    sys.path.insert(0, str(EXAMPLES))
    os.chdir(folder)
    try:
        for number, cell in enumerate(code_cells(notebook), 1):
            cell["outputs"] = _run("".join(cell["source"]), namespace, number)
            cell["execution_count"] = number
    finally:
        os.chdir(before)
        sys.path[:] = path
    return notebook


def _run(source: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse(source, f"cell {number}")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        shown = {"data": displayed(value), "metadata": {}, "output_type": "execute_result"}
        outputs.append(shown | {"execution_count": number})
    return outputs


def displayed(value: object) -> dict[str, Any]:
    """What a notebook shows of a value: text, HTML, a picture."""
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None  # matplotlib's is None
    if html is not None:
        data["text/html"] = html.splitlines(keepends=True)
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()[0]).decode("ascii")
    return data


def main() -> None:
    out, *names = sys.argv[1:]
    for path in [Path(name).resolve() for name in names] or sorted(EXAMPLES.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(read(path), Path(folder))
        Path(out).mkdir(parents=True, exist_ok=True)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        Path(out, path.name).write_text(text, encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main()
