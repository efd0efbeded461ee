"""Summary of a network before anything is built: what comes first, its sections and what they cost."""

from math import prod

from interbasis.base.records import Record
from interbasis.network.cores import General, PassCore
from interbasis.network.hooks import hook_names
from interbasis.network.network import Head, Network, Section


class SectionDescription(Record):
    """One section in words."""

    source: str
    hook: str | None
    """TransformerLens' name of the source; None where it has none."""
    target: str
    inputs: int
    """Coordinates of the source, the constant among them."""
    outputs: int
    grid: str
    """The positions of the source; "any" for sequences of any length."""
    core: str
    cost: str
    """Method by which its Jacobians are computed, in words."""


class NetworkSummary(Record):
    """A network in words, from the prefix to the tail."""

    family: str
    before: str
    """Modules before the first node layer, in words."""
    sections: tuple[SectionDescription, ...]
    after: tuple[str, ...]
    """Modules after the last node layer, in words."""


def describe(network: Network) -> NetworkSummary:
    """The sections of a network, and what lies before and after them.

    Args:
        network: Any network.

    Returns:
        Names, widths, cores and costs.
    """
    prefix, before = network.prefix, ""
    hooks = hook_names(network.layers)
    while isinstance(prefix, Head):
        before = f", then {len(prefix.sections)} sections"
        prefix = prefix.prefix
    return NetworkSummary(
        family=network.family,
        before=_one_line(prefix) + before,
        sections=tuple(_described(section, hooks.get(section.source.name)) for section in network.sections),
        after=tuple(_one_line(step) for step in network.tail),
    )


def _described(section: Section, hook: str | None) -> SectionDescription:
    grid = section.source.grid
    return SectionDescription(
        source=section.source.name,
        hook=hook,
        target=section.target.name,
        inputs=section.source.width,
        outputs=section.target.width,
        grid="any" if grid is None else "×".join(map(str, grid)) or "one position",
        core=_one_line(section.core),
        cost=_cost(section),
    )


def _cost(section: Section) -> str:
    core = section.core
    if isinstance(core, General):
        grid = section.target.grid
        each = "every position" if grid is None else f"{prod(grid)} positions"
        passes = f"general: a backward pass for each of {section.write.shape[1]} coordinates"
        return f"{passes} at {each}" if core.mixes_positions else passes
    return "closed form, a pass of its own" if isinstance(core, PassCore) else "closed form"


def _one_line(part: object) -> str:
    return " ".join(repr(part).split())
