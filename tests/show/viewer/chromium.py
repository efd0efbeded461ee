"""A real Chromium for the browser tests: the system's, or the one that playwright brought."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip


def why_not() -> str | None:
    """Why there can be no browser tests here; None where there can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed (pip install playwright)"
    return (
        None
        if find()
        else "no Chromium found (install the package chromium, or run: playwright install chromium)"
    )


def find() -> str | None:
    from playwright.sync_api import sync_playwright

    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    with sync_playwright() as play:
        own = play.chromium.executable_path
    return own if Path(own).exists() else None


@contextmanager
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    path = find()
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield chromium
        finally:
            chromium.close()


def commands() -> Iterator[list[str]]:
    """What may install a Chromium, one after the other: the system's package, for those who may, or
    playwright's own."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        yield ["apt-get", "update", "--quiet"]
        yield ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", "chromium"]
    yield [sys.executable, "-m", "playwright", "install", "chromium"]


def main() -> None:
    """Get a Chromium where there is none, if that can be done; say plainly where it cannot."""
    for command in commands():
        if why_not() is None:
            return
        subprocess.run(command, capture_output=True, check=False, timeout=600)
    if reason := why_not():
        print(f"Browser tests will be skipped: {reason}.")


if __name__ == "__main__":
    main()
