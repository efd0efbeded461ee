"""The parts a family names, in one form for all: norms, attention, MLPs, blocks, the whole model."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.network.cores import Attention, Core
from interbasis.network.network import Prefix
from interbasis.network.prefix import with_constant

GENERAL = (
    "build the interbasis.Network from sections whose core is "
    "interbasis.network.cores.General(function), the general path, instead"
)


def weights(tensor: Tensor) -> Tensor:
    """A copy, in float32 at least."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).clone()


def held_still(activation: nn.Module) -> nn.Module:
    """An activation with parameters (Apertus) as a copy, in float32 at least, that needs no gradients."""
    parameters = list(activation.parameters())
    if not parameters:
        return activation
    dtype = torch.promote_types(parameters[0].dtype, torch.float32)
    return deepcopy(activation).requires_grad_(False).to(dtype)


@dataclass(frozen=True)
class Norm:
    """(x − mean) / √(var + ε) · gain + bias; an RMS norm is not centred and takes the mean square."""

    gain: Tensor  # [d]
    bias: Tensor  # [d]
    epsilon: float
    centred: bool

    @classmethod
    def layer(cls, module: nn.Module) -> "Norm":
        """Of an nn.LayerNorm."""
        if type(module) is not nn.LayerNorm or len(module.normalized_shape) != 1:
            raise InterbasisError(f"{type(module).__name__} is not an nn.LayerNorm over one axis; {GENERAL}")
        like = torch.zeros(module.normalized_shape) if module.weight is None else weights(module.weight)
        gain = torch.ones_like(like) if module.weight is None else like
        bias = torch.zeros_like(like) if module.bias is None else weights(module.bias)
        return cls(gain, bias, module.eps, centred=True)

    @classmethod
    def rms(cls, gain: Tensor, epsilon: float) -> "Norm":
        return cls(gain, torch.zeros_like(gain), epsilon, centred=False)

    def repeated(self, times: int) -> "Norm":
        """The same gain and bias for so many heads."""
        return replace(self, gain=self.gain.repeat(times), bias=self.bias.repeat(times))

    def ordered(self, order: Tensor) -> "Norm":
        return replace(self, gain=self.gain[order], bias=self.bias[order])


@dataclass(frozen=True)
class Affine:
    """x ↦ W x + b."""

    weight: Tensor  # [out, in]
    bias: Tensor  # [out]

    @classmethod
    def of(cls, module: nn.Module) -> "Affine":
        """Of an nn.Linear, of Falcon's, or of GPT-2's Conv1D, which is one transposed."""
        if type(module) is nn.Linear or type(module).__name__ == "FalconLinear":
            weight = weights(cast(Tensor, module.weight))
        elif type(module).__name__ == "Conv1D" and isinstance(module.weight, Tensor):
            weight = weights(module.weight.T)
        else:
            raise InterbasisError(
                f"the module {type(module).__name__} is not an nn.Linear that could be read; {GENERAL}"
            )
        bias = getattr(module, "bias", None)
        return cls(weight, weight.new_zeros(len(weight)) if bias is None else weights(bias))

    @classmethod
    def stack(cls, *parts: "Affine") -> "Affine":
        return cls(torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts]))

    def rows(self, chosen: Tensor) -> "Affine":
        """Some rows, in any order, also repeated."""
        return Affine(self.weight[chosen], self.bias[chosen])

    def scaled(self, factor: float) -> "Affine":
        return self if factor == 1 else Affine(factor * self.weight, factor * self.bias)

    def centred(self, width: int) -> "Affine":
        """Less the mean over every ``width`` outputs."""
        parts = (part.unflatten(0, (-1, width)) for part in (self.weight, self.bias))
        return Affine(*((part - part.mean(1, keepdim=True)).flatten(0, 1) for part in parts))

    def padded(self, rows: int) -> "Affine":
        """With outputs that are 0 after its own."""
        zeros = self.weight.new_zeros(rows - len(self.weight), self.weight.shape[1])
        return Affine.stack(self, Affine(zeros, zeros.new_zeros(len(zeros))))

    def after(self, norm: Norm | None) -> "Affine":
        """The same map with the norm's gain and bias folded in."""
        if norm is None:
            return self
        # a norm that has neither gain nor bias of its own does not know the model's dtype
        gain, bias = norm.gain.to(self.weight), norm.bias.to(self.weight)
        return Affine(self.weight * gain, self.bias + self.weight @ bias)


@dataclass(frozen=True)
class HeadNorms:
    """Norms of queries and keys before they are turned, of every head (Qwen3, Gemma 3) or of all together."""

    query: Norm  # gain and bias [heads · h]
    key: Norm  # [heads that keys have · h]
    together: bool = False
    """One norm over all heads (OLMo 2)."""


@dataclass(frozen=True)
class NormedHeads:
    """How a branch's read-outs become its core's: the first are normed in parts, then all are read."""

    normed: int
    width: int
    """Of one part."""
    epsilon: float
    kept: int
    """How many of the normed ones there are, the first ones; the others fill up a part."""
    read: Affine


@dataclass(frozen=True)
class Branch:
    """What a residual stream takes in: out · core(read · normalised)."""

    read: Affine
    core: Core
    out: Affine
    normed_heads: NormedHeads | None = None
    """Between read and core."""


def attention(
    core: Attention, query: Affine, key: Affine, value: Affine, out: Affine, *, norms: HeadNorms | None = None
) -> Branch:
    """Keys and values that several heads share are read once; the core is told."""
    width = core.shape.width
    read, groups = Affine.stack(query, key, value), len(key.weight) // width
    if groups < core.shape.heads:
        core = Attention(replace(core.shape, key_heads=groups))
    if norms is None:
        return Branch(read, core, out)
    return _with_head_norms(Branch(read, core, out), norms, width)


def in_halves(
    core: Attention, query: Affine, key: Affine, norms: HeadNorms | None = None
) -> tuple[Affine, Affine, HeadNorms | None]:
    """Where neighbours turn together, (2i, 2i + 1) as in GPT-J: queries and keys in the order of `Rotary`."""
    orders = _halves(core, len(query.weight)), _halves(core, len(key.weight))
    if norms is not None:
        norms = replace(norms, query=norms.query.ordered(orders[0]), key=norms.key.ordered(orders[1]))
    return query.rows(orders[0]), key.rows(orders[1]), norms


def _halves(core: Attention, rows: int) -> Tensor:
    """The order in which coordinates that turn together lie half the turned width apart, in every head."""
    width, turned = core.shape.width, core.shape.turned
    within = torch.arange(width)
    order = torch.cat([within[:turned:2], within[1:turned:2], within[turned:]])
    return torch.arange(rows).view(-1, width)[:, order].flatten()


def _with_head_norms(branch: Branch, norms: HeadNorms, width: int) -> Branch:
    """A layer norm is an RMS norm of read-outs less their mean.

    Norms over different numbers of queries and keys become norms over parts of one width: keys are filled up
    with zeros, and multiplied so that their mean square stays what it was.
    """
    if norms.query.centred != norms.key.centred or norms.query.epsilon != norms.key.epsilon:
        raise InterbasisError(f"norms of different kinds for queries and keys are not supported; {GENERAL}")
    queries, keys = len(norms.query.gain), len(norms.key.gain)
    sizes = (queries, keys) if norms.together else (width, width)
    values = Affine(branch.read.weight[queries + keys :], branch.read.bias[queries + keys :])
    query = Affine(branch.read.weight[:queries], branch.read.bias[:queries])
    key = Affine(branch.read.weight[queries : queries + keys], branch.read.bias[queries : queries + keys])
    if norms.query.centred:
        query, key = query.centred(sizes[0]), key.centred(sizes[1])
    stretch = (sizes[0] / sizes[1]) ** 0.5
    key = key.scaled(stretch).padded(sizes[0] * (keys // sizes[1]))
    normed = len(query.weight) + len(key.weight)
    gain = torch.cat([norms.query.gain, norms.key.gain / stretch, torch.ones_like(norms.key.gain)])
    bias = torch.cat([norms.query.bias, norms.key.bias, torch.zeros_like(norms.key.bias)])
    return replace(
        branch,
        read=Affine.stack(query, key, values),
        normed_heads=NormedHeads(
            normed,
            sizes[0],
            norms.query.epsilon,
            queries + keys,
            Affine(torch.diag(gain), bias),
        ),
    )


@dataclass(frozen=True)
class Block:
    """x + attention(norm₁ x), then x + mlp(norm₂ x); parallel, both read the same x. None: there is none.

    Where norm₂ is norm₁, parallel branches read what it puts out once (GPT-J, Phi).
    """

    norm1: Norm | None
    attention: Branch
    norm2: Norm | None
    mlp: Branch | None
    parallel: bool = False
    after_attention: Norm | None = None
    """A norm on what the attention puts out (Gemma 2)."""
    after_mlp: Norm | None = None


@dataclass(frozen=True)
class Model:
    """A causal language model in parts."""

    family: str
    embedding: "TokenEmbedding"
    blocks: list[Block] = field(repr=False)
    norm: Norm | None
    unembedding: Affine
    cap: float | None = None
    """Logits are capped to cap · tanh(logit / cap)."""
    causal: bool = True

    @property
    def predicts_next(self) -> bool:
        """Whether the outputs can be about the token that follows."""
        return self.causal and len(self.unembedding.weight) == len(self.embedding.tokens)


class TokenEmbedding(Prefix):
    """Token embedding, plus learned positions where there are any, with the constant in front.

    ``context`` is the most positions that the network is right for: of learned positions all there are.
    """

    def __init__(self, tokens: Tensor, positions: Tensor | None = None, *, context: int | None = None):
        super().__init__()
        self.tokens = nn.Parameter(tokens, requires_grad=False)  # [vocabulary, d]
        self.positions = None if positions is None else nn.Parameter(positions, requires_grad=False)
        self.context = context if positions is None else len(positions)

    def forward(self, inputs: Tensor) -> Tensor:  # [n, T] -> [n, T, d + 1]
        if inputs.is_floating_point() or inputs.dtype == torch.bool or inputs.ndim != 2:
            raise InterbasisError(
                "expected integer tokens of shape [samples, positions], received "
                f"{inputs.dtype} of shape {list(inputs.shape)}"
            )
        if self.context is not None and inputs.shape[1] > self.context:
            raise InterbasisError(
                f"the model takes samples of at most {self.context} positions, received tokens of shape "
                f"{list(inputs.shape)}; choose shorter ones (context={self.context} after the data's name)"
            )
        inputs = inputs.long()
        if inputs.numel() and not 0 <= inputs.min() <= inputs.max() < len(self.tokens):
            raise InterbasisError(
                f"tokens lie between 0 and {len(self.tokens) - 1}; received {inputs.min()} to {inputs.max()}"
            )
        x = self.tokens[inputs]
        return with_constant(x if self.positions is None else x + self.positions[: inputs.shape[1]])
