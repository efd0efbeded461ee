"""Texts of readers, which stand beside the code in TOML: names in braces are values that the code passes."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ReportClaim:
    """A sentence about what was measured, whether it may be said, and why."""

    allowed: bool
    text: str
    because: str


def read_texts(file: str) -> Any:
    """Texts of a file in this package by name, or in groups of such."""
    return tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))


class ClaimTexts:
    """Claims of a file: every group has the ``text`` of a claim, and reasons why it may be said or not."""

    def __init__(self, file: str):
        self.groups: dict[str, dict[str, str]] = read_texts(file)

    def claim(self, allowed: bool, name: str, reason: str, **values: object) -> ReportClaim:
        text, because = (self.groups[name][key].format(**values) for key in ("text", reason))
        return ReportClaim(allowed, text, because)

    def yes(self, name: str, reason: str, **values: object) -> ReportClaim:
        return self.claim(True, name, reason, **values)

    def no(self, name: str, reason: str, **values: object) -> ReportClaim:
        return self.claim(False, name, reason, **values)
