"""A page in a real Chromium, as a person looks at it: open it, wait, read, move a slider."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
from typing import Any

EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\u202e<b>x</b>"


IDLE = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))"""


@contextmanager
def opened(browser: "Browser", url: str, complaints_allowed: str = "", **settings: Any) -> Iterator["Page"]:
    """A page that must not fail, complain, or ask another host for anything.

    Chromium writes every answer that refuses to the console: what ``complaints_allowed`` occurs in may be.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True, **settings)
    page = context.new_page()
    page.set_default_timeout(15_000)
    complaints, requests = [], []
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(url)
        page.wait_for_selector("main")
        settle(page)
        yield page
        unexpected = [one for one in complaints if not complaints_allowed or complaints_allowed not in one]
        assert unexpected == []
        home = url.partition("#")[0].rsplit("/", 1)[0] + "/"
        assert [address for address in requests if not address.startswith((home, "data:"))] == []
    finally:
        context.close()


def settle(page: "Page") -> None:
    page.evaluate(IDLE)


def hash_with(page: "Page", text: str) -> bool:
    """Whether the address comes to hold this; it follows the view after a moment."""
    for _ in range(50):
        if text in page.url:
            return True
        page.wait_for_timeout(50)
    return False


def drawn(page: "Page", place: int = 0) -> int:
    return page.evaluate(f"interbasis.parts[{place}].view.sections.reduce((sum, s) => sum + s.counted, 0)")


def ink(page: "Page", canvas: str) -> int:
    """Pixels of a canvas that are not empty."""
    return page.evaluate(
        """(name) => { const c = document.querySelector(name);
        const copy = new OffscreenCanvas(c.width, c.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(c, 0, 0);
        const d = copy.getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; }""",
        canvas,
    )


def slide(page: "Page", name: str, value: float) -> None:
    page.evaluate(
        """([id, value]) => { const s = document.getElementById(id); s.value = value;
        s.dispatchEvent(new Event("input")); }""",
        [f"slider-{name}", value],
    )
    settle(page)
