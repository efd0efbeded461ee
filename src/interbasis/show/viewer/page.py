"""The page as one HTML text: styles, scripts and data inside, nothing fetched from anywhere.

The scripts are ES modules in `static/`. They are joined into one in the order of their imports, so a name
belongs to one file. The Content-Security-Policy names that one script and that one style by their SHA-256:
whatever else gets into the page cannot run.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from interbasis.analysis.workspace import Workspace
from interbasis.base.errors import InterbasisError
from interbasis.base.files import make_folder, write_text_atomically
from interbasis.base.records import Record
from interbasis.dictionaries.graph import is_dictionary_graph
from interbasis.graph.store import load
from interbasis.show.html import HtmlPage, render
from interbasis.show.viewer.payload import matches, run_payload, workspace_payload
from interbasis.show.viewer.schema import PageData

STATIC = Path(__file__).parent / "static"
STYLES = ("colours.css", "page.css", "controls.css", "graph.css", "panel.css", "traces.css", "print.css")
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?function |const |let |class )", re.MULTILINE)
NOTEBOOK_EDGES = 1_000
"""Edges that a page inside a notebook holds; every output cell keeps its own copy."""


@dataclass(frozen=True)
class PageFiles:
    """The page's script and style, read from `static/`."""

    script: str
    """All modules as one, each after those that it imports."""
    style: str

    @classmethod
    def read(cls) -> "PageFiles":
        modules: dict[str, str] = {}
        _add_module("main.js", modules, ())
        style = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in STYLES)
        return cls("\n".join(modules.values()), style)

    def policy(self, connect: str) -> str:
        """The Content-Security-Policy of a page that may talk to ``connect`` only."""
        return (
            f"default-src 'none'; script-src '{_digest(self.script)}'; style-src '{_digest(self.style)}'; "
            f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
        )


def read_files(runs: Sequence[str | Path]) -> PageFiles:
    """Script and style of the page of these runs."""
    if any(map(is_dictionary_graph, runs)):
        from interbasis.show.dictionaries.page import read_files

        return read_files()
    return PageFiles.read()


def runs_html(runs: Sequence[str | Path], token: str | None = None, files: PageFiles | None = None) -> str:
    """The page of one run, or of two side by side; with a token it can save notes to its server."""
    if any(map(is_dictionary_graph, runs)):
        from interbasis.show.dictionaries.page import folder_html

        if len(runs) > 1:
            raise InterbasisError(
                "the page shows one graph between dictionaries at a time; leave out the second run, or use "
                "interbasis compare"
            )
        return folder_html(runs[0], files)
    matched = matches(load(runs[0]), load(runs[1])) if len(runs) == 2 else ()
    data = PageData(token=token, runs=tuple(map(run_payload, runs)), matches=matched)
    return _page(data, files or PageFiles.read())


def run_page(run: Workspace) -> HtmlPage:
    """The page of an open run for a notebook, without a server."""
    data = PageData(token=None, runs=(workspace_payload(run, NOTEBOOK_EDGES),))
    return HtmlPage(repr(run.graph), _page(data, PageFiles.read()))


def write_run(run: Workspace, file: str | Path) -> Path:
    """Write the page of an open run, with its stored results or those in memory, as one file; atomically."""
    data = PageData(token=None, runs=(workspace_payload(run),))
    return write_html(_page(data, PageFiles.read()), Path(file))


def write_page(runs: Sequence[str | Path], file: str | Path) -> Path:
    """Write the page of one run, or of two side by side, as one file; atomically."""
    return write_html(runs_html(runs), Path(file))


def write_html(page: str, file: Path) -> Path:
    """Write a page as one file; atomically."""
    if file.is_dir():
        raise InterbasisError(f"{file} is a folder; name the HTML file to write")
    make_folder(file.parent)
    write_text_atomically(file, page)
    return file


def _add_module(name: str, modules: dict[str, str], above: tuple[str, ...]) -> None:
    if name in modules:
        return
    if name in above:
        raise InterbasisError(
            f"the page's modules import each other in a circle: {' → '.join([*above, name])}"
        )
    source = (STATIC / name).read_text(encoding="utf-8")
    for needed in IMPORT.findall(source):
        _add_module(needed, modules, (*above, name))
    modules[name] = f"// {name}\n" + EXPORT.sub("", IMPORT.sub("", source))


def _page(data: PageData, files: PageFiles) -> str:
    titles = " and ".join(f"{run.basis.upper()} of {run.model or run.family}" for run in data.runs)
    policy = files.policy("'self'" if data.token else "'none'")
    template = (STATIC.parent / "page.html").read_text(encoding="utf-8")
    return render(template, title=titles, policy=policy, files=files, json=safe_json(data))


def safe_json(record: Record) -> Markup:
    """JSON that can stand inside an HTML script element: nothing in it can end the element."""
    return htmlsafe_json_dumps(record, dumps=lambda value: value.to_json())


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
