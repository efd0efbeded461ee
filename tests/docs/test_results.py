"""Pages of docs/results have one form: question, answer, tables, commands, a date, what it does not show."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from pages import DOCS, ROOT

PAGES = [page for page in sorted((DOCS / "results").glob("*.md")) if page.name != "README.md"]
PARTS = (
    r"^\*\*Question\.\*\* ",
    r"^\*\*Answer\.\*\* ",
    r"^\|(?: ?:?-+:? ?\|)+$",  # the line below a table's head
)
"""In this order."""
ANYWHERE = {
    "a command": r"(?:^ {4}|`)(?:interbasis|python|pytest|make) \S",
    "a date": r"\b\d\d? November 2026\b",
    "what it does not show": r"^(?:\*\*What it does not show\.\*\*|## What it does not show$)",
}
OUT_OF_PLACE = {
    "a time of day": r"\b(?:[01]?\d|2[0-3]):[0-5]\d(?: ?UTC|:[0-5]\d| [ap]m)|\bat \d\d?:\d\d\b",
    "the load of the machine": r"\b(?:load average|(?:loaded|quiet|busy) machine|shared core)\b",
    "a correction": r"\b(?:mended|was wrong|were wrong before|earlier version of this page|corrected)\b",
}
"""What a reader of results does not need; corrections belong into the changelog."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_results_has_all_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = [re.search(part, text, re.MULTILINE) for part in PARTS]
    assert all(found), f"{page.name} lacks {[part for part, at in zip(PARTS, found, strict=True) if not at]}"
    assert all(before.start() < after.start() for before, after in pairwise(found))
    for name, pattern in ANYWHERE.items():
        assert re.search(pattern, text, re.MULTILINE), f"{page.name} lacks {name}"
    for name, pattern in OUT_OF_PLACE.items():
        at = re.search(pattern, text, re.IGNORECASE)
        assert not at, f"{page.name} has {name}: {at[0]}"


@pytest.mark.parametrize("page", [DOCS / "results.md", *PAGES], ids=lambda page: page.stem)
def test_files_that_a_page_of_results_names_are_there(page: Path) -> None:
    named = set(
        re.findall(
            r"(?<![\w/.-])(?:tests|benchmarks|examples)/[\w/-]+(?:\.\w+)?", page.read_text(encoding="utf-8")
        )
    )
    assert [name for name in sorted(named) if not Path(ROOT, name).exists()] == []


def test_the_overview_leads_to_every_page() -> None:
    linked = set(re.findall(r"\(results/(\w+)\.md", (DOCS / "results.md").read_text(encoding="utf-8")))
    assert {page.stem for page in PAGES} - linked == set()
