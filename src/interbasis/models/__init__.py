"""Models as networks, one file per family."""

from interbasis.models import modadd, sequential

__all__ = ["modadd", "sequential"]
