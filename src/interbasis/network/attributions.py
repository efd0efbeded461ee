"""Attributions of a section, token by token or summed with signs over groups of tokens.

In the coordinates of two bases a section is F̂(f̂) = P̂ f̂ + B̂ · core(Â f̂), and for a sample x

    A_is,j(x) = Σ_t f̂_jt ∫₀¹ dα [∂F̂_is/∂z_jt] at z = α f̂        attribution of output i, s to input j.

The core gives Σ_t N̄_st Â_j f̂_jt for all tokens at once; P̂ and B̂ are one matrix product.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.network.cores import Counted, SamplesQueries
from interbasis.network.cores.core import into_groups, take_positions
from interbasis.numerics.integration import Rule

if TYPE_CHECKING:
    from interbasis.network.network import Section

MAX_BLOCK_ELEMENTS = 2**19
"""Elements that one block of attributions may hold: few enough to stay in the cache while squared."""

MIN_BLOCK_TOKENS = 8
"""Tokens in a block, however large they are."""

AttributionBlock = tuple[slice, slice, Tensor]
"""Samples, output positions, and their attributions [r_out, tokens, r_in]."""


@dataclass(frozen=True, eq=False)
class SignedTokens:
    """Random signs of the output tokens of a batch, in groups."""

    signs: Tensor  # [groups, g, R]
    positions: Tensor | None = None  # [n, Q], output positions of each sample; None is all of them
    inputs: Tensor | None = None  # [n, T], 1 for input positions that count; None is all of them

    def outputs(self, section: "Section", f: Tensor) -> int:
        """Number of output positions per sample."""
        return section.count_out(f.shape[1]) if self.positions is None else self.positions.shape[1]

    def blocks(self, section: "Section", f: Tensor) -> "Iterator[tuple[Tensor, SignedTokens]]":
        """Yield (samples of f, their tokens) in blocks of whole groups that fit in memory."""
        _, group, count = self.signs.shape
        outputs = self.outputs(section, f)
        written, inputs = sum(section.write.shape), section.skip.shape[1]
        per_group = count * (written * inputs + group * section.write.shape[1])
        whole = math.lcm(group, outputs)  # tokens in the smallest number of samples that holds whole groups
        tokens = max(1, MAX_BLOCK_ELEMENTS * group // (per_group * whole)) * whole
        samples = tokens // outputs
        for start in range(0, len(f), samples):
            first = start * outputs // group
            signs = self.signs[first : first + tokens // group]
            positions = None if self.positions is None else self.positions[start : start + samples]
            counted = None if self.inputs is None else self.inputs[start : start + samples]
            yield f[start : start + samples], SignedTokens(signs, positions, counted)


def token_attributions(
    section: "Section", f: Tensor, integral: Rule, counted: Counted | None = None
) -> Iterator[AttributionBlock]:
    """Yield `Section.attributions` in blocks of several samples, or of some positions of one sample."""
    outputs = section.outputs(f)
    count = outputs.stop - outputs.start
    tokens = max(MIN_BLOCK_TOKENS, MAX_BLOCK_ELEMENTS // (sum(section.write.shape) * f.shape[2]))
    positions, samples = min(tokens, count), max(1, tokens // count)
    for start in range(0, len(f), samples):
        chunk = f[start : start + samples]
        u = chunk @ section.read.T
        counted_outputs = None
        if counted is not None:
            counted_inputs, counted_outputs = (mask[start : start + samples] for mask in counted)
            chunk = chunk * counted_inputs[..., None]
        for left in range(outputs.start, outputs.stop, positions):
            here = slice(left, min(left + positions, outputs.stop))
            inner = section.core.attributions(u, chunk, section.read, here, integral)
            block = _write(section.write, inner)
            block.addcmul_(section.skip[:, None], chunk[:, here].flatten(0, 1)[None])
            if counted_outputs is not None:
                block *= counted_outputs[:, here].flatten()[:, None]
            places = slice(here.start - outputs.start, here.stop - outputs.start)
            yield slice(start, start + len(chunk)), places, block


def signed_attributions(section: "Section", f: Tensor, integral: Rule, tokens: SignedTokens) -> Tensor:
    """Compute Σ φ A over every group of tokens, [r_out, groups · R, r_in]."""
    core, u, signs = section.core, f @ section.read.T, tokens.signs
    f = f if tokens.inputs is None else f * tokens.inputs[..., None]
    if tokens.positions is not None and isinstance(core, SamplesQueries):
        inner = core.signed_attributions_at(u, f, section.read, tokens.positions, integral, signs)
        skipped = take_positions(f, tokens.positions)
    else:
        outputs = section.outputs(f)
        inner = core.signed_attributions(u, f, section.read, outputs, integral, signs)
        skipped = f[:, outputs]
    grouped = into_groups(skipped.flatten(0, 1), signs.shape[1])  # [groups, g, r_in]
    signed = torch.einsum("gtj,gtr->grj", grouped, signs)
    block = _write(section.write, inner)
    block.addcmul_(section.skip[:, None], signed.flatten(0, 1)[None])
    return block


def _write(write: Tensor, inner: Tensor) -> Tensor:  # [r_out, c_out], [c_out, n, r] -> [r_out, n, r]
    return (write @ inner.flatten(1)).view(len(write), *inner.shape[1:])
