"""Receptive fields: the part of the input that every position of a node layer depends on."""

import torch
from torch import Tensor

from interbasis.network.network import Network
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection


def receptive_fields(network: Network, index: int) -> Tensor | None:  # [positions, dimensions, 2]
    """The smallest box of the first node layer's grid that every position of a node layer depends on.

    Boxes are (first, last + 1) along every dimension, as shares of the grid. None where positions are not
    those of a grid.
    """
    grid = network.nodes[0].grid
    if not grid:
        return None
    places = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij"), dim=-1)
    first = places.flatten(0, -2)  # [T, dimensions]
    last = first + 1
    for section in network.sections[:index]:
        if isinstance(section, StencilSection):
            used = (section.by_tap(section.skip) != 0).any(2).any(0)
            used |= (section.by_tap(section.read) != 0).any(2).any(0)
            first, last = _through(section.stencil, used.cpu(), first, last)
        elif section.core.mixes_positions or section.last_only:
            return None
    return torch.stack([first, last], dim=2) / torch.tensor(grid)[:, None]


def _through(stencil: Stencil, used: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The union of the boxes that every output reads."""
    read = ((stencil.weight != 0) & used[:, None])[..., None]  # [S, K, L, 1]
    far = int(last.max())
    lowest = torch.where(read, first[stencil.index], far).amin((1, 2))
    highest = torch.where(read, last[stencil.index], 0).amax((1, 2))
    return torch.minimum(lowest, highest), highest
