"""JSON that somebody else may have written: depth and numbers that no file of ours has are refused."""

import json
import re
from typing import Any, NoReturn

MAX_DIGITS = 18
"""Digits of an integer that fits into 64 bits, whatever they are."""
MAX_NUMBER = 1e100
"""Largest absolute value of a number; sums and squares of such numbers are finite."""
SURROGATE = re.compile("[\ud800-\udfff]")
ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""A surrogate as it is written in JSON; whole pairs are written so, too."""


def parse_json(text: str) -> Any:
    """Parse JSON whose numbers can be computed with, and whose texts can be printed.

    `Record.to_json` writes null for NaN, so that no file of ours holds NaN or Infinity. Half a surrogate pair
    has no UTF-8, and becomes U+FFFD.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or holds NaN, infinite or huge numbers.
    """
    try:
        values = json.loads(text, parse_constant=_refuse, parse_float=_float, parse_int=_int)
        return _printable(values) if ESCAPED_SURROGATE.search(text) else values
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _printable(value: Any) -> Any:
    """The same values, without halves of surrogate pairs."""
    if isinstance(value, str):
        return SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, where a finite number or null is expected")


def _float(text: str) -> float:
    value = float(text)
    if abs(value) > MAX_NUMBER:
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS + 1:
        raise ValueError(f"the number {text[:40]} is too large")
    return int(text)
