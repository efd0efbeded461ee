"""How much of a layer's variance its largest direction holds, and which positions and tokens carry it."""

from interbasis.base.records import Record


class Carrier(Record):
    """A position, or a token of the vocabulary."""

    index: int
    share: float
    """Of the variance along the layer's largest direction."""


class LargestDirection(Record):
    """The direction of largest variance at one node layer, over some of the tokens of the data."""

    share: float
    """Of the layer's variance, over all tokens."""
    share_counted: float
    """The same over the tokens that count in the sums of the build, along their own largest direction."""
    left_out: float
    """Share of the tokens that do not count."""
    norm_limit: float | None
    """Largest norm of a token that counts; None is any."""
    median_norm: float
    largest_norm: float
    positions: tuple[Carrier, ...] = ()
    """Positions that carry most of the direction over all tokens; empty where there is one position."""
    tokens: tuple[Carrier, ...] = ()
    """Tokens of the vocabulary that do; empty where inputs are no tokens."""
