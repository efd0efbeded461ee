"""Models as networks, one file per family."""

from interbasis.models import mlp, modadd, sequential

__all__ = ["mlp", "modadd", "sequential"]
