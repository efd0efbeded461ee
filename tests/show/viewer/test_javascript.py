"""The page's modules as Chromium reads them; `make lint` looks for names that are unused or undefined."""

from typing import TYPE_CHECKING, Any

from interbasis.show.viewer.page import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FILES = sorted(STATIC.glob("*.js"))
HOST = "http://page.test/"
MAX_LINE = 120


def test_every_module_is_read_by_chromium(browser: "Browser") -> None:
    """Syntax errors, and names that are imported and not exported, fail when a module is linked."""
    page = browser.new_page()
    try:
        sources = {path.name: path.read_text(encoding="utf-8") for path in FILES}
        sources["main.js"] = sources["main.js"].replace("\nstart();\n", "\n")  # linked, not run

        def answer(route: Any) -> None:
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


def test_lines_are_short() -> None:
    long = [
        f"{path.name}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_LINE
    ]
    assert long == []
