"""The difference of two sections with the same input, as one more section.

For F(f) = P_F f + B_F core(A_F f) and G likewise, with u_G = A_G f and Δu = (A_F − A_G) f,

    F(f) − G(f) = (P_F − P_G) f + B_F [core(u_G + Δu) − core(u_G)] + (B_F − B_G) core(u_G),

skip P_F − P_G, read [A_F − A_G; A_G], write [B_F, B_F − B_G], and a core with the Jacobian

    N = | N_F   N_F − N_G |
        |  0       N_G    |.

Weights, slopes, patterns and covariances are subtracted before anything is squared, so that a relative
change δ of the weights costs the digits of 1/δ in the Grams, not those of 1/δ². Sections with different
cores (an MLP and a transcoder in its place) stand side by side instead: read [A_F; A_G], write [B_F, −B_G].
"""

from dataclasses import replace

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.network.cores import Attention, Core, Elementwise, Gated, General, StatisticsCore
from interbasis.network.cores.attention.difference import AttentionDifference
from interbasis.network.cores.slope_difference import SideBySide, SlopeDifference
from interbasis.network.network import Section
from interbasis.network.stencil_section import StencilSection


def difference(first: Section, second: Section) -> Section:
    """Return the section f ↦ F(f) − G(f) of two sections between the same node layers.

    Raises:
        InterbasisError: The sections have other shapes, or cores that cannot be compared.
    """
    first, second = in_memory(first), in_memory(second)
    require_same_ends(first, second)
    skip, cores = first.skip - second.skip, (first.core, second.core)
    same_shapes = first.shapes == second.shapes
    if same_shapes and _same_cores(*cores) and torch.equal(first.read, second.read):
        write = first.write - second.write
        if isinstance(cores[0], StatisticsCore) or not write.any():
            return replace(first, skip=skip, write=write)
    if same_shapes and type(cores[0]) is type(cores[1]):
        read = torch.cat([first.read - second.read, second.read])
        write = torch.cat([first.write, first.write - second.write], dim=1)
        return replace(first, skip=skip, read=read, write=write, core=_difference_core(first, second))
    if isinstance(cores[0], Elementwise | Gated) and isinstance(cores[1], Elementwise | Gated):
        read = torch.cat([first.read, second.read])
        write = torch.cat([first.write, -second.write], dim=1)
        core = SideBySide(cores[0], cores[1], (len(first.read), len(second.read)))
        return replace(first, skip=skip, read=read, write=write, core=core)
    raise InterbasisError(
        f"{_name(first)}: expected two sections with cores of one kind, or with activation functions, "
        f"received {cores[0]} and {cores[1]}"
    )


def in_memory(section: Section) -> Section:
    """The section with its matrices in memory."""
    loaded = getattr(section, "loaded", section)
    assert isinstance(loaded, Section)
    return loaded


def require_same_ends(first: Section, second: Section) -> None:
    """Refuse sections between different node layers."""
    for end, node, other in (
        ("begins", first.source, second.source), ("ends", first.target, second.target),
    ):  # fmt: skip
        if (node.width, node.constant, node.grid) != (other.width, other.constant, other.grid):
            raise InterbasisError(
                f"{_name(first)}: the first model's section {end} with {node.width} coordinates"
                f"{_grid(node.grid)}, the second's with {other.width}{_grid(other.grid)}; expected two "
                "models of one shape"
            )
    stencils = [section.stencil for section in (first, second) if isinstance(section, StencilSection)]
    same_stencils = len(stencils) == 0 or (
        len(stencils) == 2
        and torch.equal(stencils[0].index, stencils[1].index)
        and torch.equal(stencils[0].weight, stencils[1].weight)
    )
    if first.last_only != second.last_only or not same_stencils:
        raise InterbasisError(f"{_name(first)}: the two sections read or put out different positions")


def _grid(grid: tuple[int, ...] | None) -> str:
    return "" if grid is None else f" on a grid of {' × '.join(map(str, grid)) or 'one position'}"


def _name(section: Section) -> str:
    return f"section {section.source.name} → {section.target.name}"


def _same_cores(first: Core, second: Core) -> bool:
    """Whether two cores compute the same."""
    if type(first) is not type(second) or repr(first) != repr(second):
        return False
    if isinstance(first, Attention) and isinstance(second, Attention):
        return first.shape == second.shape
    pairs = zip(first.tensors(), second.tensors(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _difference_core(first: Section, second: Section) -> Core:
    """The core [Δu | u_G] ↦ [core_F(u_F) − core_G(u_G) | core_G(u_G)]."""
    core, other = first.core, second.core
    if isinstance(core, Elementwise | Gated) and isinstance(other, Elementwise | Gated):
        return SlopeDifference(core, other, (len(first.read), len(second.read)))
    if isinstance(core, Attention) and isinstance(other, Attention):
        if core.shape != other.shape:
            raise InterbasisError(
                f"{_name(first)}: expected attention of one shape, received {core} and {other}"
            )
        return AttentionDifference(core.shape)

    def change(u: Tensor) -> Tensor:
        moved, u_G = u.chunk(2, dim=-1)
        everywhere = slice(0, u.shape[1])
        base = other(u_G, everywhere)
        return torch.cat([core(u_G + moved, everywhere) - base, base], dim=-1)

    return General(change, f"difference of {core}", core.mixes_positions)
