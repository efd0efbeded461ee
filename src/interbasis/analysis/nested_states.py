"""Named states of unfinished work in a single dictionary, {"name.key": tensor}."""

from collections.abc import Mapping

from torch import Tensor


def nested(states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """States by name as one state."""
    return {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}


def within(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State that is called ``name`` in a state of several."""
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
