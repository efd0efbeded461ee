"""What follows the last node layer of sequences of any length: pooling and a head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interbasis.models.traced.cuts import Step as Planned
from interbasis.models.traced.streams import Gathered, Spread, Stream, evaluate, in_order
from interbasis.network.network import LayerMap, NodeLayer
from interbasis.network.prefix import with_constant


@dataclass(frozen=True, eq=False)
class Tail(LayerMap):
    """From tokens to the output, by the first token or the mean of all."""

    source: NodeLayer
    target: NodeLayer
    streams: tuple[Stream, ...]
    output: Stream

    @classmethod
    def of(cls, steps: Sequence[Planned]) -> "Tail | None":
        """None where something in it depends on the length."""
        cut, output = steps[0].source, steps[-1].target.streams[0]
        order = in_order([output], set(cut.streams))
        pools = [stream.made for stream in order if isinstance(stream.made, Spread)]
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
        """Where f comes out if it is the same at all positions, and how small changes of it do."""

        def once(f: Tensor) -> Tensor:
            return self(f[None, None])[0, 0]

        changes = [torch.func.jvp(once, (f,), (change,))[1] for change in moved.reshape(-1, len(f))]
        return once(f), torch.stack(changes).reshape(*moved.shape[:-1], -1)

    def tensors(self) -> list[Tensor]:
        """Of its linear maps."""
        made = [stream.made for stream in in_order([self.output], set(self.streams))]
        held = [value for op in made for value in vars(op).values()]
        flat = [part for value in held for part in (value if isinstance(value, tuple) else (value,))]
        return [part for part in flat if isinstance(part, Tensor)]

    def to(self, *args: Any, **kwargs: Any) -> "Tail":
        """Its weights are float64 and are rounded as they are used."""
        return self
