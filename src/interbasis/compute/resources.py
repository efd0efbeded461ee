"""What a build may use of a machine."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from interbasis.base.memory import parse_bytes
from interbasis.base.records import Record


def _text(amount: object) -> object:
    return str(amount) if isinstance(amount, int) and not isinstance(amount, bool) else amount


class Resources(Record):
    """What a build may use; nothing here changes the graph but the last digits of its numbers."""

    cache_gigabytes: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    """Disk space for activations between blocks during the build; 0 for none."""
    memory: Annotated[str | None, BeforeValidator(_text)] = None
    """Maximum memory to use, such as 8GB: batches and blocks are chosen to fit, sections are built one after
    the other and blocks of a Hugging Face model loaded one at a time if necessary; default: no limit."""
    device: str | None = None
    """Device to compute on: cpu, cuda, cuda:1, or mps, which has no float64 and computes in float32;
    default: cpu."""

    @property
    def bytes(self) -> int | None:
        """The limit on memory."""
        return None if self.memory is None else parse_bytes(self.memory)
