"""Text as a terminal may show it: control characters of stored strings must not reach it."""

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Everything that is not shown but obeyed (C0 without tabs and line ends, C1, the direction of text), and
halves of surrogate pairs, which cannot be encoded."""


def printable(text: str) -> str:
    r"""Escape control characters as Python writes them, ``\x1b`` for ESC; tabs and line ends stay."""
    return CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
