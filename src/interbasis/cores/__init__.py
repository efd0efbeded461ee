"""The non-linear cores of sections, one small file each."""

from interbasis.cores.attention import Attention, Rotary
from interbasis.cores.core import Core, Moments, Sums
from interbasis.cores.elementwise import Elementwise
from interbasis.cores.gated import Gated
from interbasis.cores.general import General
from interbasis.cores.head_norms import HeadNorm
from interbasis.cores.linear import Linear
from interbasis.cores.normalize import Normalize
from interbasis.cores.variance import Variance

__all__ = [
    "Attention",
    "Core",
    "Elementwise",
    "Gated",
    "General",
    "HeadNorm",
    "Linear",
    "Moments",
    "Normalize",
    "Rotary",
    "Sums",
    "Variance",
]
