"""The non-linear cores of sections, one small file each."""

from interbasis.network.cores.attention import Attention, AttentionShape, Rotary, ScoreBias
from interbasis.network.cores.core import (
    ClosedFormSquares,
    Core,
    Counted,
    FastAblation,
    Moments,
    PassCore,
    SamplesQueries,
    StatisticsCore,
    Sums,
    take_positions,
)
from interbasis.network.cores.elementwise import Elementwise
from interbasis.network.cores.experts import Expert, Experts
from interbasis.network.cores.gated import Gated
from interbasis.network.cores.general import General
from interbasis.network.cores.group_norm import GroupNorm
from interbasis.network.cores.head_norms import HeadNorm
from interbasis.network.cores.largest import Largest
from interbasis.network.cores.linear import Linear
from interbasis.network.cores.normalize import Normalize
from interbasis.network.cores.position_scale import PositionScale
from interbasis.network.cores.router import Router
from interbasis.network.cores.variance import Variance

__all__ = [
    "Attention",
    "AttentionShape",
    "ClosedFormSquares",
    "Core",
    "Counted",
    "Elementwise",
    "Expert",
    "Experts",
    "FastAblation",
    "Gated",
    "General",
    "GroupNorm",
    "HeadNorm",
    "Largest",
    "Linear",
    "Moments",
    "Normalize",
    "PassCore",
    "PositionScale",
    "Rotary",
    "Router",
    "SamplesQueries",
    "ScoreBias",
    "StatisticsCore",
    "Sums",
    "Variance",
    "take_positions",
]
