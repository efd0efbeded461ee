"""A sparse dictionary of one stream of activations, in one form for every way of training.

For activations x [d_in] with K features,

    u = W_e x + b_e        pre-activations [K]
    z = u where active     ReLU: u > 0; JumpReLU: u > θ; TopK: the k largest u, if above θ or, without it, 0
    x̂ = W_dᵀ z + b_d (+ S x)   reconstruction [d_out]; S is the skip of a transcoder
    e = y − x̂              error; y is x itself, or for a transcoder the output that it stands for

Variants fold into this form exactly when they are loaded: an encoder that subtracts b_d has b_e − W_e b_d;
scales of inputs and of decoder norms go into both matrices; a gated dictionary, which reads the same rows
twice, is a JumpReLU with θ = b_mag − b_gate · exp(r_mag), or 0 where that is negative.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["none", "layer_norm", "constant_norm"]
"""Rescaling of every token before it is encoded, undone after decoding."""


@dataclass(frozen=True, eq=False)
class Dictionary:
    """A sparse dictionary; fields are tensors of one dtype on one device."""

    encoder: Tensor
    """W_e [features, d_in]."""
    encoder_bias: Tensor
    """b_e [features]."""
    decoder: Tensor
    """W_d [features, d_out]."""
    decoder_bias: Tensor
    """b_d [d_out]."""
    threshold: Tensor | None = None
    """θ [features] of JumpReLU; None is 0. Below 0 only where no ReLU comes first, so that z may be
    negative."""
    active: int | None = None
    """k of TopK; None is any number."""
    skip: Tensor | None = None
    """S [d_out, d_in] of a transcoder; None is 0."""
    scaling: Scaling = "none"
    hook: str = ""
    """Where x is read: a node layer, or a name of TransformerLens."""
    output_hook: str = ""
    """Where x̂ belongs, for a transcoder; empty is where x is read."""
    name: str = ""
    """Name of the dictionary, for people to read."""
    model: str = ""
    """Name of the model that it was trained on, as its file has it; empty where it has none."""
    digest: str = ""
    """SHA-256 of the file that it was loaded from; of the digests of weights and config where it has both."""

    @property
    def features(self) -> int:
        return len(self.encoder)

    @property
    def is_transcoder(self) -> bool:
        """Whether it stands for an output other than its input."""
        return bool(self.output_hook) and self.output_hook != self.hook

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, by name."""
        names = ("encoder", "encoder_bias", "decoder", "decoder_bias", "threshold", "skip")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def to(self, *args: torch.dtype | torch.device | str) -> "Dictionary":
        """Return the dictionary in another dtype or on another device."""
        moved = {name: getattr(self, name).to(*args) for name in self.tensors}
        return replace(self, **moved)

    def preactivations(self, x: Tensor) -> Tensor:  # [..., d_in] -> [..., features]
        """u = W_e x + b_e, of activations that are scaled already."""
        return x @ self.encoder.T + self.encoder_bias

    def is_active(self, u: Tensor) -> Tensor:  # [..., features], bool
        """Which features are active, from pre-activations."""
        above = u > (0.0 if self.threshold is None else self.threshold)
        if self.active is None:
            return above
        kept = torch.zeros_like(u, dtype=torch.bool)
        kept.scatter_(-1, u.topk(min(self.active, u.shape[-1]), dim=-1).indices, True)
        return kept & above

    def encode(self, x: Tensor) -> Tensor:  # [..., d_in] -> [..., features]
        """z, the activations of the features."""
        u = self.preactivations(self.scaled(x)[0])
        return torch.where(self.is_active(u), u, 0.0)

    def decode(self, z: Tensor) -> Tensor:  # [..., features] -> [..., d_out]
        """W_dᵀ z + b_d, of a dictionary without scaling and skip."""
        return z @ self.decoder + self.decoder_bias

    def reconstruct(self, x: Tensor) -> Tensor:  # [..., d_in] -> [..., d_out]
        """x̂."""
        scaled, mean, size = self.scaled(x)
        u = self.preactivations(scaled)
        y = self.decode(torch.where(self.is_active(u), u, 0.0))
        if self.skip is not None:
            y = y + scaled @ self.skip.T
        return y * size + mean

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(x − mean)/size with the mean and the size of every token, [..., d], [..., 1], [..., 1].

        SAELens' `layer_norm` divides by size + 1e-5 and multiplies by the size alone when it is undone.
        """
        mean, size = torch.zeros_like(x[..., :1]), torch.ones_like(x[..., :1])
        if self.scaling == "layer_norm":
            mean = x.mean(-1, keepdim=True)
            size = (x - mean).std(-1, keepdim=True)
            return (x - mean) / (size + 1e-5), mean, size
        if self.scaling == "constant_norm":
            size = x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5
        return (x - mean) / size, mean, size
