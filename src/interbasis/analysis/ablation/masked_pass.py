"""Edge and node ablation: what the network does when features act on each other through few edges.

Output feature i of a section sees the input features its mask m_i keeps, all others at 0, their mean:

    f̂_out,i = P̂_i (m_i ∘ f̂) + B̂_i · core(Â (m_i ∘ f̂)),

then the rest of the network runs on. Only the kept columns of  enter, and output features with equal masks
share one pass through the core, so the work goes with the number of kept edges. A node ablation keeps some
features of a layer and puts the others at their mean, f' = C⁺_K C_K f. Tokens that the graph leaves out stay
as they are (`whole_tokens`).

Tokens that ablations leave as they are: those that the sums behind the graph left out.

The features of a graph do not describe a massive token (`fit.counted_tokens`). Putting them at their mean
there would move the token by its whole norm, and with it every token that attends to it. So masks act between
tokens that count, c = 1: at token s of the target, output feature i sees

    m_i ∘ f̂_t    of tokens t with c^l_t = 1, and f_t itself of all others,

and a token s with c^{l+1}_s = 0 comes out of the section as if nothing were masked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.coordinates import check_bases, section_in_bases, sections_in_bases
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.network.cores import Core, FastAblation, Linear
from interbasis.network.masked import MaskedReadOuts, written_rows
from interbasis.network.network import Network, Section

MIN_TOKENS_PER_ROW = 4
"""A table is worth it from so many times fewer rows than tokens."""


@dataclass(frozen=True, eq=False)
class Table:
    """f[n, t] = rows[index[n, t]]."""

    rows: Tensor  # [U, width]
    index: Tensor  # [n, T]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Table":
        """The table of a function of single tokens."""
        return Table(function(self.rows), self.index)


def tabulate(f: Tensor) -> Table | None:  # [n, T, width]
    """The table of a batch whose tokens repeat bit for bit; None where it would not be much smaller."""
    flat = f.flatten(0, 1).contiguous()
    hashes = _hashes(flat)
    different, index = hashes.unique(return_inverse=True)
    if len(different) * MIN_TOKENS_PER_ROW > len(flat):
        return None
    first = torch.full_like(different, len(flat))
    first.scatter_reduce_(0, index, torch.arange(len(flat), device=f.device), "amin")
    rows = flat[first]
    if not torch.equal(rows[index], flat):  # two different tokens with the same hash
        return None
    return Table(rows, index.view(f.shape[:2]))


def _hashes(rows: Tensor) -> Tensor:  # [m, width] -> [m]
    """Sums of the numbers' bits times odd constants, modulo 2⁶⁴: equal rows, equal sums."""
    bits = rows.view(torch.int32).long()
    generator = torch.Generator().manual_seed(0)
    odd = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator) * 2 + 1
    mixed = bits * odd.to(bits.device)
    return (mixed ^ (mixed >> 29)).sum(1)


@dataclass(frozen=True, eq=False)
class WholeTokens:
    """Tokens at the ends of a section that are not masked, and what it computes from them."""

    inputs: Tensor  # [n, T, 1], bool
    outputs: Tensor  # [n, S, 1], bool
    skipped_inputs: Tensor  # [n, S, 1], bool: the inputs at the positions that come out
    read: Tensor  # A f [n, T, c_in]
    skipped: Tensor  # C_out P f [n, S, r_out]
    following: Tensor  # F(f) [n, S, d_out]

    @classmethod
    def from_activations(
        cls, section: Section, target: LayerBasis, f: Tensor, counted: tuple[Tensor, Tensor]
    ) -> "WholeTokens":
        """Compute them from f [n, T, d_in] and the tokens ``counted`` at both ends, [n, T] and [n, S]."""
        inputs, outputs = (~counts[..., None] for counts in counted)
        here = section.outputs(f)
        read = section.read_outs(f)
        return cls(
            inputs,
            outputs,
            inputs[:, here],
            read,
            target.to_features(f[:, here] @ section.skip.T),
            section.from_read_outs(f, read),
        )

    def among_read_outs(self, u: Tensor) -> Tensor:  # [n, ..., T, c_in]
        """Read-outs of masked features, with those of whole tokens as they are."""
        between = (1,) * (u.ndim - 3)
        inputs, read = (x.reshape(len(x), *between, *x.shape[1:]) for x in (self.inputs, self.read))
        return torch.where(inputs, read, u)

    def among_skipped(self, skipped: Tensor) -> Tensor:  # [n, S, r_out]
        """Skips of masked features, with those of whole tokens as they are."""
        return torch.where(self.skipped_inputs, self.skipped, skipped)

    def among_outputs(self, following: Tensor) -> Tensor:  # [n, S, d_out]
        """Outputs of masked features, with those of whole tokens as they are."""
        return torch.where(self.outputs, self.following, following)


Masks = Mapping[int | str, Tensor] | Sequence[Tensor | None]
"""Masks by section: {index or name of the source layer: mask}, or one per section with None for all edges."""


@torch.no_grad()
def ablate_edges(network: Network, graph: InteractionGraph, inputs: Tensor, masks: Masks) -> Tensor:
    """Run the model with some sections computing through the kept edges only.

    Args:
        network: The network that the graph was built from.
        graph: Its interaction graph.
        inputs: A batch of inputs.
        masks: Masks [features_out, features_in] of sections, True for an edge that is kept: a dictionary by
            index or name of the source layer, or one mask (or None) per section. Column 0, the constant's, is
            kept by `top_edges` and taken as it is here. Several masks act together. Tokens that the graph
            leaves out (``norm_limit``, ``skip_positions``) are not masked.

    Returns:
        The model's output.

    Raises:
        InterbasisError: A mask is not boolean, has another shape, or belongs to no section.
    """
    masked = MaskedNetwork.from_graph(network, graph)
    chosen = _by_section(masks, masked.network, graph)
    if not chosen:
        return masked.network(inputs.to(masked.network.device))
    before = masked.before(min(chosen), inputs.to(masked.network.device))
    return masked.network.output_from(masked.through_edges(before, chosen), inputs)


@torch.no_grad()
def ablate_nodes(
    network: Network, graph: InteractionGraph, inputs: Tensor, keep: Mapping[int | str, int | Tensor]
) -> Tensor:
    """Run the model with some features of layers only, the others being at their mean.

    Args:
        network: The network that the graph was built from.
        graph: Its interaction graph.
        inputs: A batch of inputs.
        keep: By index or name of a node layer, how many features are kept (the first ones, the constant
            counted) or which ones (their indices, or a boolean mask).

    Returns:
        The model's output.

    Raises:
        InterbasisError: There is no such node layer.
    """
    masked = MaskedNetwork.from_graph(network, graph)
    chosen = {_layer_index(key, network.layers): value for key, value in keep.items()}
    if not chosen:
        return masked.network(inputs.to(masked.network.device))
    before = masked.before(min(chosen), inputs.to(masked.network.device))
    return masked.network.output_from(masked.through_nodes(before, chosen), inputs)


class OneInBases(Sequence[Section]):
    """Sections in the coordinates of their bases, of which the one that was asked for last is held."""

    def __init__(self, network: Network, layers: Sequence[LayerBasis]):
        check_bases(network, layers)
        self._network, self._layers = network, layers
        self._held: tuple[int, Section] | None = None

    def __len__(self) -> int:
        return len(self._network.sections)

    @overload
    def __getitem__(self, index: int) -> Section: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Section]: ...
    def __getitem__(self, index: int | slice) -> Section | Sequence[Section]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        if self._held is None or self._held[0] != index:
            self._held = None
            self._held = index, section_in_bases(self._network, self._layers, index)
        return self._held[1]


@dataclass(frozen=True, eq=False)
class Before:
    """A node layer that an ablation begins with, for some samples."""

    features: Tensor | Table  # f̂ [n, T, r]
    f: Tensor | None = None  # [n, T, d]
    """The activations; needed where some tokens are not masked."""


@dataclass(frozen=True, eq=False)
class MaskedNetwork:
    """A network and bases of its node layers, for passes through some edges or nodes only."""

    network: Network
    layers: Sequence[LayerBasis]
    sections: Sequence[Section]
    """Sections in the coordinates of the bases."""
    counted: CountedTokens = ALL_TOKENS
    """The tokens that masks act on."""

    @classmethod
    def from_graph(
        cls, network: Network, graph: InteractionGraph, all_tokens: bool = False, one_by_one: bool = False
    ) -> "MaskedNetwork":
        """Convert to the dtype of the graph's build and to its bases, every feature counted from its mean.

        Masks act on the tokens that counted in the build, or on all of them. Sections are taken to their
        bases now or, ``one_by_one``, when they are ablated, and then one is held.
        """
        network = network.to(graph.config.torch_dtype)
        counted = ALL_TOKENS if all_tokens else CountedTokens.from_layers(network, graph.layers)
        in_bases = OneInBases if one_by_one else sections_in_bases
        layers = graph.centred_layers()
        return cls(network, layers, in_bases(network, layers), counted)

    def before(self, layer: int, inputs: Tensor, tabulated: bool = False) -> Before:
        """A node layer, untouched; as a table of its different tokens where that is asked for and shorter."""
        f, basis = self.network.activations_at(layer, inputs), self.layers[layer]
        if not self.counted.all:
            return Before(basis.to_features(f), f)
        table = tabulate(f) if tabulated else None
        return Before(basis.to_features(f) if table is None else table.map(basis.to_features))

    def through_edges(self, before: Before, masks: Mapping[int, Tensor]) -> Tensor:
        """Activations of the last node layer, from what is before the first section with a mask."""
        first = min(masks)
        counted = self.counted_tokens(before.f, first, max(masks) + 1)
        f = self._through_mask(first, before, masks[first], counted)
        for k in range(first + 1, len(self.network.sections)):
            if k in masks:
                f = self._through_mask(k, Before(self.layers[k].to_features(f), f), masks[k], counted)
            else:
                f = self.network.sections[k](f)
        return f

    def counted_tokens(self, f: Tensor | None, first: int, last: int) -> dict[int, Tensor]:
        """Tokens that masks act on [n, T], by node layer from ``first`` to ``last``; {} is all of them.

        Which tokens are massive is a matter of the untouched network, which has f at the first layer.
        """
        if self.counted.all or f is None:
            return {}
        counted = {first: self.counted.at(first, self.network.nodes[first], f)}
        for k in range(first, last):
            f = self.network.sections[k](f)
            counted[k + 1] = self.counted.at(k + 1, self.network.nodes[k + 1], f)
        return counted

    def whole_tokens(self, k: int, f: Tensor | None, counted: Mapping[int, Tensor]) -> WholeTokens | None:
        """The tokens that are not masked in section k, before which is f; None where there are none."""
        if f is None or not counted or (counted[k].all() and counted[k + 1].all()):
            return None
        return WholeTokens.from_activations(
            self.network.sections[k], self.layers[k + 1], f, (counted[k], counted[k + 1])
        )

    def _through_mask(self, k: int, before: Before, mask: Tensor, counted: Mapping[int, Tensor]) -> Tensor:
        """Section k in the bases, and back to the network's coordinates."""
        whole = self.whole_tokens(k, before.f, counted)
        following = ablated(self.sections[k], before.features, mask.to(self.network.device), whole)
        f = self.layers[k + 1].from_features(following)
        return f if whole is None else whole.among_outputs(f)

    def through_nodes(self, before: Before, keep: Mapping[int, int | Tensor]) -> Tensor:
        """Activations of the last node layer, from the first layer that keeps some of its features only."""
        first, features = min(keep), before.features
        counted = self.counted_tokens(before.f, first, max(keep))
        if isinstance(features, Table):
            features = features.rows[features.index]
        f = self._only(first, Before(features, before.f), keep[first], counted)
        for k, section in enumerate(self.network.sections[first:], first + 1):
            f = section(f)
            if k in keep:
                f = self._only(k, Before(self.layers[k].to_features(f), f), keep[k], counted)
        return f

    def _only(self, k: int, before: Before, keep: int | Tensor, counted: Mapping[int, Tensor]) -> Tensor:
        """Layer k with some of its features, in the network's coordinates."""
        assert isinstance(before.features, Tensor)
        masked = self.layers[k].from_features(only(before.features, keep))
        return (
            masked
            if not counted or before.f is None
            else torch.where(counted[k][..., None], masked, before.f)
        )


def only(features: Tensor, keep: int | Tensor) -> Tensor:  # [n, T, features]
    """The features to keep, the first so many or those named, and 0 for the others."""
    chosen = slice(0, keep) if isinstance(keep, int) else keep
    result = torch.zeros_like(features)
    result[..., chosen] = features[..., chosen]
    return result


def ablated(section: Section, f: Tensor | Table, mask: Tensor, whole: WholeTokens | None = None) -> Tensor:
    """The section's outputs [n, S, r_out] through the kept edges, all in the coordinates of the bases.

    f is [n, T, r_in], or, where no tokens are whole, a table of the tokens it is made of.
    """
    if isinstance(f, Tensor) and whole is None:
        return section.masked(f, mask)
    if isinstance(f, Table):
        outputs = section.positions_out(f.index.shape[1])
        result = (f.rows @ (section.skip * mask).T)[f.index[:, outputs]]
    else:
        outputs = section.outputs(f)
        result = f[:, outputs] @ (section.skip * mask).T
    if whole is not None:
        result = whole.among_skipped(result)
    if isinstance(section.core, Linear):
        return result
    read_outs = MaskedReadOuts(f.rows if isinstance(f, Table) else f, section.read)
    for _, rows in written_rows(section, mask):
        write, u = section.write[rows], read_outs.through(mask[rows[0]])
        if isinstance(f, Table):
            part = _written_from_table(section.core, Table(u, f.index), outputs, write)
        else:
            part = section.core(u if whole is None else whole.among_read_outs(u), outputs) @ write.T
        result[..., rows] += part
    return result


def _written_from_table(core: Core, u: Table, outputs: slice, write: Tensor) -> Tensor:
    """B · core(u) for read-outs u, some rows B of the write matrix."""
    if isinstance(core, FastAblation):
        result = core.written_from_table(u.rows, u.index, outputs, write)
        if result is not None:
            return result
    if core.mixes_positions:
        return core(u.rows[u.index], outputs) @ write.T
    return (core(u.rows[:, None], slice(0, 1)) @ write.T)[:, 0][u.index[:, outputs]]


def top_edges(edges: Tensor, count: int, constant: bool = True) -> Tensor:
    """The mask of the ``count`` largest edges of Ê [r_out, r_in], with those from the constant for free."""
    free = int(constant)
    candidates = edges[:, free:]
    order = candidates.flatten().argsort(descending=True, stable=True)
    mask = torch.zeros(candidates.numel(), dtype=torch.bool, device=edges.device)
    mask[order[:count]] = True
    return torch.nn.functional.pad(mask.view_as(candidates), (free, 0), value=True)


def _by_section(masks: Masks, network: Network, graph: InteractionGraph) -> dict[int, Tensor]:
    if not isinstance(masks, Mapping):
        if len(masks) != len(network.sections):
            raise InterbasisError(
                f"expected a mask or None for each of the {len(network.sections)} sections, "
                f"received {len(masks)}; to mask some sections only, pass a dictionary"
            )
        masks = {k: mask for k, mask in enumerate(masks) if mask is not None}
    chosen = {_layer_index(key, network.layers[:-1]): mask for key, mask in masks.items()}
    for k, mask in chosen.items():
        expected = [graph.layers[k + 1].features, graph.layers[k].features]
        if list(mask.shape) != expected or mask.dtype != torch.bool:
            raise InterbasisError(
                f"the mask of section {network.layers[k]} → {network.layers[k + 1]} is boolean of shape "
                f"{expected}, features out × features in; received {mask.dtype} of shape {list(mask.shape)}"
            )
    return chosen


def _layer_index(key: Any, names: Sequence[str]) -> int:
    if key in names:
        return names.index(key)
    if isinstance(key, int) and 0 <= key < len(names):
        return key
    raise InterbasisError(f"expected one of {', '.join(names)}, or its index, received {key!r}")
