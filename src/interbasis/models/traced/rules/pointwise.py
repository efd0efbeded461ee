"""Functions of every number by itself, and products of two computed values: gates, and norms written out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from interbasis.models.traced.recognise import OpRule, StreamBuilder, constant, op_name, plain
from interbasis.models.traced.rules.linear import by_constants, is_computed, view_pair
from interbasis.models.traced.rules.norms import norm_by_root
from interbasis.models.traced.streams import CoreOp
from interbasis.models.traced.values import AttentionScores, Keywords, NoRuleError, StreamView, Value, align
from interbasis.network.cores import Core, Elementwise, Gated
from interbasis.network.cores.per_feature import PerFeaturePReLU

NAMES = (
    "relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "selu", "celu", "softplus", "mish",
    "hardtanh", "relu6", "hardswish", "hardsigmoid", "log_sigmoid", "softshrink", "hardshrink", "exp",
    "expm1", "sin", "cos", "atan", "abs", "erf", "clamp", "clamp_min", "clamp_max", "threshold", "sign",
    "sqrt", "rsqrt", "log1p", "cosh", "sinh", "asinh", "square", "log_sigmoid_forward", "rrelu",
    "hardtanh_", "softsign", "tanhshrink", "logit", "log", "reciprocal", "erfc", "exp2", "sinc",
    "floor", "ceil", "round", "trunc", "frac", "asin", "acos", "tan", "atanh",
)  # fmt: skip


class Pointwise(nn.Module):
    """Function of torch on every number, with the options it was called with."""

    def __init__(self, node: fx.Node, options: list[Any], named: Keywords):
        super().__init__()
        self.target: Any = node.target
        self.name, self.options, self.named = op_name(node), options, named

    def __deepcopy__(self, memo: dict[int, object]) -> "Pointwise":
        return self

    def __repr__(self) -> str:
        words = [*(f"{o:.6g}" if isinstance(o, float) else str(o) for o in self.options)]
        words += [f"{name}={value}" for name, value in self.named.items()]
        return f"{self.name}({', '.join(words)})"

    def forward(self, u: Tensor) -> Tensor:
        result = self.target(u, *self.options, **self.named)
        return result if isinstance(result, Tensor) else result[0]


class Square(nn.Module):
    """u²."""

    name = "square"

    def forward(self, u: Tensor) -> Tensor:
        return u.square()


def by_entries(builder: StreamBuilder, core: Core, views: Sequence[StreamView]) -> StreamView:
    """A core that reads the channels of tensors of one shape, entry by entry."""
    aligned = align(views, builder.samples)
    pairs = zip(views, aligned.channels, strict=True)
    parts = tuple(builder.select(view.stream, channels) for view, channels in pairs)
    return StreamView(builder.stream(CoreOp(parts, core), parts[0].grid, parts[0].channels), aligned.index)


def apply(builder: StreamBuilder, x: StreamView, activation: nn.Module) -> StreamView:
    """Apply a function to the channels that a tensor holds."""
    return builder.placed(lambda x: by_entries(builder, Elementwise(activation), [x]), x, flat=False)


def pointwise(builder: StreamBuilder, x: Value, *defaults: Any) -> Value:
    args, named = builder.arguments(builder.node)  # options as they were called with, without defaults
    options, named = constant(plain(list(args[1:]))), constant(plain(dict(named)))
    if any(isinstance(option, Tensor) for option in [*options, *named.values()]):
        raise NoRuleError("a function with tensors as options has no rule")
    result = apply(builder, builder.view(x), Pointwise(builder.node, options, named))
    return (result, result) if op_name(builder.node) == "log_sigmoid_forward" else result


def power(builder: StreamBuilder, x: Value, exponent: Any) -> Value:
    if isinstance(constant(exponent), Tensor) or not is_computed(x):
        raise NoRuleError("a power with a computed exponent has no rule")
    activation = Square() if exponent == 2 else Pointwise(builder.node, [exponent], {})
    return apply(builder, builder.view(x), activation)


def prelu(builder: StreamBuilder, x: Value, weight: Any) -> Value:
    view, slopes = builder.view(x, 1), constant(weight).double()
    if slopes.numel() == 1:
        return apply(builder, view, nn.LeakyReLU(slopes.item()))
    slopes = slopes.view([1, -1] + [1] * (view.index.ndim - 2))
    slopes = align([view], builder.samples).same_at_all_sites(slopes, "slopes differ between positions")
    module = nn.PReLU(len(slopes)).double()
    module.weight.data = slopes.clone()
    return apply(builder, view, PerFeaturePReLU(module))


def glu(builder: StreamBuilder, x: Value, dim: int) -> Value:
    """a ∘ sigmoid(b), the two halves along a dimension."""
    view = builder.view(x)
    value, gate = (StreamView(view.stream, half) for half in view.index.chunk(2, dim))
    return by_entries(builder, Gated(nn.Sigmoid()), [gate, value])


def mul(builder: StreamBuilder, first: Any, second: Any) -> Value:
    for scores, factor in ((first, second), (second, first)):
        if isinstance(scores, AttentionScores):
            return scores.scaled(float(constant(factor)))
    if is_computed(first) and is_computed(second):
        return _product(builder, *view_pair(builder, first, second))
    x, factor = (first, second) if is_computed(first) else (second, first)
    return by_constants(builder, builder.view(x), constant(factor), 0.0)


def div(builder: StreamBuilder, first: Any, second: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise NoRuleError("a rounded division has no rule")
    if isinstance(first, AttentionScores):
        return first.scaled(1 / float(constant(second)))
    if is_computed(first) and is_computed(second):
        x, root = view_pair(builder, first, second)
        norm = norm_by_root(builder, x, root, "sqrt")
        if norm is not None:
            return norm
    if is_computed(second):
        raise NoRuleError("a division by what is computed has no rule")
    factor = 1 / torch.as_tensor(constant(second), dtype=torch.float64)
    return by_constants(builder, builder.view(first), factor, 0.0)


def _product(builder: StreamBuilder, first: StreamView, second: StreamView) -> StreamView:
    """act(g) ∘ w, or x / √(v + ε) where one of the two is that root."""
    if first.stream is second.stream and torch.equal(first.index, second.index):
        return apply(builder, first, Square())
    for x, root in ((first, second), (second, first)):
        norm = norm_by_root(builder, x, root, "rsqrt")
        if norm is not None:
            return norm
    gate, value = (first, second) if first.stream.is_core(Elementwise) else (second, first)
    activation: nn.Module = nn.Identity()
    op: Any = gate.stream.op
    if gate.stream.is_core(Elementwise) and not any(op.core.activation.parameters()):
        activation, gate = op.core.activation, StreamView(op.inputs[0], gate.index)
    shape = torch.broadcast_shapes(gate.shape, value.shape)
    return by_entries(builder, Gated(activation), [gate.expand(shape), value.expand(shape)])


def masked_fill(builder: StreamBuilder, x: Value, mask: Any, value: Any) -> Value:
    if not isinstance(x, AttentionScores):
        raise NoRuleError("filling in numbers has no rule")
    zeros = torch.zeros(x.shape, dtype=torch.float64)
    return x.masked(zeros.masked_fill(constant(mask), float(constant(value))))


def where(builder: StreamBuilder, condition: Any, x: Any = None, other: Any = None) -> Value:
    if not isinstance(x, AttentionScores):
        raise NoRuleError("a choice between values has no rule")
    zeros = torch.zeros(x.shape, dtype=torch.float64)
    return x.masked(torch.where(constant(condition), zeros, constant(other)))


RULES: dict[str, OpRule] = {
    **dict.fromkeys(NAMES, pointwise), "pow": power, "prelu": prelu, "_prelu_kernel": prelu, "glu": glu,
    "mul": mul, "div": div, "masked_fill": masked_fill, "where": where,
}  # fmt: skip
