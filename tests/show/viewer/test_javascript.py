"""The page's modules: their syntax and imports as Chromium reads them, and no name unused or undefined."""

import pytest

from interbasis.show.viewer.page import STATIC
from show.viewer import javascript

FILES = sorted(STATIC.glob("*.js"))
HOST = "http://page.test/"


def test_every_module_is_read_by_chromium(browser):
    """Syntax errors, and names that are imported and not exported, fail when a module is linked."""
    page = browser.new_page()
    try:
        sources = {path.name: path.read_text(encoding="utf-8") for path in FILES}
        sources["main.js"] = sources["main.js"].replace("\nstart();\n", "\n")  # linked, not run

        def answer(route) -> None:
            name = route.request.url.removeprefix(HOST)
            if name in sources:
                route.fulfill(body=sources[name], content_type="text/javascript")
            else:
                route.fulfill(body="<!doctype html>", content_type="text/html")

        page.route("**/*", answer)
        page.goto(HOST)
        for name in sources:
            assert page.evaluate("(url) => import(url).then(() => null, String)", HOST + name) is None, name
    finally:
        page.close()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_name_is_defined_and_used(path):
    assert javascript.read(path).problems() == []


def test_imports_and_exports_fit_each_other():
    modules = {path.name: javascript.read(path) for path in FILES}
    imported = {(file, name) for module in modules.values() for name, file in module.imports.items()}
    exported = {(file, name) for file, module in modules.items() for name in module.exports}
    assert imported - exported == set()
    assert exported - imported == set(), "exported and not imported anywhere"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('import { used, spare } from "./a.js";\nexport const x = used;', "spare is not used"),
        ("export function f(a) { const b = a; return a; }", "b is not used"),
        ("export function f({ a, b: c }, d = 3) { return [a, c]; }", "d is not used"),
        ("export const f = (a) => `${a} ${misspelt}`;", "misspelt is not defined"),
        ("export const f = (a) => a.name + /b'/.test(a) + lost;", "lost is not defined"),
        ("function spare() {}\nexport const x = { spare: 1 };", "spare is not used"),
        ("export class A { m(a) { for (const [k, v] of a) this.k(k); } }", "v is not used"),
        ("// " + "x" * 118, "line 1 is longer than 120"),
    ],
)
def test_the_linter_finds_what_is_wrong(tmp_path, source, problem):
    file = tmp_path / "module.js"
    file.write_text(source + "\n", encoding="utf-8")
    assert javascript.read(file).problems() == [f"module.js: {problem}"]
