"""JSON that somebody else may have written: anything but plain, finite values is refused."""

import json
import math
from typing import Any, NoReturn

MAX_DIGITS = 18
"""Digits of an integer that fits into 64 bits, whatever they are."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON whose numbers are finite and fit into 64 bits.

    `Record.to_json` writes null for NaN, so that no file of ours holds NaN or Infinity.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or holds NaN, infinite or huge numbers.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_small)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, where a finite number or null is expected")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _small(text: str) -> int:
    if len(text) > MAX_DIGITS + 1:
        raise ValueError(f"the number {text[:40]} is too large")
    return int(text)
