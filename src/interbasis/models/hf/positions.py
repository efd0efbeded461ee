"""The rotary positions of a model, from the module that makes its angles."""

from typing import Any

from interbasis.cores import Rotary
from interbasis.errors import InterbasisError
from interbasis.models.hf.parts import GENERAL

CHANGING = ("dynamic", "longrope")
"""Kinds whose frequencies depend on the length of the input."""


def rotary(module: Any) -> Rotary:
    if module.rope_type in CHANGING:
        raise InterbasisError(
            f"{type(module).__name__} has {module.rope_type!r} rotary positions, whose frequencies change "
            f"with the length of the input; {GENERAL}"
        )
    return Rotary(tuple(module.inv_freq.double().tolist()), float(module.attention_scaling))
