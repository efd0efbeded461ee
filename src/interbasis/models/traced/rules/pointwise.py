"""Functions of every number by itself."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from interbasis.models.traced import wires
from interbasis.models.traced.recognise import Recogniser, call, known, op_name
from interbasis.models.traced.streams import Applied, Mixed, Product, selection
from interbasis.models.traced.values import Keywords, Known, Scores, Value
from interbasis.models.traced.wires import MisplacedError, Wire
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
    """One of torch's functions of a number, with the options it was called with."""

    def __init__(self, node: fx.Node, options: list[Any], named: Keywords, name: str = ""):
        super().__init__()
        self.target: Any = node.target
        self.name = name or op_name(node)
        self.options = options
        self.named = named

    def __deepcopy__(self, memo: dict) -> "Pointwise":
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


def pointwise(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    options = [known(arg) for arg in args[1:]]
    named = {name: known(value) for name, value in kwargs.items()}
    if any(isinstance(option, Tensor) for option in [*options, *named.values()]):
        raise MisplacedError("a function with tensors as options has no rule")
    result = apply(made, made.wire(args[0]), Pointwise(node, options, named))
    if op_name(node) == "log_sigmoid_forward":
        from interbasis.models.traced.values import Several

        return Several((result, result))
    return result


def apply(made: Recogniser, x: Wire, activation: nn.Module) -> Wire:
    """To the channels that a tensor holds."""

    def attempt(x: Wire) -> Wire:
        aligned = wires.align([x], made.samples)
        stream, channels = x.stream, aligned.channels[0]
        if not torch.equal(channels, torch.arange(stream.channels)):
            matrix = selection(channels, stream.channels)
            bias = torch.zeros(len(matrix), dtype=torch.float64)
            stream = made.stream(Mixed((stream,), (matrix,), bias), stream.grid, len(matrix))
        return Wire(made.stream(Applied((stream,), activation), stream.grid, stream.channels), aligned.where)

    return made.placed(x, attempt, flat=False)


def square(made: Recogniser, x: Wire) -> Wire:
    return apply(made, x, Square())


def power(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    exponent = known(args[1])
    if isinstance(exponent, Tensor) or isinstance(args[0], Known):
        raise MisplacedError("a power with a computed exponent has no rule")
    x = made.wire(args[0])
    return square(made, x) if exponent == 2 else apply(made, x, Pointwise(node, [exponent], {}))


def prelu(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    x, slopes = made.wire(args[0], 1), known(args[1]).double()
    if slopes.numel() == 1:
        return apply(made, x, nn.LeakyReLU(slopes.item()))
    shape = [1, -1] + [1] * (x.where.ndim - 2)
    aligned = wires.align([x], made.samples)
    k = len(aligned.channels[0])
    rows = slopes.view(shape).expand(x.where.shape).flatten()[aligned.order].view(-1, k)
    if (rows != rows[:1]).any():
        raise MisplacedError("slopes differ between positions")
    module = nn.PReLU(k).double()
    module.weight.data = rows[0].clone()
    return apply(made, x, PerFeaturePReLU(module))


def glu(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    """a ∘ sigmoid(b), the two halves along a dimension."""
    x = made.wire(args[0])
    axis = int(known(args[1])) if len(args) > 1 else -1
    value, gate = (Wire(x.stream, half) for half in x.where.chunk(2, axis))
    aligned = wires.align([gate, value], made.samples)
    parts = []
    for channels in aligned.channels:
        matrix = selection(channels, x.stream.channels)
        bias = torch.zeros(len(matrix), dtype=torch.float64)
        parts.append(made.stream(Mixed((x.stream,), (matrix,), bias), x.stream.grid, len(matrix)))
    stream = made.stream(Product(tuple(parts), nn.Sigmoid()), x.stream.grid, len(aligned.channels[0]))
    return Wire(stream, aligned.where)


def masked_fill(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    if isinstance(args[0], Scores):
        from interbasis.models.traced.rules.attention import masked

        filled = torch.zeros(args[0].shape, dtype=torch.float64).masked_fill(
            known(args[1]), float(known(args[2]))
        )
        return masked(args[0], filled)
    raise MisplacedError("filling in numbers has no rule")


def where(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    if isinstance(args[1], Scores):
        from interbasis.models.traced.rules.attention import masked

        return masked(args[1], call(node, [args[0], Known(torch.zeros(args[1].shape).double()), args[2]], {}))
    raise MisplacedError("a choice between values has no rule")


RULES = {
    **dict.fromkeys(NAMES, pointwise), "pow": power, "prelu": prelu, "_prelu_kernel": prelu, "glu": glu,
    "masked_fill": masked_fill, "where": where,
}  # fmt: skip
