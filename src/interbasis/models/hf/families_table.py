"""What is taken of every causal model type of transformers, found out by building a small model of it."""

import warnings
from collections.abc import Sequence
from typing import Literal

import torch

from interbasis.base.errors import InterbasisError, first_line
from interbasis.base.lazy import optional_import
from interbasis.base.records import Record
from interbasis.models.hf.load import from_hf
from interbasis.models.hf.tiny import tiny_model, tiny_tokens
from interbasis.network.cores import General

Way = Literal["closed form", "general", "refused"]
MAX_RELATIVE_ERROR = 1e-5
"""Largest error of float32 logits on the example, of the largest."""


class FamilyRow(Record):
    """A model type: whether its sections have closed forms, or are differentiated automatically."""

    kind: str
    way: Way
    reason: str = ""
    """Reason why it is refused, in a sentence."""


class FamiliesTable(Record):
    """Model types of an installed transformers."""

    transformers: str
    rows: list[FamilyRow]

    def count(self, way: Way) -> int:
        return sum(row.way == way for row in self.rows)


def causal_types() -> list[str]:
    """All types that transformers has a causal language model for."""
    optional_import("transformers", "the table of model types needs the package transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def family_row(kind: str) -> FamilyRow:
    """Build a small random model of a type, convert it, and compare logits.

    Raises:
        InterbasisError: transformers has no causal model of this type.
    """
    if kind not in causal_types():
        raise InterbasisError(f"transformers has no causal language model of type {kind!r}")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            model = tiny_model(kind)
            expected = model(tiny_tokens()).logits
        except Exception as error:  # whatever a configuration may cause in somebody else's code
            return FamilyRow(kind=kind, way="refused", reason=f"no small model: {_sentence(error)}")
        try:
            network = from_hf(model)
            off = (network(tiny_tokens()) - expected).abs().max() / expected.abs().max()
        except InterbasisError as refusal:
            return FamilyRow(kind=kind, way="refused", reason=_sentence(refusal))
    if not off <= MAX_RELATIVE_ERROR:
        raise AssertionError(f"{kind}: logits are off by {off:.1e} and were not refused")
    general = any(isinstance(section.core, General) for section in network.sections)
    return FamilyRow(kind=kind, way="general" if general else "closed form")


def _sentence(error: Exception) -> str:
    """First line of a message, as far as its first semicolon."""
    return first_line(error).partition(";")[0][:160]


def families_table(kinds: Sequence[str] = ()) -> FamiliesTable:
    """Rows of some types, or of all."""
    transformers = optional_import("transformers", "the table of model types needs the package transformers")
    rows = [family_row(kind) for kind in kinds or causal_types()]
    return FamiliesTable(transformers=transformers.__version__, rows=rows)
