"""The documentation as a site: it builds, every link leads somewhere, nothing comes from another host."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

import interbasis
from interbasis.cli import app, command_groups
from interbasis.models.hf.families import FAMILIES
from pages import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NEEDED = ("sphinx", "myst_parser", "pydata_sphinx_theme", "latex2mathml")
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason=f"the site is built with {', '.join(NEEDED)}: pip install 'interbasis[docs]'",
)
LIVE = {"modadd.html", "cifar10.html", "conv.html", "stories.html"}
"""Pages of the gallery: one file each, with nothing to load."""
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """What a page has (ids), what it points to and what it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.formulas = 0
        self.source = file.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        self.formulas += tag == "math"
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in LOADED and attributes.get(LOADED[tag]):
            self.loads.append(attributes[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = tmp_path_factory.mktemp("site")
    package = str(Path(interbasis.__file__).parents[1])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(folder)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    pages = (
        file for file in folder.rglob("*.html") if "_static" not in file.parts
    )  # the theme has templates there
    return {file: Page(file) for file in pages}


def target(file: Path, link: str) -> tuple[Path, str]:
    parts = urlsplit(link)
    place = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    return place / "index.html" if place.is_dir() else place, unquote(parts.fragment)


def external(link: str) -> bool:
    return bool(urlsplit(link).netloc) or link.startswith("//")


def test_every_link_and_anchor_leads_somewhere(site: dict[Path, Page]) -> None:
    checked = 0
    for file, page in site.items():
        for link in page.links:
            if external(link) or link.startswith("mailto:"):
                continue
            place, anchor = target(file, link)
            assert place.is_file(), f"{file.name}: {link} leads nowhere"
            if anchor and place in site:
                assert anchor in site[place].ids, f"{file.name}: {link} has no such place"
            checked += 1
    assert checked > 200


def test_the_gallery_has_its_pages(site: dict[Path, Page]) -> None:
    page = next(page for file, page in site.items() if file.name == "gallery.html")
    assert set(page.links) >= LIVE
    live = {file.name: page.source for file, page in site.items() if file.name in LIVE}
    assert set(live) == LIVE
    for name, text in live.items():
        if (ROOT / "docs" / "live" / name).stat().st_size < 2000:
            assert f"make gallery PAGES={name.removesuffix('.html')}" in text
        assert "/work/" not in text
        assert "/tmp/" not in text


def test_nothing_is_loaded_from_another_host(site: dict[Path, Page]) -> None:
    for file, page in site.items():
        assert page.loads or file.name in LIVE
        for link in page.loads:
            assert not external(link), f"{file.name} loads {link}"
            if not link.startswith("data:"):
                assert target(file, link)[0].is_file(), f"{file.name}: {link} is missing"
    folder = next(file.parent for file in site if file.name == "genindex.html")
    styles = list(folder.rglob("*.css"))
    assert styles
    for style in styles:
        text = re.sub(r"/\*.*?\*/", "", style.read_text(encoding="utf-8"), flags=re.DOTALL)
        for loaded in re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", text):
            assert not external(loaded), f"{style.name} loads {loaded}"


def test_a_browser_asks_no_other_host_and_finds_nothing_wrong(
    site: dict[Path, Page], browser: "Browser"
) -> None:
    asked: list[str] = []
    wrong: list[str] = []
    with browser.new_page(viewport={"width": 390, "height": 844}) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        for file in site:
            if file.name in ("index.html", "method.html", "api.html", "results.html"):
                page.goto(file.as_uri())
                page.wait_for_load_state("load")
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{file.name} is wider than a phone"
        search = next(file for file in site if file.name == "search.html")
        page.goto(f"{search.as_uri()}?q=Jacobian")  # from disk
        page.wait_for_selector("#search-results li a")
        assert "method.html" in page.inner_html("#search-results")
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
    assert not wrong


def test_formulas_are_drawn_by_the_browser(site: dict[Path, Page]) -> None:
    page = next(page for file, page in site.items() if file.name == "method.html")
    assert page.formulas > 50
    assert 'class="math' not in page.source
    assert not re.search(r"<mi>\\", page.source), "a formula has a command that was not understood"


def test_the_families_are_those_of_the_code(site: dict[Path, Page]) -> None:
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    written = re.search(r"<!-- families -->(.*?)<!-- /families -->", text, re.DOTALL)
    assert written, "docs/guide.md lists no families"
    assert re.findall(r"`([\w-]+)`", written[1]) == list(FAMILIES)


def test_the_reference_has_every_public_name(site: dict[Path, Page]) -> None:
    page = next(page for file, page in site.items() if file.name == "api.html")
    for name in interbasis.__all__:
        assert name in page.ids, f"docs/api.md does not describe {name}"
    assert "<!-- api" not in page.source
    for module in ("features", "figures"):
        for name in getattr(interbasis, module).__all__:
            assert f"{module}.{name}" in page.ids


def test_the_page_of_commands_has_every_command_and_option(site: dict[Path, Page]) -> None:
    page = next(page for file, page in site.items() if file.name == "cli.html")
    assert "<!-- options" not in page.source
    parts = re.split(r'<section id="([\w-]+)"', page.source)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    for command in [name for _, _, group in command_groups() for name in group]:
        assert command in sections, f"docs/cli.md does not describe {command}"
        inner = [word for word in app[command] if not word.startswith("-")]
        arguments = [
            argument
            for called in ([app[command][word] for word in inner] or [app[command]])
            for argument in called.assemble_argument_collection()
        ]
        for argument in arguments:
            if argument.children or not argument.parse:  # a request: its fields are the options
                continue
            for name in argument.names:
                assert f'<span class="pre">{name}</span></code>' in sections[command], (
                    f"{command}: {name} is missing"
                )
