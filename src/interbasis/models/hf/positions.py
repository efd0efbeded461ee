"""The rotary positions of a model, from the module that makes its angles."""

from typing import Any

from interbasis.network.cores import Rotary

CHANGING = ("dynamic", "longrope")
"""Kinds whose frequencies are other ones for inputs longer than some number of positions."""


def rotary(module: Any, layer_type: str | None = None) -> Rotary:
    """Of one kind of layer, where the module has frequencies for each (Gemma 3).

    Frequencies that change with the length of the input are those of inputs up to `context`.
    """
    kind, prefix = module.rope_type, ""
    if isinstance(kind, dict):
        kind, prefix = kind[layer_type], f"{layer_type}_"
    name = "original_inv_freq" if kind in CHANGING else "inv_freq"
    frequencies, stretch = (getattr(module, prefix + one) for one in (name, "attention_scaling"))
    return Rotary(tuple(frequencies.double().tolist()), float(stretch))


def context(module: Any) -> int | None:
    """The most positions that all frequencies hold for; None: any number."""
    kinds, parameters = module.rope_type, module.config.rope_parameters
    if not isinstance(kinds, dict):
        kinds, parameters = {None: kinds}, {None: parameters}
    ends = [
        parameters[layer]["original_max_position_embeddings"]
        if kind == "longrope"
        else module.config.max_position_embeddings
        for layer, kind in kinds.items()
        if kind in CHANGING
    ]
    return min(ends, default=None)
