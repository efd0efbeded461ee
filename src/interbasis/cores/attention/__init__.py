"""Multi-head softmax attention: the pattern, the two sums of the basis, the edges; a file each."""

from interbasis.cores.attention.core import Attention
from interbasis.cores.attention.rotary import Rotary

__all__ = ["Attention", "Rotary"]
