"""Edge and node ablation: what the network does when features act on each other through few edges.

Output feature i of a section sees the input features its mask m_i keeps, all others at 0, their mean:

    f̂_out,i = P̂_i (m_i ∘ f̂) + B̂_i · core(Â (m_i ∘ f̂)),

then the rest of the network runs on. Only the kept columns of  enter, and output features with equal masks
share one pass through the core, so the work goes with the number of kept edges. A node ablation keeps some
features of a layer and puts the others at their mean, f' = C⁺_K C_K f. Tokens that the graph leaves out stay
as they are (`WholeTokens`): the features of a graph do not describe a massive token (`lib.counted_tokens`),
and putting them at their mean there would move the token by its whole norm, and with it every token that
attends to it. So masks act between tokens that count, c = 1: at token s of the target, output feature i sees

    m_i ∘ f̂_t    of tokens t with c^l_t = 1, and f_t itself of all others,

and a token s with c^{l+1}_s = 0 comes out of the section as if nothing were masked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def tabulate(f: Tensor) -> Table | None:  # [n, T, width]
    """The table of a batch whose tokens repeat; None where it would not be much smaller."""
    rows, index = f.flatten(0, 1).cpu().unique(dim=0, return_inverse=True)
    if len(rows) * MIN_TOKENS_PER_ROW > index.numel():
        return None
    return Table(rows.to(f.device), index.view(f.shape[:2]).to(f.device))


@dataclass(frozen=True, eq=False)
class WholeTokens:
    """Tokens at the ends of a section that are not masked, and what it computes from them."""

    inputs: Tensor  # [n, T, 1], bool
    skipped_inputs: Tensor  # [n, S, 1], bool: the inputs at the positions that come out
    outputs: Tensor  # [n, S, 1], bool
    read: Tensor  # A f [n, T, c_in]
    skipped: Tensor  # C_out P f [n, S, r_out]
    following: Tensor  # F(f) [n, S, d_out]

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


Masks = Mapping[int, Tensor] | Mapping[str, Tensor] | Sequence[Tensor | None]
"""Masks by section: {index or name of the source layer: mask}, or one per section with None for all edges."""
KeptFeatures = Mapping[int, int | Tensor] | Mapping[str, int | Tensor]
"""Features by node layer: {index or name: how many of the first, or which}."""


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
def ablate_nodes(network: Network, graph: InteractionGraph, inputs: Tensor, keep: KeptFeatures) -> Tensor:
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


def one_section_in_bases(network: Network, layers: Sequence[LayerBasis]) -> Callable[[int], Section]:
    """Return a function of k: section k in the coordinates of its bases, of which it holds the last."""
    check_bases(network, layers)
    held: dict[int, Section] = {}

    def section(k: int) -> Section:
        if k not in held:
            held.clear()
            held[k] = section_in_bases(network, layers, k)
        return held[k]

    return section


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


@dataclass(frozen=True, eq=False)
class Before:
    """A node layer that an ablation begins with, for some samples."""

    features: Tensor | Table  # f̂ [n, T, r]
    f: Tensor | None = None  # [n, T, d]
    """The activations; needed where some tokens are not masked."""

    @property
    def bytes(self) -> int:
        features, f = self.features, [] if self.f is None else [self.f]
        tensors = [features.rows, features.index] if isinstance(features, Table) else [features]
        return sum(tensor.nbytes for tensor in (*tensors, *f))


@dataclass(frozen=True, eq=False)
class MaskedNetwork:
    """A network and bases of its node layers, for passes through some edges or nodes only."""

    network: Network
    layers: Sequence[LayerBasis]
    section: Callable[[int], Section]
    """Section k in the coordinates of the bases."""
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
        layers = graph.centred_layers()
        if one_by_one:
            return cls(network, layers, one_section_in_bases(network, layers), counted)
        return cls(network, layers, sections_in_bases(network, layers).__getitem__, counted)

    def before(self, layer: int, inputs: Tensor, tabulated: bool = False) -> Before:
        """A node layer, untouched; as a table of its different tokens where that is asked for and shorter."""
        f, basis = self.network.activations_at(layer, inputs), self.layers[layer]
        if not self.counted.all:
            return Before(basis.to_features(f), f)
        table = tabulate(f) if tabulated else None
        return Before(
            basis.to_features(f) if table is None else Table(basis.to_features(table.rows), table.index)
        )

    def through_edges(self, before: Before, masks: Mapping[int, Tensor]) -> Tensor:
        """Activations of the last node layer, from what is before the first section with a mask."""
        first = min(masks)
        counted = self.counted_tokens(before.f, first, max(masks) + 1)
        f, index = self.through_mask(first, before, masks[first], counted), first + 1
        for k in sorted(masks)[1:]:
            f = self.network.run(f, index, k)
            f = self.through_mask(k, Before(self.layers[k].to_features(f), f), masks[k], counted)
            index = k + 1
        return self.network.run(f, index, len(self.network.sections))

    def counted_tokens(self, f: Tensor | None, first: int, last: int) -> dict[int, Tensor]:
        """Tokens that masks act on [n, T], by node layer from ``first`` to ``last``; {} is all of them.

        Which tokens are massive is a matter of the original network, which has f at the first layer.
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
        section, inputs = self.network.sections[k], ~counted[k][..., None]
        here, read = section.outputs(f), section.read_outs(f)
        skipped = self.layers[k + 1].to_features(f[:, here] @ section.skip.T)
        following = section.from_read_outs(f, read)
        return WholeTokens(inputs, inputs[:, here], ~counted[k + 1][..., None], read, skipped, following)

    def through_mask(
        self,
        k: int,
        before: Before,
        mask: Tensor,
        counted: Mapping[int, Tensor],
        ablate: Callable[..., Tensor] = ablated,
    ) -> Tensor:
        """Section k in the bases, by `ablated` or another function, and back to the network's coordinates."""
        whole = self.whole_tokens(k, before.f, counted)
        following = ablate(self.section(k), before.features, mask.to(self.network.device), whole)
        f = self.layers[k + 1].from_features(following)
        return f if whole is None else whole.among_outputs(f)

    def through_nodes(self, before: Before, keep: Mapping[int, int | Tensor]) -> Tensor:
        """Activations of the last node layer, from the first layer that keeps some of its features only."""
        first = min(keep)
        counted = self.counted_tokens(before.f, first, max(keep))
        f, index = self._only(first, before, keep[first], counted), first
        for k in sorted(keep)[1:]:
            f = self.network.run(f, index, k)
            f = self._only(k, Before(self.layers[k].to_features(f), f), keep[k], counted)
            index = k
        return self.network.run(f, index, len(self.network.sections))

    def _only(self, k: int, before: Before, keep: int | Tensor, counted: Mapping[int, Tensor]) -> Tensor:
        """Layer k in the network's coordinates, with the first so many features or those named, else 0."""
        features, chosen = before.features, slice(0, keep) if isinstance(keep, int) else keep
        features = features.rows[features.index] if isinstance(features, Table) else features
        kept = torch.zeros_like(features)
        kept[..., chosen] = features[..., chosen]
        masked = self.layers[k].from_features(kept)
        if not counted or before.f is None:
            return masked
        return torch.where(counted[k][..., None], masked, before.f)


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
