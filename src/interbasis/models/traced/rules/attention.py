"""Attention: torch's own, or written out as softmax(q kᵀ) v."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.models.traced.recognise import OpRule, StreamBuilder, constant
from interbasis.models.traced.rules.linear import apply_matrix, is_computed
from interbasis.models.traced.streams import CoreOp, Stream, selection
from interbasis.models.traced.trace import location
from interbasis.models.traced.values import AttentionScores, NoRuleError, StreamView, Value
from interbasis.network.cores import Attention, AttentionShape


def scaled_dot_product(
    builder: StreamBuilder, query: Value, key: Value, value: Value, mask: Any, *options: Any
) -> Value:
    dropout, causal, scale, grouped = options
    q, k, v = (builder.view(part) for part in (query, key, value))
    if dropout:
        raise InterbasisError(
            f"attention drops out {dropout:.3g} of its pattern {location(builder.node)} in evaluation mode, "
            "too; pass dropout_p=0.0 unless self.training"
        )
    if grouped:
        times = q.shape[-3] // k.shape[-3]
        k, v = (StreamView(part.stream, part.index.repeat_interleave(times, -3)) for part in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = AttentionScores(q, k, (*q.shape[:-1], k.shape[-2]), scale, causal, softmax=True)
    if is_computed(mask):
        raise InterbasisError(
            f"the attention mask depends on the input {location(builder.node)}; expected none, or the same "
            "for all inputs: leave padding out instead, samples of different lengths are `Samples` with "
            "`lengths`"
        )
    return _attended(builder, scores if mask is None else scores.masked(constant(mask)), v)


def matmul(builder: StreamBuilder, first: Any, second: Any, *options: Any) -> Value:
    """A matrix of weights on one side, q kᵀ, or the pattern times v."""
    if isinstance(first, AttentionScores):
        if not first.softmax:
            raise NoRuleError("scores without softmax have no rule")
        return _attended(builder, first, builder.view(second))
    if is_computed(first) and is_computed(second):
        query, key = builder.view(first), builder.view(second)
        if query.index.ndim < 3 or key.index.ndim != query.index.ndim:
            raise NoRuleError("a product of two computed matrices has no rule")
        key, shape = StreamView(key.stream, key.index.mT), (*query.shape[:-1], key.shape[-1])
        _head_layout(builder, query)
        _head_layout(builder, key)
        return AttentionScores(query, key, shape)
    if is_computed(first):
        weight, x = constant(second), builder.view(first, -1)
        if weight.ndim == 2:
            return apply_matrix(builder, x, weight.double().T, None, x.index.ndim - 1)
    elif is_computed(second):
        weight, x = constant(first), builder.view(second)
        if weight.ndim == 2 and x.index.ndim >= 2:
            return apply_matrix(builder, x, weight.double(), None, x.index.ndim - 2)
    raise NoRuleError("a product of these shapes has no rule")


def softmax(builder: StreamBuilder, scores: Value, dim: int, *options: Any) -> Value:
    if not isinstance(scores, AttentionScores) or dim not in (-1, len(scores.shape) - 1) or scores.softmax:
        raise NoRuleError("a softmax has no closed form")
    return replace(scores, softmax=True)


@dataclass(frozen=True)
class HeadLayout:
    """Heads of a tensor [..., T, h]."""

    channels: Tensor  # [heads, h]
    sample: Tensor  # [...]
    head: Tensor  # [...]


def _head_layout(builder: StreamBuilder, x: StreamView) -> HeadLayout:
    """Leading dimensions hold samples and heads in any order; then all positions, then a head's channels."""
    stream, lead = x.stream, x.shape[:-2]
    sites, channels = x.sites.flatten(0, -3), x.channels.flatten(0, -3)  # [L, T, h]
    sample, position = sites // stream.positions, sites % stream.positions
    if (sample != sample[:, :1, :1]).any():
        raise InterbasisError(
            f"attention mixes the samples of the batch {stream.location}; expected samples in dimension 0: "
            "make the module with batch_first=True"
        )
    if x.shape[-2] != stream.positions or (position != torch.arange(stream.positions)[:, None]).any():
        raise NoRuleError("attention over some of the positions has no rule")
    if (channels != channels[:, :1]).any():
        raise NoRuleError("channels lie differently at different positions")
    sample, rows = sample[:, 0, 0], channels[:, 0]  # [L], [L, h]
    order = sample.argsort(stable=True)
    heads = len(sample) // builder.samples
    by_sample = rows[order].view(builder.samples, heads, -1)
    if (by_sample != by_sample[:1]).any():
        raise NoRuleError("heads lie differently in different samples")
    return HeadLayout(by_sample[0], sample.view(lead), (order.argsort() % heads).view(lead))


def _attended(builder: StreamBuilder, scores: AttentionScores, value: StreamView) -> StreamView:
    """softmax(scores) v as attention on one stream of queries, keys and values."""
    views: tuple[StreamView, ...] = (scores.query, scores.key, value)
    lead = torch.broadcast_shapes(*(view.shape[:-2] for view in views))
    views = tuple(view.expand(torch.Size([*lead, *view.shape[-2:]])) for view in views)
    first, *_ = layouts = [_head_layout(builder, view) for view in views]
    heads, width = first.channels.shape
    if len({view.stream.grid for view in views}) > 1:
        raise NoRuleError("attention from one sequence to another has no closed form")
    if any(
        not torch.equal(layout.sample, first.sample) or layout.channels.shape != (heads, width)
        for layout in layouts
    ):
        raise NoRuleError("queries, keys and values of different shapes have no closed form")
    size = heads * width
    matrices: dict[Stream, Tensor] = {}
    for number, (view, layout) in enumerate(zip(views, layouts, strict=True)):
        stream = view.stream
        matrix = torch.zeros(3 * size, stream.channels, dtype=torch.float64)
        matrix[number * size : (number + 1) * size] = selection(layout.channels.flatten(), stream.channels)
        matrices[stream] = matrices[stream] + matrix if stream in matrices else matrix
    joined = builder.mixed(list(matrices.items()))
    scale = None if scores.scale == width**-0.5 else scores.scale
    shape = AttentionShape(heads, width, causal=scores.causal, scale=scale)
    stream = builder.stream(CoreOp((joined,), Attention(shape)), joined.grid, size)
    sites = first.sample[..., None, None] * stream.positions + torch.arange(stream.positions)[:, None]
    channels = first.head[..., None, None] * width + torch.arange(width)
    return StreamView(stream, sites * size + channels)


RULES: dict[str, OpRule] = {
    "scaled_dot_product_attention": scaled_dot_product, "softmax": softmax, "_softmax": softmax,
    **dict.fromkeys(("matmul", "mm", "bmm"), matmul),
}  # fmt: skip
