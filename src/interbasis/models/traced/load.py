"""From a module to a network: traced, recognised, cut, and compared with the module's own output.

Node layers have the name of the module which reads them first, or those that a user chooses: names of modules
whose inputs they are, as `named_modules` has them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.messages import logger
from interbasis.models.custom_backward import has_custom_backward
from interbasis.models.own_output import own_output
from interbasis.models.traced.cuts import PlannedSection, Planner, StreamCut
from interbasis.models.traced.recognise import StreamBuilder, op_name
from interbasis.models.traced.rules.foreign import Layout
from interbasis.models.traced.sections import Tail, TracedPrefix, general_section, make_section
from interbasis.models.traced.streams import Foreign, Mixed, PrefixOutput, Stream, in_order
from interbasis.models.traced.trace import TracedModule, location, trace
from interbasis.models.traced.values import NoRuleError, PrefixValue, StreamView, align
from interbasis.network import cores
from interbasis.network.network import Head, Network, NodeLayer, Section
from interbasis.network.prefix import with_constant

FAMILY = "traced"
MAX_RELATIVE_ERROR = 1e-9
"""Largest error allowed, of the largest output, in float64."""
MAX_ROUNDED_ERROR = 1e-4
"""The same where the module itself rounds to a shorter type on its way."""
WORDS: dict[type[cores.Core], str] = {
    cores.Elementwise: "applied", cores.Gated: "product", cores.Attention: "attended",
    cores.Largest: "maxpooled", cores.Variance: "norm", cores.Normalize: "norm",
    cores.GroupNorm: "norm", cores.HeadNorm: "norm", cores.PositionScale: "positions",
}  # fmt: skip
"""Words for cores, for node layers that no module with a name reads."""


@torch.no_grad()
def trace_network(
    module: nn.Module, example: Tensor, layers: Sequence[str] | None = None, output: str | int | None = None
) -> Network:
    """Network of a module with its natural node layers; outputs agree on the example."""
    traced = trace(module, example, output)
    builder = StreamBuilder(traced)
    result = builder.run()
    if isinstance(result, PrefixValue):
        raise InterbasisError(
            f"{type(module).__name__} has no layer with weights or a non-linearity between its input and "
            "its output; expected at least one"
        )
    if not isinstance(result, StreamView):
        raise InterbasisError(f"{type(module).__name__} returns no tensor that depends on its input")
    last, arrange = _output(builder, result)
    first = tuple(s for s in in_order([last], set()) if isinstance(s.op, PrefixOutput))
    if len({s.grid for s in first}) > 1:
        raise InterbasisError(
            f"{type(module).__name__} reads its input in two layouts, "
            f"{' and '.join(str(s.grid) for s in first)}; "
            "expected all of its first layers to read the same positions"
        )
    plan, tail = _without_tail(traced, Planner(last, StreamCut(first)).run(), layers)
    sections = _sections(plan, last="output" if tail is None else "pooled")
    before: tuple[Section, ...] = ()
    if layers is not None:
        before, sections = _choose_layers(module, plan, sections, layers)
    after = () if tail is None else (replace(tail, source=replace(sections[-1].target, grid=None)),)
    fixed = builder.fixed_lengths or not all(s.reads_per_position for s in sections)
    if not fixed and len(first[0].grid) == 1:
        sections, before = [_any_length(s) for s in sections], tuple(map(_any_length, before))
    prefix = TracedPrefix(traced, first, fixed_lengths=fixed)
    whole = Head(prefix, before) if before else prefix
    network = Network(whole, tuple(sections), after, family=FAMILY, arrange=arrange)
    _check(network, module, traced)
    if has_custom_backward(module, traced.example, traced.output_number, traced.shortest_dtype):
        calls = (node for node in traced.graph.nodes if node.op == "call_function")
        detached = next((node for node in calls if op_name(node) == "detach"), None)
        where = f"; one is {location(detached)}" if detached else ""
        logger.warning(
            f"the backward pass of {type(module).__name__} is not the derivative of what it computes "
            f"(detach, torch.no_grad, an autograd.Function or hook with a backward of its own{where}): "
            "interbasis differentiates the function itself, so that detached parts count and rounding has "
            "the derivative 0"
        )
    return network


def _without_tail(
    traced: TracedModule, plan: Sequence[PlannedSection], layers: Sequence[str] | None
) -> tuple[Sequence[PlannedSection], Tail | None]:
    """A plan without its last sections, where these can be a tail that takes sequences of any length.

    Sequences of tokens may have any length as long as nothing in the sections depends on it. What pools them,
    the first token or the mean, then begins the tail.
    """
    pools = next((k for k, planned in enumerate(plan) if planned.target.grid != planned.source.grid), None)
    if pools is None or pools == 0 or traced.example.is_floating_point() or not traced.open_lengths or layers:
        return plan, None
    tail = Tail.from_plan(plan[pools:])
    return (plan, None) if tail is None else (plan[:pools], tail)


def _sections(plan: Sequence[PlannedSection], last: str) -> list[Section]:
    cuts, nodes = [plan[0].source, *(planned.target for planned in plan)], []
    for cut, name in zip(cuts, _layer_names(plan, last), strict=True):
        isolated = sum(stream.is_core(cores.Variance) for stream in cut.streams)
        nodes.append(NodeLayer(name, 1 + cut.width, isolated=isolated, grid=cut.grid))
    return [make_section(planned, *nodes[k : k + 2]) for k, planned in enumerate(plan)]


def _any_length(section: Section) -> Section:
    """A section in which nothing depends on the number of positions."""
    source, target = (replace(node, grid=None) for node in (section.source, section.target))
    return replace(section, source=source, target=target)


def _output(builder: StreamBuilder, result: StreamView) -> tuple[Stream, Callable[[Tensor], Tensor] | None]:
    """The stream that comes out, and how the module arranges it if not as [n, positions, channels]."""
    try:
        aligned = align([result], builder.samples)
        stream = builder.select(result.stream, aligned.channels[0])
        if stream is not result.stream:
            result = StreamView(stream, aligned.index)
    except NoRuleError:
        picked = builder.picked(result)
        if picked is not None:
            return _output(builder, picked)
    stream = result.stream
    positions = (stream.positions,) if stream.grid else ()
    plain = torch.arange(builder.samples * stream.positions * stream.channels)
    if torch.equal(result.index, plain.view(builder.samples, *positions, stream.channels)):
        return stream, None
    layout = Layout.from_view(result, builder.samples)

    def arrange(output: Tensor) -> Tensor:
        return layout.arrange(output if output.ndim == 3 else output[:, None])

    return stream, arrange


def _check(network: Network, module: nn.Module, traced: TracedModule) -> None:
    """Refuse a network whose output is not the module's own, in float64."""
    problem = f"{type(module).__name__} could not be run in float64 to be compared"
    with Explained(problem, Exception, remedy="expected a module that computes in the type of its weights"):
        expected = own_output(module, traced.example.clone(), torch.float64)
    expected = tree_leaves(expected)[traced.output_number]
    outputs = network(traced.example)
    if outputs.shape != expected.shape:
        raise InterbasisError(
            f"the network puts out {list(outputs.shape)} where {type(module).__name__} puts out "
            f"{list(expected.shape)}"
        )
    off = ((outputs - expected).abs().max() / expected.abs().max().clamp_min(1e-300)).item()
    allowed = MAX_RELATIVE_ERROR if traced.shortest_dtype == torch.float64 else MAX_ROUNDED_ERROR
    if not off <= allowed:
        raise InterbasisError(
            f"{type(module).__name__} was traced, but the network's outputs are off by {off:.1e} of the "
            "largest; expected a module that computes the same every time it is called in evaluation mode"
        )


def _layer_names(plan: Sequence[PlannedSection], last: str) -> list[str]:
    """Names of all cuts of a plan, the last of which is given.

    They are those of the first module with a map of its own, or the first of all, that a section runs.
    """
    names: list[str] = []
    for planned in plan:
        named = [stream for stream in _computed(planned) if stream.location.module]
        maps = [s for s in named if not isinstance(s.op, Mixed) or s.op.is_linear_map]
        name = next((stream.location.module for stream in [*maps, *named]), "") or _operation_word(planned)
        if planned.core is not None and planned.core.is_core(cores.Normalize):
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


def _operation_word(planned: PlannedSection) -> str:
    if planned.core is None:
        return "linear"
    op: Any = planned.core.op
    if isinstance(op, Foreign):
        return op.description.split()[0]
    return getattr(getattr(op.core, "activation", None), "name", WORDS[type(op.core)])


def _choose_layers(
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
    inside = [any(name in stream.location.callers for stream in _computed(planned)) for planned in plan]
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
