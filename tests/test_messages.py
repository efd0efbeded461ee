"""Messages do not change unseen, and tests do not break on words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from messages import FILE, messages

SENTENCE = re.compile(r"(?:[A-Za-z']+[,;:]? ){5}[A-Za-z']+")
"""Six words in a row. Messages are read as a whole in messages.txt; tests look for key words and values."""
MAX_SENTENCES = 2
"""Sentences that tests compare with; it may only fall."""


def test_messages_are_those_that_were_read() -> None:
    before, now = FILE.read_text(encoding="utf-8").splitlines(), messages().splitlines()
    changed = [f"- {text}" for text in before if text not in now] + [
        f"+ {text}" for text in now if text not in before
    ]
    assert not changed, "read these, then run python tests/messages.py:\n" + "\n".join(changed)


def test_tests_look_for_key_words_and_values() -> None:
    found = [
        f"{path.name}: {text}"
        for path in Path(__file__).parent.rglob("*.py")
        for text in compared_texts(ast.parse(path.read_text(encoding="utf-8")))
        if SENTENCE.search(text)
    ]
    assert len(found) <= MAX_SENTENCES, "look for key words and values instead:\n" + "\n".join(found)


def compared_texts(tree: ast.Module) -> Iterator[str]:
    """Patterns of `match=`, and texts that an assertion looks for or compares with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            yield written(node.value)
        elif isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Compare):
                    sides = (part.left, *part.comparators)
                    yield from (written(s) for s in sides if isinstance(s, ast.Constant | ast.JoinedStr))


def written(node: ast.expr) -> str:
    """The fixed parts of a text."""
    return "".join(
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )
