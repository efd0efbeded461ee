"""How bases, layers and sections are called on a page and in its figures."""

from collections.abc import Sequence
from typing import Any

BASES = {"lib": "LIB", "pca": "PCA", "gib": "GIB", "random": "random", "neuron": "neuron"}
LAYERS = {
    "modadd": ("before attention", "before the MLP", "before the unembedding", "output"),
    "cifar10": ("input", "hidden 1", "hidden 2", "output"),
}
SECTIONS = {
    "modadd": ("attention", "MLP", "unembedding"),
    "cifar10": ("input → hidden 1", "hidden 1 → hidden 2", "hidden 2 → output"),
}


def layer_names(found: dict[str, Any]) -> list[str]:
    """The node layers of all pieces, in words; by their own names where there are other layers."""
    own = [layer["name"] for layer in found["pieces"][0]["layers"]]
    return _known(LAYERS.get(found["task"], ()), own)


def section_names(found: dict[str, Any]) -> list[str]:
    own = [f"{row['from']} → {row['to']}" for row in found["pieces"][0]["edges"]]
    return _known(SECTIONS.get(found["task"], ()), own)


def _known(words: Sequence[str], own: list[str]) -> list[str]:
    return list(words) if len(words) == len(own) else own
