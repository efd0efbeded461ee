"""What costs are asked for."""

from pydantic import Field

from interbasis.graph.settings import BuildConfig


class PlanRequest(BuildConfig):
    """What would be built."""

    tokens: int = Field(512_000, ge=1)
    """Tokens of data, or samples of a network without positions."""
    context: int | None = Field(None, ge=1)
    """Positions of a sequence; default: 1024 for language models, else 1."""
