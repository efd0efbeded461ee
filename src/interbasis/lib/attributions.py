"""Attributions between the features of neighbouring layers, token by token or summed with signs over groups.

In the coordinates of two bases a section is F̂(f̂) = P̂ f̂ + B̂ · core(Â f̂), and for a sample x

    A_is,j(x) = Σ_t f̂_jt ∫₀¹ dα [∂F̂_is/∂z_jt] at z = α f̂        attribution of output i, s to input j.

The core gives Σ_t N̄_st Â_j f̂_jt for all tokens at once; the rest is one matrix product.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.devices import double
from interbasis.base.errors import InterbasisError
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.stencils import has_closed_form, stencil_attributions
from interbasis.network.cores import Counted, SamplesQueries
from interbasis.network.cores.core import into_groups, positions_of
from interbasis.network.network import Network, Section
from interbasis.network.stencil_section import StencilSection
from interbasis.numerics.integration import Rule

MAX_BLOCK_ELEMENTS = 2**19
"""Elements that one block of attributions may hold: few enough to stay in the cache while squared."""

MIN_BLOCK_TOKENS = 8
"""Tokens in a block, however large they are."""


def sections_in_bases(network: Network, layers: Sequence[LayerBasis]) -> list[Section]:
    """Every section from the features of its source to those of its target."""
    check_bases(network, layers)
    return [section_in_bases(network, layers, k) for k in range(len(network.sections))]


def check_bases(network: Network, layers: Sequence[LayerBasis]) -> None:
    """There is a basis for each node layer, of its width."""
    nodes = network.nodes
    if len(layers) != len(nodes):
        raise InterbasisError(
            f"expected a basis for each of the {len(nodes)} node layers {', '.join(network.layers)}, "
            f"received {len(layers)}"
        )
    for node, layer in zip(nodes, layers, strict=True):
        if layer.width != node.width:
            raise InterbasisError(
                f"the basis {layer.name!r} acts on {layer.width} coordinates, node layer {node.name!r} has "
                f"{node.width}{' (the constant first)' if node.constant else ''}"
            )


def section_in_bases(network: Network, layers: Sequence[LayerBasis], k: int) -> Section:
    """Section k from the features of its source to those of its target."""
    source, target, like = layers[k], layers[k + 1], network.sections[0].like
    return network.sections[k].in_basis(
        None if source.identity else source.inverse.to(like),
        None if target.identity else target.transform.to(like),
    )


def transforms_of(network: Network, layers: Sequence[LayerBasis]) -> list[Tensor | None]:
    """C of every section's source; None is the identity."""
    like = network.sections[0].like
    return [None if layer.identity else layer.transform.to(like) for layer in layers[:-1]]


def in_basis(f: Tensor, transform: Tensor | None) -> Tensor:
    """C f; None is the identity."""
    return f if transform is None else f @ transform.T


def token_attributions(
    section: Section, f: Tensor, integral: Rule, counted: Counted | None = None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """A_is,j in blocks that fit in memory: (samples, outputs, block [r_out, tokens, r_in]).

    ``section`` and f [n, T, r_in] are in the coordinates of the bases. A block holds several samples, or some
    of one sample's output positions. Of ``counted`` tokens, sums over t are over inputs that count, and A is
    0 for outputs that do not.
    """
    if isinstance(section, StencilSection):
        yield from _over_stencil(section, f, integral)
        return
    outputs = section.outputs(f)
    count = outputs.stop - outputs.start
    tokens = max(MIN_BLOCK_TOKENS, MAX_BLOCK_ELEMENTS // (sum(section.write.shape) * f.shape[2]))
    positions, samples = min(tokens, count), max(1, tokens // count)
    for start in range(0, len(f), samples):
        some = f[start : start + samples]
        u = some @ section.read.T
        told = None
        if counted is not None:
            seen, told = (mask[start : start + samples] for mask in counted)
            some = some * seen[..., None]
        for left in range(outputs.start, outputs.stop, positions):
            here = slice(left, min(left + positions, outputs.stop))
            inner = section.core.attributions(u, some, section.read, here, integral)
            block = _write(section.write, inner)
            block.addcmul_(section.skip[:, None], some[:, here].flatten(0, 1)[None])
            if told is not None:
                block *= told[:, here].flatten()[:, None]
            places = slice(here.start - outputs.start, here.stop - outputs.start)
            yield slice(start, start + len(some)), places, block


def _over_stencil(
    section: StencilSection, f: Tensor, integral: Rule
) -> Iterator[tuple[slice, slice, Tensor]]:
    """By a closed form of the whole section, or, for other cores, patch by patch."""
    if has_closed_form(section):
        yield from stencil_attributions(section, f, integral)
        return
    for samples, outputs, block in token_attributions(section.over_patches(), section.patches(f), integral):
        yield samples, outputs, section.folded(block)


@dataclass(frozen=True, eq=False)
class SignedTokens:
    """Which output positions of a batch are looked at, and their signs."""

    signs: Tensor  # [groups, g, R]
    positions: Tensor | None = None  # [n, Q], each sample's own; None is all that come out
    inputs: Tensor | None = None  # [n, T], 1 for input positions that count; None is all of them

    def outputs(self, section: Section, f: Tensor) -> int:
        """Output positions per sample."""
        return section.count_out(f.shape[1]) if self.positions is None else self.positions.shape[1]

    def blocks(self, section: Section, f: Tensor) -> "Iterator[tuple[Tensor, SignedTokens]]":
        """(samples, their tokens) in blocks of whole groups that fit in memory."""
        _, group, count = self.signs.shape
        outputs = self.outputs(section, f)
        per_group = count * (sum(section.write.shape) * f.shape[2] + group * section.write.shape[1])
        whole = math.lcm(group, outputs)  # tokens in the smallest number of samples that holds whole groups
        tokens = max(1, MAX_BLOCK_ELEMENTS * group // (per_group * whole)) * whole
        samples = tokens // outputs
        for start in range(0, len(f), samples):
            first = start * outputs // group
            signs = self.signs[first : first + tokens // group]
            positions = None if self.positions is None else self.positions[start : start + samples]
            inputs = None if self.inputs is None else self.inputs[start : start + samples]
            yield f[start : start + samples], SignedTokens(signs, positions, inputs)


def squared_sums(section: Section, f: Tensor, integral: Rule, tokens: SignedTokens) -> Tensor:
    """X = (Σ φ A)² for every group and set of signs, [r_out, groups, R, r_in].

    For a section that reads a stencil, f holds patches (`StencilSection.patches`).
    """
    if isinstance(section, StencilSection):
        block = section.folded(_signed_sums(section.over_patches(), f, integral, tokens))
    else:
        block = _signed_sums(section, f, integral, tokens)
    return double(block.square_()).unflatten(1, tokens.signs.shape[::2])


def _signed_sums(section: Section, f: Tensor, integral: Rule, tokens: SignedTokens) -> Tensor:
    """Σ φ A, [r_out, groups · R, r_in]."""
    core, u, signs = section.core, f @ section.read.T, tokens.signs
    f = f if tokens.inputs is None else f * tokens.inputs[..., None]
    if tokens.positions is not None and isinstance(core, SamplesQueries):
        inner = core.signed_attributions_at(u, f, section.read, tokens.positions, integral, signs)
        own = positions_of(f, tokens.positions)
    else:
        outputs = section.outputs(f)
        inner = core.signed_attributions(u, f, section.read, outputs, integral, signs)
        own = f[:, outputs]
    grouped = into_groups(own.flatten(0, 1), signs.shape[1])  # [groups, g, r_in]
    signed = torch.einsum("gtj,gtr->grj", grouped, signs)
    block = _write(section.write, inner)
    block.addcmul_(section.skip[:, None], signed.flatten(0, 1)[None])
    return block


def _write(write: Tensor, inner: Tensor) -> Tensor:  # [r_out, c_out], [c_out, n, r] -> [r_out, n, r]
    return (write @ inner.flatten(1)).view(len(write), *inner.shape[1:])
