"""Streams, expressions and cuts of graphs that are written by hand, against plain torch."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cases import normal
from interbasis.models.traced.cuts import Expression, Expressions, NeedsCutError, Planner, StreamCut
from interbasis.models.traced.sections import make_section
from interbasis.models.traced.streams import (
    Convolved,
    CoreOp,
    Flattened,
    Gathered,
    MaxPooled,
    Mixed,
    Op,
    Stream,
    evaluate,
    in_order,
)
from interbasis.models.traced.trace import SourceLocation
from interbasis.network.cores import Elementwise, Largest
from interbasis.network.network import NodeLayer
from interbasis.network.prefix import with_constant
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import kernel_taps
from interbasis.network.window import Grid, SlidingWindow
from reference import relative_error

GRID = (5, 4)


def stream(op: Op, channels: int, grid: Grid = ()) -> Stream:
    return Stream(grid, channels, op, SourceLocation((), ""))


def given(channels: int, grid: Grid = ()) -> Stream:
    return stream(Op(()), channels, grid)


def linear(x: Stream, weight: Tensor, bias: Tensor | None = None) -> Stream:
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return stream(Mixed((x,), (weight,), bias, is_linear_map=True), len(weight), x.grid)


def total(*parts: Stream) -> Stream:
    weights = tuple(torch.eye(parts[0].channels).double() for _ in parts)
    return stream(
        Mixed(parts, weights, torch.zeros(parts[0].channels).double()), parts[0].channels, parts[0].grid
    )


def applied(x: Stream, activation: nn.Module) -> Stream:
    return stream(CoreOp((x,), Elementwise(activation)), x.channels, x.grid)


def convolved(x: Stream, weight: Tensor, padding: int = 0) -> Stream:
    stencil = Stencil.sliding(x.grid, SlidingWindow.from_arguments(weight.shape[2:], padding=padding))
    return stream(Convolved((x,), stencil, kernel_taps(weight)), len(weight), stencil.target)


def pixels(images: Tensor) -> Tensor:  # [n, c, h, w] -> [n, h·w, c]
    return images.flatten(2).mT


def value(expression: Expression, f: Tensor) -> Tensor:
    """b + Σ_k T_k (W_k f)_s, written out."""
    result = expression.bias.expand(1, 1, -1)
    for term in expression.terms:
        patches = f[:, :, None] if term.stencil is None else term.stencil.patches(f)
        result = result + torch.einsum("nskd,ckd->nsc", patches, term.taps)
    return result


def test_streams_compute_what_torch_computes() -> None:
    images, kernel = normal(2, 3, *GRID), normal(4, 3, 2, 2, seed=1)
    x = given(3, GRID)
    inside = SlidingWindow.from_arguments((2, 2), 2, mode="inside")
    windows = Stencil.sliding(GRID, inside)
    largest = stream(MaxPooled((x,), Largest(windows.taps), windows), 3, windows.target)
    flat = stream(Flattened((x,), Stencil.flattened(GRID)), 3 * 20)
    third = Stencil(GRID, (), torch.tensor([[[2]]]), torch.ones(1, 1, 1).double())
    picked = stream(Gathered((x,), third, "1 of 20 positions"), 3)
    found = evaluate([convolved(x, kernel, 1), largest, flat, picked], {x: pixels(images)})
    expected = [
        pixels(F.conv2d(images, kernel, padding=1)),
        pixels(F.max_pool2d(images, 2)),
        pixels(images).flatten(1)[:, None],
        pixels(images)[:, 2:3],
    ]
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) <= 1e-14


def test_streams_are_computed_after_their_inputs_and_once() -> None:
    x = given(3)
    a = applied(x, nn.Tanh())
    b = total(a, x)
    c = total(b, a)
    assert in_order([c, b], {x}) == [a, b, c]


def test_an_expression_is_the_linear_map_to_the_cut() -> None:
    """Of a 1×1 convolution, a 2×2 one and another 1×1 one with a bias: the second alone reads neighbours."""
    images = normal(2, 3, *GRID)
    first, kernel, last, bias = normal(4, 3), normal(5, 4, 2, 2, seed=1), normal(2, 5, seed=2), normal(2)
    x = given(3, GRID)
    whole = linear(convolved(linear(x, first), kernel), last, bias)
    expected = F.conv2d(F.conv2d(images, first[..., None, None]), kernel)
    expected = F.conv2d(expected, last[..., None, None], bias)
    assert (
        relative_error(value(Expressions({x}).expression(whole), pixels(images)), pixels(expected)) <= 1e-12
    )


def test_a_bias_that_padding_cuts_off_needs_a_node_layer() -> None:
    x, kernel = given(3, GRID), normal(5, 4, 3, 3, seed=1)
    inner = linear(x, normal(4, 3), normal(4))
    with pytest.raises(NeedsCutError) as needed:
        Expressions({x}).expression(convolved(inner, kernel, padding=1))
    assert needed.value.args == (inner,)
    assert Expressions({x}).missing([convolved(linear(x, normal(4, 3)), kernel, padding=1)]) is None


def test_a_second_convolution_needs_a_node_layer() -> None:
    x = given(3, GRID)
    first = convolved(x, normal(4, 3, 2, 2))
    assert Expressions({x}).missing([convolved(first, normal(2, 4, 2, 2))]) is first


def check_sections(output: Stream, first: Stream, f: Tensor, widths: list[int]) -> None:
    """Node layers of these widths, and sections that compute the streams of each from those before."""
    plan = Planner(output, StreamCut((first,))).run()
    cuts = [plan[0].source, *(planned.target for planned in plan)]
    assert [cut.width for cut in cuts] == widths
    assert cuts[-1].streams == (output,)
    nodes = [NodeLayer(str(k), 1 + cut.width, grid=cut.grid) for k, cut in enumerate(cuts)]
    found = with_constant(f)
    for k, planned in enumerate(plan):
        found = make_section(planned, nodes[k], nodes[k + 1])(found)
        expected = torch.cat(evaluate(planned.target.streams, {first: f}), dim=-1)
        assert relative_error(found[..., 1:], expected) <= 1e-12
        assert (found[..., 0] == 1).all()


def test_a_branch_is_added_within_its_section() -> None:
    """The node layer is the residual stream, not the hidden layer beside it."""
    first = x = given(3)
    for k in range(2):
        hidden = applied(linear(x, normal(7, 3, seed=k), normal(7, seed=k)), nn.GELU())
        x = total(x, linear(hidden, normal(3, 7, seed=k)))
    check_sections(x, first, normal(6, 1, 3, seed=9), [3, 3, 3])


def test_a_bottleneck_is_the_node_layer() -> None:
    x = given(3)
    narrow = linear(applied(linear(x, normal(9, 3)), nn.Sigmoid()), normal(2, 9), normal(2))
    output = applied(linear(narrow, normal(6, 2), normal(6)), nn.Tanh())
    check_sections(output, x, normal(6, 1, 3, seed=9), [3, 2, 6])


def test_a_strided_shortcut_is_carried_along() -> None:
    """x + relu(conv(x)) on the smaller grid: the node layer holds both parts there before they are added."""
    x = given(3, GRID)
    kernel = normal(3, 3, 2, 2, seed=1)
    corner = torch.zeros(3, 3, 2, 2).double()
    corner[:, :, 0, 0] = torch.eye(3)
    output = total(convolved(x, corner), applied(convolved(x, kernel), nn.ReLU()))
    check_sections(output, x, pixels(normal(2, 3, *GRID)), [3, 6, 3])
