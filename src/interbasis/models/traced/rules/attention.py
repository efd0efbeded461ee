"""Attention: torch's own, or written out as softmax(q kᵀ) v."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from interbasis.base.errors import InterbasisError
from interbasis.models.traced.recognise import Recogniser, known
from interbasis.models.traced.rules.linear import mixed
from interbasis.models.traced.streams import Attended, selection
from interbasis.models.traced.trace import place
from interbasis.models.traced.values import Early, Keywords, Scores, Value
from interbasis.models.traced.wires import MisplacedError, Wire
from interbasis.network.cores import AttentionShape

NEGLIGIBLE = -1e4
"""Masks add this or less to scores that are not to count."""


def scaled_dot_product(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    query, key, value = (made.wire(arg) for arg in args[:3])
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    dropout = known(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    causal = bool(known(kwargs.get("is_causal", args[5] if len(args) > 5 else False)))
    if dropout:
        raise InterbasisError(
            f"attention drops out {dropout:.3g} of its pattern {place(node)} in evaluation mode, too; pass "
            "dropout_p=0.0 unless self.training"
        )
    scale = known(kwargs.get("scale"))
    if known(kwargs.get("enable_gqa", False)):
        times = query.where.shape[-3] // key.where.shape[-3]
        key, value = (Wire(w.stream, w.where.repeat_interleave(times, -3)) for w in (key, value))
    width = query.where.shape[-1]
    shape = (*query.where.shape[:-1], key.where.shape[-2])
    scores = Scores(query, key, shape, width**-0.5 if scale is None else scale, causal)
    if mask is not None:
        _check_constant(mask, node)
        scores = masked(scores, known(mask))
    return attended(made, replace(scores, softmax=True), value)


def _check_constant(mask: Any, node: fx.Node) -> None:
    if isinstance(mask, (Wire, Early)):
        raise InterbasisError(
            f"the attention mask depends on the input {place(node)}; expected none, or the same for all "
            "inputs: leave padding out instead, samples of different lengths are `Samples` with `lengths`"
        )


def product_of_computed(made: Recogniser, first: Any, second: Any) -> Value:
    """q kᵀ, or the pattern times v."""
    if isinstance(first, Scores):
        if not first.softmax:
            raise MisplacedError("scores without softmax have no rule")
        return attended(made, first, made.wire(second))
    query, key = made.wire(first), made.wire(second)
    if query.where.ndim < 3 or key.where.ndim != query.where.ndim:
        raise MisplacedError("a product of two computed matrices has no rule")
    shape = (*query.where.shape[:-1], key.where.shape[-1])
    scores = Scores(query, Wire(key.stream, key.where.mT), shape)
    _heads(made, scores.query)
    _heads(made, scores.key)
    return scores


def masked(scores: Scores, mask: Tensor | float) -> Scores:
    """With a mask that is added, or of those that count; empty or causal."""
    mask = torch.as_tensor(mask).expand(scores.shape)
    if mask.dtype == torch.bool:
        counts = mask
    else:
        counts = mask == 0
        if ((mask > NEGLIGIBLE) & ~counts).any():
            raise MisplacedError("a bias of attention scores has no closed form")
    if counts.all():
        return scores
    if torch.equal(counts, torch.ones_like(counts).tril()):
        return replace(scores, causal=True)
    raise MisplacedError("an attention mask that is not causal has no closed form")


def softmax(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    scores, axis = args[0], int(known(args[1]))
    if not isinstance(scores, Scores) or axis not in (-1, len(scores.shape) - 1) or scores.softmax:
        raise MisplacedError("a softmax has no closed form")
    return replace(scores, softmax=True)


@dataclass(frozen=True)
class Places:
    """Heads of a tensor [..., T, h]."""

    channels: Tensor  # [heads, h]
    sample: Tensor  # [...]
    head: Tensor  # [...]


def _heads(made: Recogniser, x: Wire) -> Places:
    """Leading dimensions hold samples and heads in any order; then all positions, then a head's channels."""
    stream = x.stream
    lead = x.where.shape[:-2]
    spots, channels = x.spots.flatten(0, -3), x.channels.flatten(0, -3)  # [L, T, h]
    sample, position = spots // stream.positions, spots % stream.positions
    if (sample != sample[:, :1, :1]).any():
        raise InterbasisError(
            f"attention mixes the samples of the batch {stream.place}; expected samples in dimension 0: "
            "make the module with batch_first=True"
        )
    every = torch.arange(stream.positions)
    if x.where.shape[-2] != stream.positions or (position != every[:, None]).any():
        raise MisplacedError("attention over some of the positions has no rule")
    if (channels != channels[:, :1]).any():
        raise MisplacedError("channels lie differently at different positions")
    sample, rows = sample[:, 0, 0], channels[:, 0]  # [L], [L, h]
    order = sample.argsort(stable=True)
    count = len(sample) // made.samples
    by_sample = rows[order].view(made.samples, count, -1)
    if (by_sample != by_sample[:1]).any():
        raise MisplacedError("heads lie differently in different samples")
    head = torch.empty_like(sample)
    head[order] = torch.arange(count).repeat(made.samples)
    return Places(by_sample[0], sample.view(lead), head.view(lead))


def attended(made: Recogniser, scores: Scores, value: Wire) -> Wire:
    wires: tuple[Wire, ...] = (scores.query, scores.key, value)
    lead = torch.broadcast_shapes(*(wire.where.shape[:-2] for wire in wires))
    wires = tuple(wire.expand(torch.Size([*lead, *wire.where.shape[-2:]])) for wire in wires)
    places = [_heads(made, wire) for wire in wires]
    heads, width = places[0].channels.shape
    if len({wire.stream.grid for wire in wires}) > 1:
        raise MisplacedError("attention from one sequence to another has no closed form")
    if any(not torch.equal(p.sample, places[0].sample) for p in places) or any(
        p.channels.shape != (heads, width) for p in places
    ):
        raise MisplacedError("queries, keys and values of different shapes have no closed form")
    parts = []
    for number, (wire, at) in enumerate(zip(wires, places, strict=True)):
        matrix = torch.zeros(3 * heads * width, wire.stream.channels, dtype=torch.float64)
        rows = slice(number * heads * width, (number + 1) * heads * width)
        matrix[rows] = selection(at.channels.flatten(), wire.stream.channels)
        parts.append((wire.stream, matrix))
    grid = wires[0].stream.grid
    joined = mixed(made, _merged(parts), torch.zeros(3 * heads * width, dtype=torch.float64), grid)
    scale = None if scores.scale == width**-0.5 else scores.scale
    shape = AttentionShape(heads, width, causal=scores.causal, scale=scale)
    stream = made.stream(Attended((joined,), shape), grid, heads * width)
    spots = places[0].sample[..., None, None] * stream.positions + torch.arange(stream.positions)[:, None]
    channels = places[0].head[..., None, None] * width + torch.arange(width)
    return Wire(stream, spots * heads * width + channels)


def _merged(parts: list[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    """Matrices on the same stream are added."""
    merged: dict[Any, Tensor] = {}
    for stream, matrix in parts:
        merged[stream] = merged[stream] + matrix if stream in merged else matrix
    return list(merged.items())


RULES = {"scaled_dot_product_attention": scaled_dot_product, "softmax": softmax, "_softmax": softmax}
