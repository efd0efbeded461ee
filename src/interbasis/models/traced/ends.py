"""Both ends of a traced network: the prefix before the first node layer, and the tail after the last."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.traced.cuts import PlannedSection
from interbasis.models.traced.recognise import op_name
from interbasis.models.traced.streams import Gathered, PrefixOutput, Spread, Stream, evaluate, in_order
from interbasis.models.traced.trace import TracedModule, location
from interbasis.network.network import LayerMap, NodeLayer, Prefix
from interbasis.network.prefix import with_constant

UNLISTED = {
    "sym_size", "_assert_tensor_metadata", "_assert_scalar", "getitem", "_to_copy", "to", "clone", "mul",
    "eq",
}  # fmt: skip
"""Operations of a prefix that its description leaves out."""


class TracedPrefix(Prefix):
    """inputs -> [n, T, 1 + channels of all streams of the first node layer], by the traced operations."""

    def __init__(self, traced: TracedModule, streams: Sequence[Stream], *, fixed_lengths: bool):
        super().__init__()
        self.traced = traced
        self.outputs = [stream.op for stream in streams if isinstance(stream.op, PrefixOutput)]
        self.module, self.steps = _subgraph(traced, [output.node for output in self.outputs])
        self.shape = tuple(traced.example.shape[1:])
        self.takes_tokens = not traced.example.is_floating_point()
        self.fixed_lengths = fixed_lengths
        self.has_rows = not streams[0].grid
        self.like = nn.Buffer(torch.zeros((), dtype=torch.float64))

    def __repr__(self) -> str:
        return f"TracedPrefix({'; '.join(self.steps) or 'the input itself'})"

    def __deepcopy__(self, memo: dict) -> "TracedPrefix":
        """The weights are copied; the graph and its operations are shared."""
        module = fx.GraphModule(dict(self.module.named_buffers()), self.module.graph)
        for name, buffer in module.named_buffers():
            setattr(module, name, buffer.clone())
        other = copy(self)
        other._buffers, other._modules = dict(self._buffers), {"module": module}
        return other

    def has_positions(self, inputs: Tensor) -> bool:
        return not self.has_rows

    def forward(self, inputs: Tensor) -> Tensor:
        expected = f"[samples{''.join(f', {size}' for size in self.shape)}], like the example"
        odd = inputs.ndim != len(self.shape) + 1
        if odd or (self.fixed_lengths and tuple(inputs.shape[1:]) != self.shape):
            raise InterbasisError(f"expected inputs of shape {expected}, received {list(inputs.shape)}")
        if self.takes_tokens == inputs.is_floating_point():
            kind = "integers" if self.takes_tokens else "real numbers"
            raise InterbasisError(f"expected {kind}, like the example, received {inputs.dtype}")
        converted = inputs.long() if self.takes_tokens else inputs.to(self.like.dtype)
        try:
            f = self.traced.in_groups(self._run, converted)
        except (RuntimeError, IndexError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InterbasisError(
                f"inputs of shape {list(inputs.shape)} failed before the first node layer ({reason}); "
                f"expected {expected}"
            ) from error
        return with_constant(f.to(self.like.dtype))

    def _run(self, inputs: Tensor) -> Tensor:
        parts = []
        for output, tensor in zip(self.outputs, self.module(inputs), strict=True):
            moved = tensor.movedim((output.samples_axis, output.channels_axis), (0, -1))
            parts.append(moved.reshape(len(moved), -1, moved.shape[-1]))
        return torch.cat(parts, dim=-1)


def _subgraph(traced: TracedModule, wanted: Sequence[fx.Node]) -> tuple[fx.GraphModule, list[str]]:
    """The part of the graph that nodes require, with weights as buffers, and its operations in words."""
    graph, copies = fx.Graph(), {}
    root = nn.Module()
    needed: set[fx.Node] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    steps: dict[str, None] = {}
    for node in traced.graph.nodes:
        if node is traced.input:
            copies[node] = graph.placeholder("inputs")
        elif node in needed and node.op == "placeholder":
            root.register_buffer(node.name, traced.constants[node.name].detach().clone())
            copies[node] = graph.get_attr(node.name)
        elif node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if op_name(node) not in UNLISTED:
                module = location(node).module
                steps.setdefault(f"{op_name(node)}{f' in {module}' if module else ''}")
    graph.output([copies[node] for node in wanted])
    return fx.GraphModule(root, graph), list(steps)


@dataclass(frozen=True, eq=False)
class Tail(LayerMap):
    """Step from tokens of sequences of any length to the output, by the first token or the mean of all."""

    source: NodeLayer
    target: NodeLayer
    streams: tuple[Stream, ...]
    output: Stream

    @classmethod
    def from_plan(cls, plan: Sequence[PlannedSection]) -> "Tail | None":
        """The tail in the place of these sections; None where something in it depends on the length."""
        cut, output = plan[0].source, plan[-1].target.streams[0]
        pools = [s.op for s in in_order([output], set(cut.streams)) if isinstance(s.op, Spread)]
        if not all(isinstance(pool, Gathered) and pool.any_length for pool in pools):
            return None
        target = NodeLayer("output", 1 + output.channels, grid=output.grid)
        return cls(NodeLayer("", 1 + cut.width), target, cut.streams, output)

    def __repr__(self) -> str:
        return f"Tail({self.source.name} → output: {self.output.channels} numbers per sample)"

    def __call__(self, f: Tensor) -> Tensor:  # [n, T, 1 + width] -> [n, 1, 1 + outputs]
        parts = f[..., 1:].split([stream.channels for stream in self.streams], dim=-1)
        (result,) = evaluate([self.output], dict(zip(self.streams, parts, strict=True)))
        return with_constant(result)

    def direct(self, f: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:  # [d_in], [..., d_in]
        """The output for f at all positions, and its derivative along changes of f."""

        def once(f: Tensor) -> Tensor:
            return self(f[None, None])[0, 0]

        changes = [torch.func.jvp(once, (f,), (change,))[1] for change in moved.reshape(-1, len(f))]
        return once(f), torch.stack(changes).reshape(*moved.shape[:-1], -1)

    def tensors(self) -> list[Tensor]:
        """Weights of its linear maps."""
        ops = [stream.op for stream in in_order([self.output], set(self.streams))]
        values = [value for op in ops for value in vars(op).values()]
        parts = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
        return [part for part in parts if isinstance(part, Tensor)]

    def to(self, *args: Any, **kwargs: Any) -> "Tail":
        """Itself: its weights are float64 and are rounded as they are used."""
        return self
