"""How turns by rotary positions are told by few functions of the position, in levels of slow coordinates.

With pairs of coordinates as complex numbers c_e, turning back by t multiplies c_e by exp(−itθ_e). So the
products c_e conj(c′_e′) and c_e c′_e′, which hold what an outer product of two vectors does, are multiplied
by exp(−it(θ_e ∓ θ_e′)): an entry of Σ_t R_tᵀX_tR_t is a dot product with one function of t.

Most frequencies of a head are low, and over a block of B keys the functions of t with frequencies up to 2θ
are, to rounding, combinations of 2θB/π and a few more (Slepian 1978), U [B, n]. So for pairs of slow
coordinates X_t is not summed for every key: UᵀX is, [n, h²], and takes dot products with the functions'
coordinates in U. There are several levels of this: coordinates up to a lower frequency have fewer functions
again, which are combinations of those of the level above. A pair of coordinates belongs to the level of the
faster one.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape

KEYS_PER_BLOCK = 128
"""Keys whose turns are told by the same functions: blocks of fewer skip more keys that no query sees, and
blocks of more have fewer functions per key."""
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-8}
"""Singular values below this share of the largest are left out."""
PER_FACTOR = 4
"""Multiplications of a large product that take as long as one of those that make what goes into it."""
PER_LEVEL = 12000
"""Multiplications that take as long as what a level does besides, per query."""


@dataclass(frozen=True, eq=False)
class Level:
    """Pairs of complex coordinates, in order from fast to slow, whose faster one is between two bounds."""

    step: Tensor | None  # from the functions of the level above, or the keys, to its own [B or n′, n]
    first: int  # its own coordinates: first … last − 1
    last: int
    turns: Tensor  # of c conj(c′) and c c′, with c from `first` on and c′ of its own, [2, ·, ·, B or n]

    @property
    def own(self) -> slice:
        return slice(self.first, self.last)

    @property
    def rest(self) -> slice:
        """Its own coordinates and slower ones."""
        return slice(self.first, None)

    @property
    def slower(self) -> slice:
        return slice(self.last, None)


class KeyTurns:
    """What sums over a block of keys are dot products with, and the order of coordinates."""

    def __init__(self, shape: AttentionShape, keys: int, like: Tensor):
        assert shape.rotary is not None
        self.shape, self.rotary, self.like = shape, shape.rotary, like
        self.keys = min(keys, KEYS_PER_BLOCK)
        self.pairs, angles = len(shape.rotary.frequencies), angles_of(shape)
        angle = torch.tensor(angles, dtype=torch.float64)
        self.order = angle.argsort(descending=True, stable=True)
        cos, sin = shape.rotary.waves(torch.arange(self.keys, device=like.device), like)  # [B, p]
        still = torch.ones_like(cos[:, :1]).expand(-1, len(angles) - self.pairs)
        waves = torch.cat([torch.complex(cos, -sin), still], dim=1)[:, self.order.to(like.device)]  # [B, p′]
        bounds = level_bounds(angles, self.keys, shape.shared, like.dtype)
        self.levels: list[Level] = []
        above: Tensor | None = None  # functions of the level above, as functions of t
        for bound, lower in zip(bounds, (*bounds[1:], -1.0), strict=True):
            functions = band(self.keys, bound, like.dtype).to(like) if bound < math.inf else None
            step = functions if above is None or functions is None else above.T @ functions
            first, last = int((angle > bound).sum()), int((angle > lower).sum())
            others, own = waves[:, first:, None], waves[:, None, first:last]
            turns = _coordinates(functions, torch.stack([others * own.conj(), others * own], dim=1))
            self.levels.append(Level(step, first, last, turns))
            above = functions

    @cached_property
    def places(self) -> Tensor:  # [h, rounded up to an even number]
        """Coordinates from fast to slow, the two of a pair side by side; those not turned two by two."""
        turned = torch.arange(2 * self.pairs).view(2, -1).T
        rest = torch.arange(2 * self.pairs, self.shape.width + self.shape.width % 2).view(-1, 2)
        return torch.cat([turned, rest])[self.order].flatten().to(self.like.device)

    def ordered(self, q: Tensor) -> Tensor:  # [..., h] -> [..., 2p′]
        """Coordinates in the order of levels; one without a partner gets 0."""
        return torch.nn.functional.pad(q, (0, self.shape.width % 2))[..., self.places]

    def restored(self, products: Tensor) -> Tensor:  # [2, p′, p′] -> [h, h]
        """Back from sums of c conj(c′) and c c′ to those of products of coordinates."""
        one, other = products
        real, imaginary = (one + other) / 2, (other - one) / 2  # x x′ + i y x′,  −y y′ + i x y′
        rows = torch.stack([real.real, imaginary.imag, real.imag, -imaginary.real], dim=-1)  # [p′, p′, 4]
        whole = rows.unflatten(-1, (2, 2)).transpose(1, 2).flatten(2).flatten(0, 1)  # [2p′, 2p′]
        back = self.places.argsort()[: self.shape.width]
        return whole[back[:, None], back]

    def of_block(self, start: int) -> Tensor:  # [2, p′, p′]
        """What c conj(c′) and c c′ are multiplied with where a block begins at this position."""
        frequencies = torch.zeros(len(self.order), dtype=torch.float64)
        frequencies[: self.pairs] = torch.tensor(self.rotary.frequencies, dtype=torch.float64)
        turns = torch.polar(torch.ones_like(frequencies), -start * frequencies[self.order])
        both = torch.stack([turns[:, None] * turns.conj(), turns[:, None] * turns])
        return both.to(self.levels[0].turns)


def angles_of(shape: AttentionShape) -> tuple[float, ...]:
    """Frequencies of a head's pairs of coordinates; 0 for those that are not turned."""
    turned = () if shape.rotary is None else shape.rotary.frequencies
    return (*(abs(angle) for angle in turned), *[0.0] * -(-(shape.width - shape.turned) // 2))


def _coordinates(functions: Tensor | None, waves: Tensor) -> Tensor:  # [B, 2, ·, ·] -> [2, ·, ·, B or n]
    """Coordinates of complex functions of t in U, or the functions themselves."""
    waves = waves.permute(1, 2, 3, 0)
    if functions is None:
        return waves.contiguous()
    return torch.complex(waves.real @ functions, waves.imag @ functions)


@lru_cache(maxsize=64)
def level_bounds(angles: tuple[float, ...], keys: int, shared: int, dtype: torch.dtype) -> tuple[float, ...]:
    """The highest frequency of every level, by operations; infinity is a sum for every key."""
    best: dict[float, tuple[float, ...]] = {}  # from this bound on
    for bound in (*sorted(set(angles)), math.inf):
        ways = [(bound,), *((bound, *lower) for lower in best.values())]
        best[bound] = min(ways, key=lambda way: operations(angles, keys, shared, dtype, way))
    chosen = best[math.inf]
    return chosen[1:] if chosen[1:2] == (max(angles),) else chosen  # then no sum for every key


def operations(
    angles: tuple[float, ...], keys: int, shared: int, dtype: torch.dtype, bounds: tuple[float, ...]
) -> float:
    """Per query, block of keys and pair of groups: multiplications of these levels, or what takes as long."""
    functions = [band(keys, bound, dtype).shape[1] if bound < math.inf else keys for bound in bounds]
    widths = [2 * sum(angle <= bound for angle in angles) for bound in bounds]
    total = 0.0
    for count, width, slower in zip(functions, widths, (*widths[1:], 0), strict=True):
        own = width - slower
        total += shared * count * own * (width + slower + 2 * shared * PER_FACTOR) + PER_LEVEL
    return total + shared**2 * sum(one * following for one, following in pairwise(functions))


@lru_cache(maxsize=256)
def band(length: int, highest: float, dtype: torch.dtype) -> Tensor:  # [length, n]
    """Orthonormal functions of t that span cos tω and sin tω for all |ω| ≤ 2·highest, to rounding.

    From the singular vectors of as many of these functions as determine the others by interpolation in ω.
    """
    count = math.ceil(0.6 * highest * length) + 40
    nodes = highest * (1 - torch.linspace(0, math.pi, count, dtype=torch.float64).cos())  # Chebyshev's
    angle = (torch.arange(length, dtype=torch.float64) - (length - 1) / 2)[:, None] * nodes
    vectors, values, _ = torch.linalg.svd(torch.cat([angle.cos(), angle.sin()], dim=1), full_matrices=False)
    return vectors[:, values > ROUNDING[dtype] * values[0]]
