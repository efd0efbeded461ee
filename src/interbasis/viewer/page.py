"""The page as one HTML text: styles, scripts and data inside, nothing fetched from anywhere.

The scripts are ES modules in `static/`. They are joined into one in the order of their imports, so a name
belongs to one file. The Content-Security-Policy names that one script and that one style by their SHA-256:
whatever else gets into the page cannot run.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.files import write_text_atomically
from interbasis.viewer.payload import EDGE_LIMIT, graph_payload, run_payload

STATIC = Path(__file__).parent / "static"
STYLES = ("colours.css", "page.css", "controls.css", "graph.css", "panel.css", "print.css")
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?function |const |let |class )", re.MULTILINE)
NOTEBOOK_EDGES = 5_000
"""Edges that a page inside a notebook holds; every output cell keeps its own copy."""


def html_of_runs(runs: Sequence[str | Path], token: str | None = None, limit: int = EDGE_LIMIT) -> str:
    """The page of one run, or of two side by side; with a token it can save notes to its server."""
    return _page([run_payload(run, limit) for run in runs], token)


def html_of_graph(graph: InteractionGraph, height: int = 620) -> str:
    """The page of a graph in memory as a frame for a notebook, without a server."""
    page = _page([graph_payload(graph, limit=NOTEBOOK_EDGES)], None)
    return (
        f'<iframe title="{html.escape(whole_text(repr(graph)))}" srcdoc="{html.escape(page)}" '
        'sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{height}px;border:1px solid #8884;border-radius:6px"></iframe>'
    )


def write_page(runs: Sequence[str | Path], file: str | Path) -> Path:
    """Write the page of one run, or of two side by side, as one file; atomically."""
    file = Path(file)
    if file.is_dir():
        raise InterbasisError(f"{file} is a folder; name the HTML file to write")
    page = html_of_runs(runs)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InterbasisError(f"could not make the folder {file.parent} ({error.strerror})") from error
    write_text_atomically(file, page)
    return file


def policy(connect: str) -> str:
    """The Content-Security-Policy of a page that may talk to ``connect`` only."""
    return (
        f"default-src 'none'; script-src '{_hash_of(script())}'; style-src '{_hash_of(style())}'; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


@cache
def script() -> str:
    """All modules as one, each after those that it imports."""
    order: dict[str, str] = {}
    _add_module("main.js", order, ())
    return "\n".join(order.values())


@cache
def style() -> str:
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in STYLES)


def _add_module(name: str, order: dict[str, str], above: tuple[str, ...]) -> None:
    if name in order:
        return
    if name in above:
        raise InterbasisError(
            f"the page's modules import each other in a circle: {' → '.join([*above, name])}"
        )
    source = (STATIC / name).read_text(encoding="utf-8")
    for needed in IMPORT.findall(source):
        _add_module(needed, order, (*above, name))
    order[name] = f"// {name}\n" + EXPORT.sub("", IMPORT.sub("", source))


def _page(payloads: list[dict[str, Any]], token: str | None) -> str:
    titles = " and ".join(f"{run['basis'].upper()} of {run['model'] or run['family']}" for run in payloads)
    connect = "'self'" if token else "'none'"
    data = {"format": "interbasis-page", "schema": 1, "token": token, "runs": payloads}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(connect)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{html.escape(whole_text(titles))} · interbasis</title>
<link rel="icon" href="data:,">
<style>{style()}</style>
</head>
<body>
<noscript>This page draws an interaction graph and needs JavaScript, which is switched off here.</noscript>
<script type="application/json" id="payload">{safe_json(data)}</script>
<script type="module">{script()}</script>
</body>
</html>
"""


def safe_json(value: object) -> str:
    """JSON that can stand inside an HTML script element: nothing in it can end the element."""
    text = json.dumps(
        value, allow_nan=False, separators=(",", ":")
    )  # ASCII: half a surrogate pair is no harm
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def whole_text(text: str) -> str:
    """Text that can be written as UTF-8: a name out of a file may hold half a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def _hash_of(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
