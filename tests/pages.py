"""The documentation's pages as the tests see them: fenced code blocks, and commands anywhere."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"

FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced code block. ``reason`` says why it is not run, where a comment above it does."""

    language: str
    text: str
    title: str | None
    reason: str | None


def blocks(page: Path) -> list[Block]:
    return [
        Block(found["language"], found["text"], found["title"], found["reason"])
        for found in FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


def commands(text: str) -> list[list[str]]:
    """The command lines of a block, split into words, comments left out."""
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def indented_commands(page: Path) -> list[list[str]]:
    """Calls of interbasis in code blocks that are made by indenting."""
    lines = re.findall(
        r"^ {4,}(interbasis .*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    return [shlex.split(line, comments=True) for line in lines]
