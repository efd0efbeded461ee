"""Multi-head softmax attention: the pattern, the two sums of the basis, the edges; a file each."""

from interbasis.network.cores.attention.bias import ScoreBias
from interbasis.network.cores.attention.core import Attention
from interbasis.network.cores.attention.heads import AttentionShape
from interbasis.network.cores.attention.rotary import Rotary

__all__ = ["Attention", "AttentionShape", "Rotary", "ScoreBias"]
