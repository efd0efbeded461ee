"""The parts a family names, in one form for all: norms, attention, MLPs, blocks, the whole model."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from interbasis.network.cores import Attention, Core
from interbasis.network.network import Prefix, with_constant
from interbasis.runtime.errors import InterbasisError

GENERAL = (
    "build the interbasis.Network from sections whose core is "
    "interbasis.network.cores.General(function), the general path, instead"
)


def weights(tensor: Tensor) -> Tensor:
    """A copy, in float32 at least."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).clone()


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


@dataclass(frozen=True)
class Affine:
    """x ↦ W x + b."""

    weight: Tensor  # [out, in]
    bias: Tensor  # [out]

    @classmethod
    def of(cls, module: nn.Module) -> "Affine":
        """Of an nn.Linear, or of GPT-2's Conv1D, which is one transposed."""
        if type(module) is nn.Linear:
            weight = weights(module.weight)
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

    def after(self, norm: Norm | None) -> "Affine":
        """The same map with the norm's gain and bias folded in."""
        if norm is None:
            return self
        # a norm that has neither gain nor bias of its own does not know the model's dtype
        gain, bias = norm.gain.to(self.weight), norm.bias.to(self.weight)
        return Affine(self.weight * gain, self.bias + self.weight @ bias)


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of every head's queries and keys, before they are turned (Qwen3, Gemma 3)."""

    query_gain: Tensor  # [h]
    key_gain: Tensor  # [h]
    epsilon: float


@dataclass(frozen=True)
class NormedHeads:
    """How a branch's read-outs become its core's: the first are normed head by head, then all are read."""

    normed: int
    width: int
    """Of one head."""
    epsilon: float
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
    heads, width = core.shape.heads, core.shape.width
    read, groups = Affine.stack(query, key, value), len(key.weight) // width
    if groups < heads:
        core = Attention(replace(core.shape, key_heads=groups))
    if norms is None:
        return Branch(read, core, out)
    ones = query.weight.new_ones(len(value.weight))
    gain = torch.cat([norms.query_gain.repeat(heads), norms.key_gain.repeat(groups), ones])
    later = Affine(torch.diag(gain), torch.zeros_like(gain))
    return Branch(read, core, out, NormedHeads(len(gain) - len(ones), width, norms.epsilon, later))


@dataclass(frozen=True)
class Block:
    """x + attention(norm₁ x), then x + mlp(norm₂ x); parallel, both read the same x. None: there is none."""

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
    """Token embedding, plus learned positions where there are any, with the constant in front."""

    def __init__(self, tokens: Tensor, positions: Tensor | None = None):
        super().__init__()
        self.tokens = nn.Parameter(tokens, requires_grad=False)  # [vocabulary, d]
        self.positions = None if positions is None else nn.Parameter(positions, requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:  # [n, T] -> [n, T, d + 1]
        context = None if self.positions is None else len(self.positions)
        odd = inputs.is_floating_point() or inputs.dtype == torch.bool or inputs.ndim != 2
        if odd or (context is not None and inputs.shape[1] > context):
            most = "" if context is None else f"at most {context} "
            raise InterbasisError(
                f"expected integer tokens of shape [samples, {most}positions], received "
                f"{inputs.dtype} of shape {list(inputs.shape)}"
            )
        inputs = inputs.long()
        if inputs.numel() and not 0 <= inputs.min() <= inputs.max() < len(self.tokens):
            raise InterbasisError(
                f"tokens lie between 0 and {len(self.tokens) - 1}; received {inputs.min()} to {inputs.max()}"
            )
        x = self.tokens[inputs]
        return with_constant(x if self.positions is None else x + self.positions[: inputs.shape[1]])
