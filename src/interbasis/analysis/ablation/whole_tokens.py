"""Tokens that ablations leave as they are: those that the sums behind the graph left out.

The features of a graph do not describe a massive token (`fit.counted_tokens`). Putting them at their mean
there would move the token by its whole norm, and with it every token that attends to it. So masks act between
tokens that count, c = 1: at token s of the target, output feature i sees

    m_i ∘ f̂_t    of tokens t with c^l_t = 1, and f_t itself of all others,

and a token s with c^{l+1}_s = 0 comes out of the section as if nothing were masked.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Section


@dataclass(frozen=True, eq=False)
class WholeTokens:
    """Which tokens at the ends of a section are not masked, and what it computes from them."""

    inputs: Tensor  # [n, T, 1], bool
    outputs: Tensor  # [n, S, 1], bool
    skipped_inputs: Tensor  # [n, S, 1], bool: the inputs at the positions that come out
    read: Tensor  # A f [n, T, c_in]
    skipped: Tensor  # C_out P f [n, S, r_out]
    following: Tensor  # F(f) [n, S, d_out]

    @classmethod
    def of(
        cls, section: Section, target: LayerBasis, f: Tensor, counted: tuple[Tensor, Tensor]
    ) -> "WholeTokens":
        """From the activations f [n, T, d_in] and the tokens that count at both ends, [n, T] and [n, S]."""
        inputs, outputs = (~counts[..., None] for counts in counted)
        here = section.outputs(f)
        read = section.read_outs(f)
        return cls(
            inputs,
            outputs,
            inputs[:, here],
            read,
            target.features_of(f[:, here] @ section.skip.T),
            section.from_read_outs(f, read),
        )

    def among_read_outs(self, u: Tensor) -> Tensor:  # [n, ..., T, c_in]
        """Read-outs of masked features, with those of whole tokens as they are."""
        between = (1,) * (u.ndim - 3)
        inputs, read = (x.reshape(len(x), *between, *x.shape[1:]) for x in (self.inputs, self.read))
        return torch.where(inputs, read, u)

    def among_skipped(self, skipped: Tensor) -> Tensor:  # [n, S, r_out]
        """The same for what the skip passes on."""
        return torch.where(self.skipped_inputs, self.skipped, skipped)

    def among_outputs(self, following: Tensor) -> Tensor:  # [n, S, d_out]
        """The same for the activations that come out."""
        return torch.where(self.outputs, self.following, following)
