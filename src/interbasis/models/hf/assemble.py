"""From a model's parts to a network: node layers, streams and names as in the paper.

    ln1.k  x      ln1_out.k  variance, x      attn_in.k  normalised, x
    ln2.k  x      ln2_out.k  variance, x      mlp_in.k   normalised, x
    ln_final  x   ln_final_out  variance, x   unembed  normalised   output  logits

A parallel block keeps both streams from the attention on: x, which the second norm reads, and y = x +
attention; with one norm for both branches (GPT-J, Phi) `mlp_in.k` follows the attention, with what is
normalised and y. Norms after a branch (Gemma 2, OLMo 2) add `post1.k`, `post1_out.k` and `post1_add.k` after
the attention, `post2.k` and so on after the MLP, where the branch is a stream of its own. Norms of queries
and keys (Qwen3, Gemma 3, OLMo 2) add `heads.k` before the mixing: normed queries and keys, values, and x.
Where there are no norms before branches (OLMo 2, some of TransformerLens), `attn_in.k`, `mlp_in.k` and
`unembed` hold x, and nothing comes before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interbasis.models.hf.parts import Affine, Branch, ModelParts, Norm, NormedHeads, TransformerBlock
from interbasis.network.cores import Core, Gated, HeadNorm, Linear, Normalize, Variance
from interbasis.network.network import LayerMap, Network, NodeLayer, Section


class StreamLayout:
    """Node layer and its streams' coordinates; the constant is coordinate 0, an isolated variance 1."""

    def __init__(self, name: str, **streams: int):
        self.slices: dict[str, slice] = {}
        width = 1
        for stream, size in streams.items():
            self.slices[stream] = slice(width, width + size)
            width += size
        self.sizes = streams
        self.node = NodeLayer(name, width, isolated=1 if "variance" in streams else 0)


@dataclass(frozen=True, eq=False)
class SoftCap(LayerMap):
    """logits ↦ cap · tanh(logits / cap), for a tail: nothing of vocabulary size squared is made."""

    source: NodeLayer
    target: NodeLayer
    cap: float

    def __repr__(self) -> str:
        return f"SoftCap({self.cap:.6g})"

    def __call__(self, f: Tensor) -> Tensor:
        return self.cap * (f / self.cap).tanh()

    @property
    def one_by_one(self) -> bool:
        return True

    def direct(self, f: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """Nothing passes the cap by: changes are multiplied by its slope, 1 − tanh²(f / cap)."""
        return self(f), moved * (1 - (f / self.cap).tanh().square())

    def tensors(self) -> list[Tensor]:
        return []

    def to(self, *args: Any, **kwargs: Any) -> "SoftCap":
        return self


class Assembly:
    """Sections that are added one after the other."""

    def __init__(self, like: Tensor, width: int, name: str):
        self.like, self.width = like, width
        self.sections: list[Section] = []
        self.layout = StreamLayout(name, x=width)

    def eye(self, size: int) -> Tensor:
        return torch.eye(size, dtype=self.like.dtype, device=self.like.device)

    def carry(self, target: StreamLayout, **streams: str) -> Tensor:
        """P: the constant and the streams target=source, unchanged."""
        skip = self.like.new_zeros(target.node.width, self.layout.node.width)
        skip[0, 0] = 1
        for to, source in streams.items():
            skip[target.slices[to], self.layout.slices[source]] = self.eye(self.layout.sizes[source])
        return skip

    def reading(self, stream: str, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        read = self.like.new_zeros(len(weight), self.layout.node.width)
        read[:, self.layout.slices[stream]] = weight
        if bias is not None:
            read[:, 0] = bias
        return read

    def writing(self, target: StreamLayout, stream: str, weight: Tensor) -> Tensor:
        write = self.like.new_zeros(target.node.width, weight.shape[1])
        write[target.slices[stream]] = weight
        return write

    def step(self, target: StreamLayout, skip: Tensor, read: Tensor, write: Tensor, core: Core) -> None:
        self.sections.append(Section(self.layout.node, target.node, skip, read, write, core))
        self.layout = target

    def normalise(
        self, norm: Norm | None, stream: str, between: str, target: StreamLayout, **carried: str
    ) -> None:
        """Two sections: the variance of a stream, and the division by it into the target's ``normalised``."""
        if norm is None:
            return
        width = self.layout.sizes[stream]
        identity, unit = self.eye(width), self.eye(1)
        H = identity - 1 / width if norm.centred else identity
        out = StreamLayout(between, variance=1, **self.layout.sizes)
        skip = self.carry(out, **{name: name for name in self.layout.sizes})
        write = self.writing(out, "variance", unit)
        self.step(out, skip, self.reading(stream, H), write, Variance(width))
        read = torch.cat([self.reading("variance", unit), self.reading(stream, H)])
        write = self.writing(target, "normalised", identity)
        self.step(target, self.carry(target, **carried), read, write, Normalize(norm.epsilon))

    def branch(
        self, branch: Branch, norm: Norm | None, target: StreamLayout, into: str, **carried: str
    ) -> None:
        """out · core(read · (gain ∘ normalised + bias)), added to a stream of the target."""
        stream = "x" if norm is None else "normalised"
        source, read, kept = stream, branch.read.after(norm), set(carried.values())
        if branch.normed_heads is not None:
            self.norm_heads(branch.normed_heads, read, stream, kept | ({stream} if branch.gate else set()))
            source, read = "heads", branch.normed_heads.read
        reading, out, core = self.reading(source, read.weight, read.bias), branch.out, branch.core
        if branch.gate is not None:
            gate = branch.gate.after(norm)
            self.apply_core(branch, reading, kept, gate=self.reading(stream, gate.weight, gate.bias))
            identity = self.eye(out.weight.shape[1])
            reading = torch.cat([self.reading(name, identity) for name in ("gate", "mixed")])
            core = Gated(nn.Sigmoid())
        elif branch.inner_norm is not None:
            self.apply_core(branch, reading, kept)
            inner, name = branch.inner_norm, self.layout.node.name
            sizes = {name: self.layout.sizes[name] for name in kept}
            target_in = StreamLayout(name.replace(".", "_in."), normalised=out.weight.shape[1], **sizes)
            self.normalise(inner, "mixed", name.replace(".", "_out."), target_in, **{s: s for s in kept})
            reading, out, core = (
                self.reading("normalised", self.eye(out.weight.shape[1])),
                out.after(inner),
                Linear(),
            )
        skip = self.carry(target, **carried)
        at_zero = core.at_zero(out.bias).expand(out.weight.shape[1])
        skip[target.slices[into], 0] += out.bias + out.weight @ at_zero
        if isinstance(core, Linear):
            skip[target.slices[into]] += out.weight @ reading
            self.step(target, skip, skip[:0], skip[:, :0], core)
            return
        self.step(target, skip, reading, self.writing(target, into, out.weight), core)

    def apply_core(self, branch: Branch, reading: Tensor, carried: set[str], **read: Tensor) -> None:
        """A section to what the core puts out, ``mixed``, beside streams that are read linearly."""
        name = self.layout.node.name.replace("attn_in", "mixed").replace("heads", "mixed")
        streams = {"mixed": branch.out.weight.shape[1]} | {stream: len(rows) for stream, rows in read.items()}
        sizes = {stream: self.layout.sizes[stream] for stream in carried}
        target = StreamLayout(name.replace("mlp_in", "hidden"), **streams, **sizes)
        skip = self.carry(target, **{stream: stream for stream in carried})
        for stream, rows in read.items():
            skip[target.slices[stream]] += rows
        skip[target.slices["mixed"], 0] += branch.core.at_zero(branch.out.bias)
        write = self.writing(target, "mixed", self.eye(streams["mixed"]))
        self.step(target, skip, reading, write, branch.core)

    def norm_heads(self, heads: NormedHeads, read: Affine, stream: str, carried: set[str]) -> None:
        """A section that norms queries and keys head by head, or all together; values are only read."""
        name, sizes = self.layout.node.name.replace("attn_in", "heads"), self.layout.sizes
        size = heads.used + len(read.weight) - heads.normed
        target = StreamLayout(name, heads=size, **{s: sizes[s] for s in sizes if s in carried})
        skip = self.carry(target, **{s: s for s in carried})
        reading = self.reading(stream, read.weight, read.bias)
        rows = torch.arange(target.node.width)[target.slices["heads"]]
        skip[rows[heads.used :]] = reading[heads.normed :]
        write = self.like.new_zeros(target.node.width, heads.normed)
        write[rows[: heads.used], : heads.used] = self.eye(heads.used)
        core = HeadNorm(heads.width, heads.epsilon)
        self.step(target, skip, reading[: heads.normed], write, core)

    def block(self, block: TransformerBlock, k: int, following: str) -> None:
        """Sections of one block; ``following`` names the node layer after it."""
        d = self.width
        attention_in = StreamLayout(f"attn_in.{k}", normalised=d, x=d)
        self.normalise(block.norm1, "x", f"ln1_out.{k}", attention_in, x="x")
        middle = f"{'mlp_in' if block.norm2 is None else 'ln2'}.{k}"
        end = StreamLayout(following, x=d)
        if block.mlp is None:
            self._residual(block.attention, block.norm1, block.after_attention, f"post1.{k}", end)
            return
        if not block.parallel:
            target = StreamLayout(middle, x=d)
            sums = block.norms_of_sum
            self._residual(block.attention, block.norm1, block.after_attention, f"post1.{k}", target, sums)
            mlp_in = StreamLayout(f"mlp_in.{k}", normalised=d, x=d)
            self.normalise(block.norm2, "x", f"ln2_out.{k}", mlp_in, x="x")
            self._residual(block.mlp, block.norm2, block.after_mlp, f"post2.{k}", end, sums)
            return
        mlp_in = StreamLayout(f"mlp_in.{k}", normalised=d, y=d)
        if block.norm2 is block.norm1 is not None:
            self.branch(block.attention, block.norm1, mlp_in, "y", normalised="normalised", y="x")
        else:
            self.branch(block.attention, block.norm1, StreamLayout(middle, x=d, y=d), "y", x="x", y="x")
            self.normalise(block.norm2, "x", f"ln2_out.{k}", mlp_in, y="y")
        self.branch(block.mlp, block.norm2, end, "x", x="y")

    def _residual(
        self,
        branch: Branch,
        norm: Norm | None,
        after: Norm | None,
        name: str,
        target: StreamLayout,
        norm_of_sum: bool = False,
    ) -> None:
        """x + branch(x), x + after(branch(x)) or after(x + branch(x)), the latter with a linear section."""
        if after is None:
            self.branch(branch, norm, target, "x", x="x")
            return
        d, kept = self.width, {} if norm_of_sum else {"x": "x"}
        normed = "x" if norm_of_sum else "branch"
        sizes = {"x": d} if norm_of_sum else {"branch": d, "x": d}
        self.branch(branch, norm, StreamLayout(name, **sizes), normed, x="x")
        added = StreamLayout(name.replace(".", "_add."), normalised=d, **dict.fromkeys(kept, d))
        self.normalise(after, normed, name.replace(".", "_out."), added, **kept)
        skip = self.carry(target, **kept)
        skip[target.slices["x"], added.slices["normalised"]] = torch.diag(after.gain)
        skip[target.slices["x"], 0] += after.bias
        self.step(target, skip, skip[:0], skip[:, :0], Linear())


def entrance(model: ModelParts, k: int) -> str:
    """Name of the node layer where block k begins; after the last block, that of the end."""
    if k < len(model.blocks):
        return f"{'ln1' if model.begins_with_norm else 'attn_in'}.{k}"
    return "unembed" if model.norm is None else "ln_final"


def block_sections(model: ModelParts, k: int) -> tuple[Section, ...]:
    """Sections of one block."""
    block = model.blocks[k]
    weight = block.attention.out.weight
    assembly = Assembly(weight, weight.shape[0], entrance(model, k))
    assembly.block(block, k, entrance(model, k + 1))
    return tuple(assembly.sections)


def assemble(
    model: ModelParts, output: bool = False, blocks: Sequence[Section] | None = None, **about: Any
) -> Network:
    """Network of a model; its last node layer is `unembed`, or `output` where that is asked for.

    ``blocks`` are the sections of its blocks, where they are known.
    """
    if blocks is None:
        blocks = [section for k in range(len(model.blocks)) for section in block_sections(model, k)]
    like = model.unembedding.weight
    end = Assembly(like, like.shape[1], entrance(model, len(model.blocks)))
    end.normalise(model.norm, "x", "ln_final_out", StreamLayout("unembed", normalised=end.width))
    unembed = model.unembedding.after(model.norm)
    skip = torch.cat([unembed.bias[:, None], unembed.weight], dim=1)
    logits = NodeLayer("output", len(skip), constant=False)
    nothing = skip.new_zeros(len(skip), 0)
    to_logits = Section(end.layout.node, logits, skip, skip[:0], nothing, Linear())
    sections: list[Section] = [*blocks, *end.sections, *([to_logits] if output else [])]
    tail: list[LayerMap] = [] if output else [to_logits]
    if model.cap is not None:
        tail.append(SoftCap(logits, NodeLayer("capped", len(skip), constant=False), model.cap))
    about |= {"rotate_last": not output, "predicts_next": model.predicts_next}
    return Network(model.embedding, tuple(sections), tuple(tail), model.family, **about)
