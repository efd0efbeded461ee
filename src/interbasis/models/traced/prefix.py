"""What comes before the first node layer: the traced operations that it takes, run as they are."""

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.traced.recognise import op_name
from interbasis.models.traced.streams import Given, Stream
from interbasis.models.traced.trace import Traced, place
from interbasis.network.network import Prefix
from interbasis.network.prefix import with_constant

SILENT = {
    "sym_size",
    "_assert_tensor_metadata",
    "_assert_scalar",
    "getitem",
    "_to_copy",
    "to",
    "clone",
    "mul",
    "eq",
}


class TracedPrefix(Prefix):
    """inputs -> [n, T, 1 + channels of all streams of the first node layer]."""

    def __init__(self, traced: Traced, streams: Sequence[Stream], *, fixed_lengths: bool):
        super().__init__()
        self.traced = traced
        self.given = [stream.made for stream in streams if isinstance(stream.made, Given)]
        self.module, self.steps = _piece(traced, [given.node for given in self.given])
        self.shape = tuple(traced.example.shape[1:])
        self.takes_tokens = not traced.example.is_floating_point()
        self.fixed_lengths = fixed_lengths
        self.rows = not streams[0].grid
        self.like = nn.Buffer(torch.zeros((), dtype=torch.float64))

    def __repr__(self) -> str:
        return f"TracedPrefix({'; '.join(self.steps) or 'the input itself'})"

    def __deepcopy__(self, memo: dict) -> "TracedPrefix":
        """The weights are copied; the graph and its operations are shared."""
        from copy import copy

        other = copy(self)
        other._buffers = dict(self._buffers)
        other._modules = {"module": _copied(self.module)}
        return other

    def has_positions(self, inputs: Tensor) -> bool:
        return not self.rows

    def forward(self, inputs: Tensor) -> Tensor:
        odd = inputs.ndim != len(self.shape) + 1
        if odd or (self.fixed_lengths and tuple(inputs.shape[1:]) != self.shape):
            raise InterbasisError(
                f"expected inputs of shape [samples{''.join(f', {size}' for size in self.shape)}], like the "
                f"example, received {list(inputs.shape)}"
            )
        if self.takes_tokens == inputs.is_floating_point():
            kind = "integers" if self.takes_tokens else "real numbers"
            raise InterbasisError(f"expected {kind}, like the example, received {inputs.dtype}")
        taken = inputs.long() if self.takes_tokens else inputs.to(self.like.dtype)
        try:
            f = self.traced.in_groups(self._run, taken)
        except (RuntimeError, IndexError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InterbasisError(
                f"inputs of shape {list(inputs.shape)} failed before the first node layer ({reason}); "
                f"expected [samples{''.join(f', {size}' for size in self.shape)}], like the example"
            ) from error
        return with_constant(f.to(self.like.dtype))

    def _run(self, inputs: Tensor) -> Tensor:
        parts = zip(self.given, self.module(inputs), strict=True)
        return torch.cat([_as_stream(given, tensor) for given, tensor in parts], dim=-1)


def _as_stream(given: Given, tensor: Tensor) -> Tensor:  # -> [n, P, c]
    assert given.channels_axis is not None
    rest = [k for k in range(tensor.ndim) if k not in (given.samples_axis, given.channels_axis)]
    moved = tensor.permute(given.samples_axis, *rest, given.channels_axis)
    return moved.reshape(len(moved), -1, moved.shape[-1])


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    copy = fx.GraphModule(dict(module.named_buffers()), module.graph)
    for name, buffer in copy.named_buffers():
        setattr(copy, name, buffer.clone())
    return copy


def _piece(traced: Traced, wanted: Sequence[fx.Node]) -> tuple[fx.GraphModule, list[str]]:
    """The part of the graph that some nodes require, with weights as buffers, and its operations in words."""
    graph, copies = fx.Graph(), {}
    root = nn.Module()
    needed = _ancestors(wanted)
    steps: dict[str, None] = {}
    for node in traced.graph.nodes:
        if node is traced.input:
            copies[node] = graph.placeholder("inputs")
        elif node in needed and node.op == "placeholder":
            root.register_buffer(node.name, traced.constants[node.name].detach().clone())
            copies[node] = graph.get_attr(node.name)
        elif node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if op_name(node) not in SILENT:
                at = place(node).module
                steps.setdefault(f"{op_name(node)}{f' in {at}' if at else ''}")
    graph.output([copies[node] for node in wanted])
    return fx.GraphModule(root, graph), list(steps)


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found
