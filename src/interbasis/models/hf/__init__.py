"""Hugging Face causal language models as networks; a family is one small file."""

from interbasis.models.hf.load import from_hf

__all__ = ["from_hf"]
