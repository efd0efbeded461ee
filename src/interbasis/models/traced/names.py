"""Names of node layers: that of the module which reads it first."""

from collections.abc import Sequence

from interbasis.models.traced.cuts import Step
from interbasis.models.traced.streams import Divided, Foreign, MeanSquare, Mixed, Stream, in_order


def names_of(steps: Sequence[Step], last: str = "output") -> list[str]:
    """One for every cut; the last is given."""
    names: list[str] = []
    for step in steps:
        name = _reader(step) or _word(step)
        if step.core is not None and isinstance(step.core.made, Divided):
            name += "_out"
        names.append(_fresh(name, names))
    return [*names, last]


def computed(step: Step) -> list[Stream]:
    """The streams that a step computes on the way to its core, or else at all, in order."""
    wanted = [step.core] if step.core is not None else list(step.region or step.target.streams)
    return in_order(wanted, step.source.held)


def _reader(step: Step) -> str:
    """The first module with a map of its own, or the first of all, that a step runs."""
    named = [stream for stream in computed(step) if stream.place.module]
    maps = [s for s in named if not isinstance(s.made, Mixed) or s.made.is_linear_map]
    return next((stream.place.module for stream in [*maps, *named]), "")


def _word(step: Step) -> str:
    made = None if step.core is None else step.core.made
    if isinstance(made, MeanSquare):
        return "norm"
    if isinstance(made, Divided):
        return "norm"
    if isinstance(made, Foreign):
        return made.what.split()[0]
    activation = getattr(made, "activation", None)
    return getattr(activation, "name", type(made).__name__.lower() if made is not None else "linear")


def _fresh(name: str, taken: Sequence[str]) -> str:
    if name not in taken and name != "output":
        return name
    return next(f"{name}.{k}" for k in range(2, len(taken) + 3) if f"{name}.{k}" not in taken)
