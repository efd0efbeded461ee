"""The non-linear cores of sections, one small file each."""

from interbasis.cores.attention import Attention
from interbasis.cores.core import Core, Moments, Sums
from interbasis.cores.elementwise import Elementwise
from interbasis.cores.general import General
from interbasis.cores.linear import Linear

__all__ = ["Attention", "Core", "Elementwise", "General", "Linear", "Moments", "Sums"]
