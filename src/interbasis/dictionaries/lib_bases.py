"""LIB's basis of a node layer in the form of a dictionary, for layers between those that have one.

A basis is a dictionary whose features are all active at every token, with either sign: u = C f without the
constant's row, and f is C⁺ u with the constant's column as the decoder's bias. It is of all streams of the
node layer; the error is what dropped directions deviate from their mean.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.dictionaries.dictionary import Dictionary
from interbasis.graph.layer_basis import LayerBasis

MATRICES = ("encoder", "encoder_bias", "decoder", "decoder_bias")
LIB = "lib"
"""In place of a dictionary's file: LIB's basis."""


@dataclass(frozen=True, eq=False)
class LibBasis(Dictionary):
    """LIB's basis of all streams of a node layer; every feature is active at every token."""

    @classmethod
    def from_layer(cls, layer: LayerBasis) -> "LibBasis":
        """Take C and C⁺ of a node layer with a constant."""
        C, inverse = layer.transform, layer.inverse
        return cls._from_matrices(C[1:, 1:], C[1:, 0], inverse[1:, 1:].T, inverse[1:, 0])

    @classmethod
    def identity(cls, width: int) -> "LibBasis":
        """The coordinates themselves as features, for a trial."""
        return cls._from_matrices(torch.eye(width), torch.zeros(width), torch.eye(width), torch.zeros(width))

    @classmethod
    def _from_matrices(cls, encoder: Tensor, bias: Tensor, decoder: Tensor, mean: Tensor) -> "LibBasis":
        always = torch.full_like(bias, -math.inf)
        return cls(encoder, bias, decoder, mean, threshold=always, name=LIB)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str) -> "LibBasis":
        """Read a basis that `to_tensors` has written.

        Raises:
            KeyError: A tensor is missing.
        """
        return cls._from_matrices(*(tensors[prefix + name] for name in MATRICES))

    def to_tensors(self, prefix: str) -> dict[str, Tensor]:
        """Tensors by name, to be stored."""
        return {prefix + name: getattr(self, name) for name in MATRICES}
