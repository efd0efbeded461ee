"""The notebooks of examples/ as pages: docs/notebooks, not in git.

`python tests/notebooks.py docs/notebooks/executed` runs them; without that, the pages have no outputs.
"""

import json
from pathlib import Path

from sphinx.application import Sphinx


def setup(app: Sphinx) -> None:
    app.connect("config-inited", write)


def write(app: Sphinx, _: object) -> None:
    folder = Path(app.srcdir, "notebooks")
    folder.mkdir(exist_ok=True)
    for notebook in sorted(Path(app.srcdir).parent.glob("examples/*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        executed = folder / "executed" / notebook.name
        if executed.is_file():
            done = json.loads(executed.read_text(encoding="utf-8"))["cells"]
            same = [cell["source"] for cell in done] == [cell["source"] for cell in cells]
            cells = done if same else cells
        parts = [part for cell in cells for part in shown(cell)]
        parts.insert(1, f"*This page is the notebook `examples/{notebook.name}`.*")
        text = "\n\n".join(parts) + "\n"
        page = folder / f"{notebook.stem}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def shown(cell: dict) -> list[str]:
    """A cell as Markdown: text as it is, code in a block, and what it printed or drew."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    return [f"```python\n{text}\n```", *(part for output in cell["outputs"] for part in drawn(output))]


def drawn(output: dict) -> list[str]:
    data = output.get("data", {})
    if "text/html" in data:
        return ["`````{raw} html\n" + "".join(data["text/html"]) + "\n`````"]
    if "image/png" in data:
        return [
            f'`````{{raw}} html\n<img alt="figure" src="data:image/png;base64,{data["image/png"]}">\n`````'
        ]
    printed = "".join(output.get("text", data.get("text/plain", "")))
    return [f"```text\n{printed.rstrip()}\n```"] if printed.strip() else []
