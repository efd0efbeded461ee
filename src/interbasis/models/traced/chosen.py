"""Node layers that a user names: the inputs of modules, by the names that `named_modules` gives them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise

from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.traced.cuts import Step
from interbasis.models.traced.names import computed
from interbasis.models.traced.sections import composed
from interbasis.network.network import NodeLayer, Section
from interbasis.network.prefix import with_constant


def chosen(
    module: nn.Module, steps: Sequence[Step], sections: Sequence[Section], layers: Sequence[str]
) -> tuple[tuple[Section, ...], list[Section]]:
    """The sections before the first named layer, and those between the named ones and the output.

    Where several natural sections lie between two named layers they are one, by automatic differentiation.
    """
    names = [name for name in layers if name != "output"]
    places = [_place(module, steps, sections, name) for name in names]
    if not places or places != sorted(set(places)):
        raise InterbasisError(
            f"expected names of modules in the order in which they are called, each once, received "
            f"{', '.join(layers)}"
        )
    renamed = [*sections]
    for at, name in zip(places, names, strict=True):
        _rename(renamed, at, name)
    ends = [*places, len(sections)]
    result = [_between(renamed[a:b]) for a, b in pairwise(ends)]
    return tuple(renamed[: places[0]]), result


def _place(module: nn.Module, steps: Sequence[Step], sections: Sequence[Section], name: str) -> int:
    """The first node layer from which a module is entered, or one of that name."""
    for k, step in enumerate(steps):
        within = [name in stream.callers for stream in computed(step)]
        if any(within) and (sections[k].source.name == name or _enters(steps, k, name)):
            return k
    natural = [section.source.name for section in sections]
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


def _enters(steps: Sequence[Step], k: int, name: str) -> bool:
    """Whether no earlier step computes anything of a module."""
    return not any(name in stream.callers for step in steps[:k] for stream in computed(step))


def _rename(sections: list[Section], at: int, name: str) -> None:
    node = replace(sections[at].source, name=name)
    sections[at] = replace(sections[at], source=node)
    if at:
        sections[at - 1] = replace(sections[at - 1], target=node)


def _between(sections: Sequence[Section]) -> Section:
    if len(sections) == 1:
        return sections[0]
    ends: tuple[NodeLayer, NodeLayer] = sections[0].source, sections[-1].target
    return composed(_chain(sections), ends, f"{len(sections)} sections from {ends[0].name} on")


def _chain(sections: Sequence[Section]) -> Callable[[Tensor], Tensor]:
    def function(f: Tensor) -> Tensor:  # [n, T, width - 1], without the constants
        f = with_constant(f)
        for section in sections:
            f = section(f)
        return f[..., 1:]

    return function
