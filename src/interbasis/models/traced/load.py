"""From a module to a network: traced, recognised, cut, and compared with the module's own output."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.models.custom_backward import has_custom_backward
from interbasis.models.own_output import own_output
from interbasis.models.traced.chosen import chosen
from interbasis.models.traced.cuts import Cut, Planner, Step
from interbasis.models.traced.names import names_of
from interbasis.models.traced.prefix import TracedPrefix
from interbasis.models.traced.recognise import Recogniser, op_name
from interbasis.models.traced.rules.foreign import Layout
from interbasis.models.traced.sections import section
from interbasis.models.traced.streams import Given, MeanSquare, Stream, in_order
from interbasis.models.traced.tail import Tail
from interbasis.models.traced.trace import Traced, place, trace
from interbasis.models.traced.values import Early
from interbasis.models.traced.wires import MisplacedError, Wire
from interbasis.network.network import Head, Network, NodeLayer, Section

FAMILY = "traced"
MAX_RELATIVE_ERROR = 1e-9
"""Of the largest output, in float64."""
MAX_ROUNDED_ERROR = 1e-4
"""The same where the module itself rounds to a shorter type on its way."""


@torch.no_grad()
def network_of(
    module: nn.Module,
    example: Tensor,
    layers: Sequence[str] | None = None,
    output: str | int | None = None,
) -> Network:
    """The network of a module with its natural node layers; outputs agree on the example."""
    traced = trace(module, example, output)
    made = Recogniser(traced)
    result = made.run()
    if isinstance(result, Early):
        raise InterbasisError(
            f"{type(module).__name__} has no layer with weights or a non-linearity between its input and "
            "its output; expected at least one"
        )
    if not isinstance(result, Wire):
        raise InterbasisError(f"{type(module).__name__} returns no tensor that depends on its input")
    last, arrange = _output(made, result)
    givens = tuple(s for s in in_order([last], set()) if isinstance(s.made, Given))
    if len({s.grid for s in givens}) > 1:
        raise InterbasisError(
            f"{type(module).__name__} reads its input in two layouts, "
            f"{' and '.join(str(s.grid) for s in givens)}; "
            "expected all of its first layers to read the same positions"
        )
    steps: Sequence[Step] = Planner(last, Cut(givens)).run()
    steps, tail = _with_tail(traced, steps, layers)
    sections = _sections(steps, last="output" if tail is None else "pooled")
    before: tuple[Section, ...] = ()
    if layers is not None:
        before, sections = chosen(module, steps, sections, layers)
    after = () if tail is None else (replace(tail, source=replace(sections[-1].target, grid=None)),)
    fixed = made.fixed_lengths or not all(s.reads_per_position for s in sections)
    if not fixed and len(givens[0].grid) == 1:
        sections, before = [_any_length(s) for s in sections], tuple(map(_any_length, before))
    prefix = TracedPrefix(traced, givens, fixed_lengths=fixed)
    whole = Head(prefix, before) if before else prefix
    network = Network(whole, tuple(sections), after, family=FAMILY, arrange=arrange)
    _check(network, module, traced)
    if has_custom_backward(module, traced.example, traced.leaf, traced.shortest_dtype):
        _warn_of_backward(module, traced)
    return network


def _warn_of_backward(module: nn.Module, traced: Traced) -> None:
    calls = (node for node in traced.graph.nodes if node.op == "call_function")
    detached = [node for node in calls if op_name(node) == "detach"]
    where = f"; one is {place(detached[0])}" if detached else ""
    logger.warning(
        f"the backward pass of {type(module).__name__} is not the derivative of what it computes (detach, "
        f"torch.no_grad, an autograd.Function or hook with a backward of its own{where}): interbasis "
        "differentiates the function itself, so that detached parts count and rounding has the derivative 0"
    )


def _with_tail(
    traced: Traced, steps: Sequence[Step], layers: Sequence[str] | None
) -> tuple[Sequence[Step], Tail | None]:
    """Sequences of tokens may have any length as long as nothing in the sections depends on it.

    What pools them, the first token or the mean, then begins the tail, which takes any length too.
    """
    pools = next((k for k, step in enumerate(steps) if step.target.grid != step.source.grid), None)
    if pools is None or pools == 0 or traced.example.is_floating_point() or not traced.open_lengths or layers:
        return steps, None
    tail = Tail.of(steps[pools:])
    return (steps, None) if tail is None else (steps[:pools], tail)


def _sections(steps: Sequence[Step], last: str) -> list[Section]:
    names = names_of(steps, last)
    cuts = [steps[0].source, *(step.target for step in steps)]
    nodes = [_node(cut, name) for cut, name in zip(cuts, names, strict=True)]
    return [section(step, *nodes[k : k + 2]) for k, step in enumerate(steps)]


def _node(cut: Cut, name: str) -> NodeLayer:
    isolated = sum(isinstance(stream.made, MeanSquare) for stream in cut.streams)
    return NodeLayer(name, 1 + cut.width, isolated=isolated, grid=cut.grid)


def _any_length(made: Section) -> Section:
    """Nothing in it depends on the number of positions."""
    return replace(made, source=replace(made.source, grid=None), target=replace(made.target, grid=None))


def _output(made: Recogniser, result: Wire) -> tuple[Stream, Callable[[Tensor], Tensor] | None]:
    """The stream that comes out, and how the module arranges it if not as [n, positions, channels]."""
    stream = result.stream
    samples = made.samples
    from interbasis.models.traced.wires import align

    try:
        aligned = align([result], samples)
        if not torch.equal(aligned.channels[0], torch.arange(stream.channels)):
            from interbasis.models.traced.rules.linear import mixed
            from interbasis.models.traced.streams import selection

            matrix = selection(aligned.channels[0], stream.channels)
            stream = mixed(made, [(stream, matrix)], matrix.new_zeros(len(matrix)), stream.grid)
            result = Wire(stream, aligned.where)
    except MisplacedError:
        picked = made.picked(result)
        if picked is not None:
            return _output(made, picked)
    plain = (samples, stream.channels) if not stream.grid else (samples, stream.positions, stream.channels)
    if tuple(result.where.shape) == plain and torch.equal(
        result.where, torch.arange(result.where.numel()).view(plain)
    ):
        return stream, None
    layout = Layout.of(result, samples)

    def arrange(output: Tensor) -> Tensor:
        return layout.lay_out(output if output.ndim == 3 else output[:, None])

    return stream, arrange


def _check(network: Network, module: nn.Module, traced: Traced) -> None:
    """The network's output is the module's own, in float64."""
    example = traced.example
    try:
        expected = own_output(module, example.clone(), torch.float64)
    except Exception as error:  # somebody else's code
        raise InterbasisError(
            f"{type(module).__name__} could not be run in float64 to be compared "
            f"({str(error).splitlines()[0]}); expected a "
            "module that computes in the type of its weights"
        ) from error
    expected = tree_leaves(expected)[traced.leaf]
    outputs = network(example)
    if outputs.shape != expected.shape:
        raise InterbasisError(
            f"the network puts out {list(outputs.shape)} where {type(module).__name__} puts out "
            f"{list(expected.shape)}"
        )
    off = ((outputs - expected).abs().max() / expected.abs().max().clamp_min(1e-300)).item()
    if not off <= (MAX_ROUNDED_ERROR if traced.rounds else MAX_RELATIVE_ERROR):
        raise InterbasisError(
            f"{type(module).__name__} was traced, but the network's outputs are off by {off:.1e} of the "
            "largest; expected a module that computes the same every time it is called in evaluation mode"
        )
