"""Names of node layers: that of the module which reads a layer first, or those that a user chooses.

A user names the inputs of modules, as `named_modules` has them.
"""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise

from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.traced.cuts import PlannedSection
from interbasis.models.traced.sections import general_section
from interbasis.models.traced.streams import Divided, Foreign, MeanSquare, Mixed, Stream, in_order
from interbasis.network.network import Section
from interbasis.network.prefix import with_constant


def layer_names(plan: Sequence[PlannedSection], last: str) -> list[str]:
    """Names of all cuts of a plan, the last of which is given."""
    names: list[str] = []
    for planned in plan:
        name = _first_reader(planned) or _operation_word(planned)
        if planned.core is not None and isinstance(planned.core.op, Divided):
            name += "_out"
        if name in names or name == "output":
            name = next(f"{name}.{k}" for k in range(2, len(names) + 3) if f"{name}.{k}" not in names)
        names.append(name)
    return [*names, last]


def _computed(planned: PlannedSection) -> list[Stream]:
    """Streams that a section computes on the way to its core, or else at all, in order."""
    core, region = planned.core, planned.region
    wanted = [core] if core is not None else list(region or planned.target.streams)
    return in_order(wanted, planned.source.readable)


def _first_reader(planned: PlannedSection) -> str:
    """The first module with a map of its own, or the first of all, that a section runs."""
    named = [stream for stream in _computed(planned) if stream.location.module]
    maps = [s for s in named if not isinstance(s.op, Mixed) or s.op.is_linear_map]
    return next((stream.location.module for stream in [*maps, *named]), "")


def _operation_word(planned: PlannedSection) -> str:
    if planned.core is None:
        return "linear"
    op = planned.core.op
    if isinstance(op, (MeanSquare, Divided)):
        return "norm"
    if isinstance(op, Foreign):
        return op.description.split()[0]
    return getattr(getattr(op, "activation", None), "name", type(op).__name__.lower())


def choose_layers(
    module: nn.Module, plan: Sequence[PlannedSection], sections: Sequence[Section], layers: Sequence[str]
) -> tuple[tuple[Section, ...], list[Section]]:
    """The sections before the first named layer, and those between the named ones and the output.

    Where several natural sections lie between two named layers they are one, by automatic differentiation.
    """
    names = [name for name in layers if name != "output"]
    numbers = [_number(module, plan, sections, name) for name in names]
    if not numbers or numbers != sorted(set(numbers)):
        raise InterbasisError(
            f"expected names of modules in the order in which they are called, each once, received "
            f"{', '.join(layers)}"
        )
    renamed = [*sections]
    for k, name in zip(numbers, names, strict=True):
        node = replace(sections[k].source, name=name)
        renamed[k] = replace(renamed[k], source=node)
        if k:
            renamed[k - 1] = replace(renamed[k - 1], target=node)
    between = [_composed(renamed[first:last]) for first, last in pairwise([*numbers, len(sections)])]
    return tuple(renamed[: numbers[0]]), between


def _number(module: nn.Module, plan: Sequence[PlannedSection], sections: Sequence[Section], name: str) -> int:
    """Number of the first node layer from which a module is entered, or of one of that name."""
    natural = [section.source.name for section in sections]
    inside = [any(name in stream.callers for stream in _computed(planned)) for planned in plan]
    for k, enters in enumerate(inside):
        if enters and (natural[k] == name or not any(inside[:k])):
            return k
    if name in natural:
        return natural.index(name)
    known = [n for n, _ in module.named_modules() if n]
    if name in known:
        raise InterbasisError(
            f"there is no node layer at the input of {name!r}, which is computed together with its "
            f"neighbours; the node layers are {', '.join(natural)}"
        )
    near = get_close_matches(name, [*known, *natural], n=1, cutoff=0)
    raise InterbasisError(f"there is no module {name!r}; did you mean {near[0]!r}?")


def _composed(sections: Sequence[Section]) -> Section:
    if len(sections) == 1:
        return sections[0]
    ends = sections[0].source, sections[-1].target

    def function(f: Tensor) -> Tensor:  # [n, T, width - 1], without the constants
        f = with_constant(f)
        for section in sections:
            f = section(f)
        return f[..., 1:]

    return general_section(function, ends, f"{len(sections)} sections from {ends[0].name} on")
