"""JSON that somebody else may have written."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interbasis.base.json_text import parse_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(10**17), 10**17) | st.floats(-1e100, 1e100)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
)


@settings(max_examples=10)
@given(VALUES)
def test_what_json_writes_is_read(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[NaN]", "NaN"), ("-Infinity", "-Infinity"), ("1e101", "1e101 is too large"), ("9" * 30, "large"),
        ("[" * 10**5 + "]" * 10**5, "too deeply"), ("{", "Expecting"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_with_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def test_halves_of_surrogate_pairs_can_be_printed() -> None:
    assert parse_json(r'{"\ud800": ["\udfff", "\ud83d\ude00"]}') == {"\ufffd": ["\ufffd", "😀"]}
