"""What every rule recognises: streams that compute what the module computes, before any section is made."""

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import normal
from interbasis.models.traced.recognise import StreamBuilder
from interbasis.models.traced.rules.foreign import Layout
from interbasis.models.traced.streams import (
    CORES,
    CoreOp,
    Foreign,
    Op,
    PrefixOutput,
    Stream,
    evaluate,
    in_order,
)
from interbasis.models.traced.trace import SourceLocation, trace
from interbasis.models.traced.values import AttentionScores, NoRuleError, StreamView, align, group
from interbasis.network import cores
from reference import relative_error


class Applied(nn.Module):
    """A function of an input that was mapped linearly."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.map = function, nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.map(x))


def attended(x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (2, 1)).transpose(1, 2) for part in x.chunk(3, -1))
    scores = (q @ k.mT * 0.7).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


ROWS, SEQUENCES, IMAGES = (6,), (4, 6), (3, 6, 6)
RULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[type]]] = {
    "linear": (lambda: Applied(lambda x: 2 - x.flip(-1) / 4 + x[..., :1]), SEQUENCES, set()),
    "pointwise": (lambda: Applied(lambda x: torch.tanh(x) ** 2), ROWS, {cores.Elementwise}),
    "gates": (lambda: Applied(lambda x: F.silu(x[..., :3]) * x[..., 3:]), ROWS, {cores.Gated}),
    "norms": (lambda: Applied(nn.LayerNorm(6)), SEQUENCES, {cores.Variance, cores.Normalize}),
    "attention": (lambda: Applied(attended), SEQUENCES, {cores.Attention}),
    "images": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), IMAGES, {cores.Largest}),
    "foreign": (lambda: Applied(lambda x: x.softmax(-1)), ROWS, {Foreign}),
}


@pytest.mark.parametrize("name", RULES)
def test_streams_of_a_module_compute_its_output(name: str) -> None:
    make, shape, kinds = RULES[name]
    torch.manual_seed(0)
    module = make().double().eval()
    with torch.no_grad():
        traced = trace(module, normal(2, *shape))
        result = StreamBuilder(traced).run()
        assert isinstance(result, StreamView)
        order = in_order([result.stream], set())
        known = {s: prefix_numbers(s.op, traced.evaluate(s.op.node, traced.example)) for s in order if isinstance(s.op, PrefixOutput)}  # noqa: E501  # fmt: skip
        (stream,) = evaluate([result.stream], known)
        assert relative_error(stream.flatten()[result.index], module(traced.example)) <= 1e-12
    ops = [s.op for s in order if isinstance(s.op, CORES)]
    assert {type(op.core) if isinstance(op, CoreOp) else type(op) for op in ops} == kinds


def prefix_numbers(op: PrefixOutput, tensor: Tensor) -> Tensor:  # -> [n, P, c]
    moved = tensor.movedim((op.samples_axis, op.channels_axis), (0, -1))
    return moved.reshape(len(moved), -1, moved.shape[-1])


SAMPLES, POSITIONS, CHANNELS = 3, 4, 5
ENTRIES = torch.arange(SAMPLES * POSITIONS * CHANNELS).view(SAMPLES, POSITIONS, CHANNELS)


def view(index: Tensor) -> StreamView:
    return StreamView(Stream((POSITIONS,), CHANNELS, Op(()), SourceLocation((), "")), index)


@given(order=st.sampled_from(list(permutations(range(3)))), channels=st.permutations(range(CHANNELS)))
def test_numbers_are_found_wherever_they_were_moved(order: tuple[int, ...], channels: list[int]) -> None:
    """A stream whose dimensions are permuted, and its channels chosen in another order."""
    chosen = channels[:3]
    moved = view(ENTRIES[..., chosen].permute(*order))
    aligned = align([moved], SAMPLES)
    assert aligned.channels[0].tolist() == chosen
    numbers = normal(SAMPLES, POSITIONS, CHANNELS)
    result = numbers[..., chosen].flatten()[aligned.index]
    assert torch.equal(result, numbers[..., chosen].permute(*order))
    rows = group(moved, order.index(2), SAMPLES)
    assert rows.channels.tolist() == [chosen]
    assert torch.equal(rows.result(3, order.index(2)), aligned.index)
    layout = Layout.from_view(moved, SAMPLES)
    assert torch.equal(layout.arrange(numbers), result)


def test_numbers_of_different_positions_do_not_meet() -> None:
    with pytest.raises(NoRuleError, match="different positions"):
        align([view(ENTRIES), view(ENTRIES.roll(1, dims=1))], SAMPLES)
    with pytest.raises(NoRuleError, match="several positions"):
        group(view(ENTRIES), 1, SAMPLES)
    with pytest.raises(NoRuleError, match="more often"):
        align([view(ENTRIES[:, :2])], SAMPLES)
    with pytest.raises(NoRuleError, match="samples of the batch"):
        Layout.from_view(view(ENTRIES.flip(0)), SAMPLES)


def test_scores_take_causal_masks_and_nothing_else() -> None:
    scores = AttentionScores(view(ENTRIES), view(ENTRIES), (SAMPLES, POSITIONS, POSITIONS)).scaled(0.5)
    causal = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).tril()
    assert scores.masked(torch.zeros(POSITIONS, POSITIONS)) is scores
    for mask in (causal, torch.where(causal, 0.0, -torch.inf)):
        assert (scores.masked(mask).causal, scores.masked(mask).scale) == (True, 0.5)
    for mask, reason in ((~causal, "not causal"), (torch.where(causal, 0.1, -torch.inf), "bias")):
        with pytest.raises(NoRuleError, match=reason):
            scores.masked(mask)
    with pytest.raises(NoRuleError, match="after they were masked"):
        scores.masked(causal).scaled(2.0)
