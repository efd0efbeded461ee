"""The rotary positions of a model, from the module that makes its angles."""

from typing import Any

from interbasis.models.hf.parts import GENERAL
from interbasis.network.cores import Rotary
from interbasis.runtime.errors import InterbasisError

CHANGING = ("dynamic", "longrope")
"""Kinds whose frequencies depend on the length of the input."""


def rotary(module: Any, layer_type: str | None = None) -> Rotary:
    """Of one kind of layer, where the module has frequencies for each (Gemma 3)."""
    kind, prefix = module.rope_type, ""
    if isinstance(kind, dict):
        kind, prefix = kind[layer_type], f"{layer_type}_"
    if kind in CHANGING:
        raise InterbasisError(
            f"{type(module).__name__} has {kind!r} rotary positions, whose frequencies change "
            f"with the length of the input; {GENERAL}"
        )
    frequencies, stretch = (getattr(module, prefix + name) for name in ("inv_freq", "attention_scaling"))
    return Rotary(tuple(frequencies.double().tolist()), float(stretch))
