"""Edge and node ablation: what the network does when features act on each other through few edges.

Output feature i of a section sees the input features its mask m_i keeps, all others at 0, their mean:

    f̂_out,i = P̂_i (m_i ∘ f̂) + B̂_i · core(Â (m_i ∘ f̂)),

then the rest of the network runs on. Only the kept columns of  enter, and output features with equal masks
share one pass through the core, so the work goes with the number of kept edges. A node ablation keeps some
features of a layer and puts the others at their mean, f' = C⁺_K C_K f.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from interbasis.ablation.token_table import Table
from interbasis.fit.edges import sections_in_bases
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.cores import Linear
from interbasis.network.network import Network, Section
from interbasis.runtime.errors import InterbasisError

SHORT = 32
"""Positions of a sequence up to which attention is taken straight from few features; its patterns, which that
writes down, are too many in longer ones."""

Masks = Mapping[int | str, Tensor] | Sequence[Tensor | None]
"""Masks by section: {index or name of the source layer: mask}, or one per section with None for all edges."""


@torch.no_grad()
def ablate_edges(network: Network, graph: InteractionGraph, inputs: Tensor, masks: Masks) -> Tensor:
    """The model's output when the sections that have a mask compute through the kept edges only.

    A mask is [features_out, features_in], True for an edge that is kept; column 0, the constant's, is kept by
    `top_edges` and taken as it is here. Several masks act together.
    """
    network = network.to(graph.config.torch_dtype)
    sections = sections_in_bases(network, graph.layers)
    chosen = _by_section(masks, network, graph)
    f = network.prefix(inputs.to(network.device))
    for k, section in enumerate(network.sections):
        if k in chosen:
            source, target = graph.layers[k], graph.layers[k + 1]
            f = target.back(ablated(sections[k], source.features_of(f), chosen[k].to(f.device)))
        else:
            f = section(f)
    return network.finish(f, inputs)


@torch.no_grad()
def ablate_nodes(
    network: Network, graph: InteractionGraph, inputs: Tensor, keep: Mapping[int | str, int | Tensor]
) -> Tensor:
    """The model's output when layers keep some features only, the others being at their mean.

    ``keep`` says, by index or name of a node layer, how many features (the first ones, the constant counted)
    or which ones (their indices, or a boolean mask).
    """
    network = network.to(graph.config.torch_dtype)
    chosen = {_layer_index(key, network.layers): value for key, value in keep.items()}
    f = network.prefix(inputs.to(network.device))
    for k, layer in enumerate(graph.layers):
        if k in chosen:
            f = layer.back(only(layer.features_of(f), chosen[k]))
        if k < len(network.sections):
            f = network.sections[k](f)
    return network.finish(f, inputs)


def only(features: Tensor, keep: int | Tensor) -> Tensor:  # [n, T, features]
    """The kept features, the first so many or those named, and 0 for the others."""
    chosen = slice(0, keep) if isinstance(keep, int) else keep
    kept = torch.zeros_like(features)
    kept[..., chosen] = features[..., chosen]
    return kept


def ablated(section: Section, f: Tensor | Table, mask: Tensor) -> Tensor:
    """The section's outputs [n, S, r_out] through the kept edges, all in the coordinates of the bases.

    f is [n, T, r_in], or a table of the tokens it is made of.
    """
    if isinstance(f, Table):
        at = section.positions_out(f.index.shape[1])
        tokens = f.rows @ (section.skip * mask).T
        result = tokens[f.index[:, at]]
    else:
        at = section.outputs(f)
        result = f[:, at] @ (section.skip * mask).T
    if isinstance(section.core, Linear):
        return result
    read_outs = _ReadOuts(f.rows if isinstance(f, Table) else f, section.read)
    for columns, rows in equal_masks(mask):
        rows = rows[section.write[rows].any(1)]  # the others see the input by the skip alone
        if not len(rows):
            continue
        write, few = section.write[rows], 2 * len(columns) <= mask.shape[1]
        if isinstance(f, Table):
            part = section.core.written_from_table(read_outs.of(mask[rows[0]]), f.index, at, write)
        elif few and f.shape[1] <= SHORT:
            part = section.core.written_from(f[..., columns], section.read[:, columns], at, write)
        else:
            part = section.core.written(read_outs.of(mask[rows[0]]), at, write)
        result[..., rows] += part
    return result


@dataclass(frozen=True, eq=False)
class _ReadOuts:
    """Â (m ∘ f̂) for one mask after another."""

    f: Tensor  # [..., r]
    read: Tensor  # Â [c_in, r]

    @cached_property
    def whole(self) -> Tensor:  # [..., c_in]
        return self.f @ self.read.T

    def of(self, mask: Tensor) -> Tensor:  # [r] -> [..., c_in]
        """From the kept columns, or from those left out where these are fewer."""
        if 2 * mask.sum() <= len(mask):
            return self._of_columns(mask)
        return self.whole - self._of_columns(~mask)

    def _of_columns(self, mask: Tensor) -> Tensor:
        columns = mask.nonzero()[:, 0]
        return self.f[..., columns] @ self.read[:, columns].T


def equal_masks(mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(kept columns, rows) for every different row of a mask [r_out, r_in]; rows that keep nothing are 0."""
    different, which = mask.unique(dim=0, return_inverse=True)
    for k, row in enumerate(different):
        if row.any():
            yield row.nonzero()[:, 0], (which == k).nonzero()[:, 0]


def top_edges(edges: Tensor, count: int, constant: bool = True) -> Tensor:
    """The mask of the ``count`` largest edges of Ê [r_out, r_in], with those from the constant for free."""
    free = 1 if constant else 0
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
                f"received {len(masks)}; a dictionary names single ones"
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
