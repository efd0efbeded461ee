"""Data as plain batches."""

from interbasis.data.batches import Batches

__all__ = ["Batches"]
