"""Parts that a family names, in one form for all: norms, attention, MLPs, blocks, the whole model."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from interbasis.base.errors import Explained, InterbasisError
from interbasis.models.embedding import TokenEmbedding
from interbasis.network.cores import Attention, AttentionShape, Core, Rotary

GENERAL = (
    "build the interbasis.Network from sections whose core is "
    "interbasis.network.cores.General(function), the general path, instead"
)
LAYER_NORMS = (
    "LayerNorm", "OlmoLayerNorm", "NemotronLayerNorm1P", "CohereLayerNorm", "Cohere2LayerNorm",
    "Cohere2MoeLayerNorm",
)  # fmt: skip
ONE_MORE = ("NemotronLayerNorm1P", "GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm", "VaultGemmaRMSNorm")
"""Norms with gain 1 + w."""
OTHER_EPSILONS = {"OlmoLayerNorm": 1e-5}
"""Written into the code of norms that have no parameters."""
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds of rotary positions whose frequencies change for inputs longer than some number of positions."""


def weights(tensor: Tensor) -> Tensor:
    """Copy of a tensor, in float32 at least."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).clone()


def first_part(names: str, *modules: Any) -> Any:
    """The first of these attributes that one of the modules has and that is not None; None where none is."""
    values = (getattr(module, name, None) for module in modules for name in names.split())
    return next((value for value in values if value is not None), None)


def frozen(activation: nn.Module) -> nn.Module:
    """Activation; with parameters (Apertus) a copy of it, in float32 at least, that needs no gradients."""
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
    def from_module(cls, module: Any, width: int = 0) -> "Norm":
        """Layer norm of torch, or one of transformers' norms by its class.

        ``width`` is that of a norm that does not know it, since it has neither gain nor bias.
        """
        name = type(module).__name__
        weight, bias = (getattr(module, part, None) for part in ("weight", "bias"))
        epsilon = getattr(module, "eps", getattr(module, "variance_epsilon", OTHER_EPSILONS.get(name)))
        known = name in LAYER_NORMS or name.endswith(("RMSNorm", "L2Norm"))
        if not known or epsilon is None or len(getattr(module, "normalized_shape", (0,))) != 1:
            raise InterbasisError(f"{name} is not a layer norm or RMS norm over one axis; {GENERAL}")
        shape = getattr(module, "normalized_shape", (width,))
        gain = torch.ones(shape) if weight is None else weights(weight)
        bias = torch.zeros_like(gain) if bias is None else weights(bias)
        return cls(1 + gain if name in ONE_MORE else gain, bias, epsilon, name in LAYER_NORMS)

    @classmethod
    def if_any(cls, module: Any, width: int = 0) -> "Norm | None":
        """Norm of a module; None where there is none."""
        return None if module is None else cls.from_module(module, width)

    @classmethod
    def rms(cls, gain: Tensor, epsilon: float) -> "Norm":
        return cls(gain, torch.zeros_like(gain), epsilon, centred=False)

    def repeated(self, times: int) -> "Norm":
        """The same gain and bias for so many heads."""
        return replace(self, gain=self.gain.repeat(times), bias=self.bias.repeat(times))

    def module(self) -> nn.Module:
        """The norm as a module of torch."""
        width = len(self.gain)
        if self.centred:
            norm: nn.Module = nn.LayerNorm(width, self.epsilon)
            state = {"weight": self.gain, "bias": self.bias}
        else:
            norm, state = nn.RMSNorm(width, self.epsilon), {"weight": self.gain}
        norm.load_state_dict(state, assign=True)
        return norm.requires_grad_(False)

    def scaled(self, factor: float) -> "Norm":
        return self if factor == 1 else replace(self, gain=factor * self.gain, bias=factor * self.bias)

    def ordered(self, order: Tensor) -> "Norm":
        return replace(self, gain=self.gain[order], bias=self.bias[order])


@dataclass(frozen=True)
class Affine:
    """x ↦ W x + b."""

    weight: Tensor  # [out, in]
    bias: Tensor  # [out]

    @classmethod
    def from_module(cls, module: nn.Module) -> "Affine":
        """Map of an nn.Linear, of Falcon's, or of GPT-2's Conv1D, which is one transposed."""
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

    def rows(self, index: Tensor) -> "Affine":
        """Rows in any order, also repeated."""
        return Affine(self.weight[index], self.bias[index])

    def parts(self, split: Callable[[Tensor], Iterable[Tensor]]) -> "list[Affine]":
        """Maps to groups of its outputs; ``split`` takes the numbers of all rows to those of each group."""
        return [self.rows(numbers) for numbers in split(torch.arange(len(self.weight)))]

    def scaled(self, factor: float) -> "Affine":
        return self if factor == 1 else Affine(factor * self.weight, factor * self.bias)

    def centred(self, width: int) -> "Affine":
        """The same less the mean over every ``width`` outputs."""
        parts = (part.unflatten(0, (-1, width)) for part in (self.weight, self.bias))
        return Affine(*((part - part.mean(1, keepdim=True)).flatten(0, 1) for part in parts))

    def padded(self, rows: int) -> "Affine":
        """The same with outputs that are 0 after it, ``rows`` in total."""
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
    """Whether it is one norm over all heads (OLMo 2)."""


@dataclass(frozen=True)
class NormedHeads:
    """Step from a branch's read-outs to its core's: the first are normed in parts, then all are read."""

    normed: int
    width: int
    """Width of one part."""
    epsilon: float
    used: int
    """Number of the normed ones that are read, the first ones; the others fill up a part."""
    read: Affine


@dataclass(frozen=True)
class Branch:
    """Branch that is added to a residual stream: out · core(read · normalised)."""

    read: Affine
    core: Core
    out: Affine
    normed_heads: NormedHeads | None = None
    """Between read and core."""
    inner_norm: Norm | None = None
    """Between core and out (BitNet)."""
    gate: Affine | None = None
    """Multiplies what the core puts out by the sigmoid of this map of what the branch reads (AFMoE)."""

    def scaled(self, factor: float) -> "Branch":
        return self if factor == 1 else replace(self, out=self.out.scaled(factor))


def attention(
    shape: AttentionShape,
    query: Affine,
    key: Affine,
    value: Affine,
    out: Affine,
    *,
    norms: HeadNorms | None = None,
    neighbours: bool = False,
    backwards: bool = False,
) -> Branch:
    """Attention as a branch; keys and values that several heads share are read once.

    With ``neighbours`` the coordinates (2i, 2i + 1) turn together, as in GPT-J; they are put in the order of
    `Rotary`, where coordinates that turn together lie half the turned width apart. Turned ``backwards``, the
    coordinates of a pair change places (nanochat).
    """
    if neighbours or backwards:
        within, turned = torch.arange(shape.width), shape.turned
        halves = within[:turned:2], within[1:turned:2]
        if backwards:
            halves = within[turned // 2 : turned], within[: turned // 2]
        order = torch.cat([*halves, within[turned:]])
        rows = [torch.arange(len(p.weight)).view(-1, shape.width)[:, order].flatten() for p in (query, key)]
        query, key = query.rows(rows[0]), key.rows(rows[1])
        if norms is not None:
            norms = replace(norms, query=norms.query.ordered(rows[0]), key=norms.key.ordered(rows[1]))
    groups = len(key.weight) // shape.width
    if groups < shape.heads:
        shape = replace(shape, key_heads=groups)
    branch = Branch(Affine.stack(query, key, value), Attention(shape), out)
    return branch if norms is None else _with_head_norms(branch, norms, shape.width)


def latent_attention(shape: AttentionShape, module: Any, *, neighbours: bool) -> Branch:
    """Attention whose queries, keys and values are read from normed latents (DeepSeek).

    Heads have their turned coordinates first. Narrower queries, keys or values are filled up with zeros.
    """
    heads, turned, still = shape.heads, module.qk_rope_head_dim, module.qk_nope_head_dim
    joined = Affine.from_module(module.kv_a_proj_with_mqa)
    latent, shared = joined.parts(lambda rows: rows.split([module.kv_lora_rank, turned]))
    latents, plain = [(latent, Norm.from_module(module.kv_a_layernorm))], [shared]
    if module.q_lora_rank is None:
        plain.append(Affine.from_module(module.q_proj))
    else:
        norm = Norm.from_module(module.q_a_layernorm)
        latents.append((Affine.from_module(module.q_a_proj), norm))
    read, step, (to_keys, *to_queries) = _normed_latents(latents)
    size = sum(len(part.weight) for part in plain)
    unread = torch.eye(step.used + size).to(to_keys)[step.used :]
    key_value = Affine.from_module(module.kv_b_proj).weight @ torch.nn.functional.pad(to_keys, (0, size))
    query = unread[turned:]
    if to_queries:
        query = Affine.from_module(module.q_b_proj).weight @ torch.nn.functional.pad(to_queries[0], (0, size))
    within = torch.arange(turned)
    within = torch.cat([within[::2], within[1::2]]) if neighbours else within
    order = torch.cat([still + within, torch.arange(still)])

    def filled(rows: Tensor) -> Tensor:  # [heads, n, latents] -> [heads · width, latents]
        return torch.nn.functional.pad(rows, (0, 0, 0, shape.width - rows.shape[1])).flatten(0, 1)

    by_head = key_value.unflatten(0, (heads, -1))
    keys = torch.cat([by_head[:, :still], unread[:turned].expand(heads, -1, -1)], dim=1)
    weight = torch.cat(
        [
            filled(query.unflatten(0, (heads, -1))[:, order]),
            filled(keys[:, order]),
            filled(by_head[:, still:]),
        ]
    )
    out = Affine.from_module(module.o_proj)
    columns = out.weight.unflatten(1, (heads, -1))
    padded = torch.nn.functional.pad(columns, (0, shape.width - columns.shape[2])).flatten(1)
    step = replace(step, read=Affine(weight, weight.new_zeros(len(weight))))
    return Branch(Affine.stack(read, *plain), Attention(shape), Affine(padded, out.bias), step)


def _normed_latents(latents: list[tuple[Affine, Norm]]) -> tuple[Affine, NormedHeads, list[Tensor]]:
    """Map to latents in parts of one width, the step that norms them, and the matrices [rank, used] to each.

    Narrower ones come last, filled up with zeros and multiplied so that their mean square stays.
    """
    if len({norm.epsilon for _, norm in latents}) > 1 or any(norm.centred for _, norm in latents):
        raise InterbasisError(f"norms of latents of different kinds are not supported; {GENERAL}")
    ranks = [len(part.weight) for part, _ in latents]
    widest, order = max(ranks), sorted(range(len(ranks)), key=lambda k: -ranks[k])
    reads = [latents[k][0].scaled((widest / ranks[k]) ** 0.5).padded(widest) for k in order]
    units = torch.eye(sum(ranks)).to(reads[0].weight).split([ranks[k] for k in order])
    matrices = [
        (latents[k][1].gain * (ranks[k] / widest) ** 0.5)[:, None] * units[order.index(k)]
        for k in range(len(ranks))
    ]
    step = NormedHeads(widest * len(ranks), widest, latents[0][1].epsilon, sum(ranks), reads[0])
    return Affine.stack(*reads), step, matrices


def _with_head_norms(branch: Branch, norms: HeadNorms, width: int) -> Branch:
    """A layer norm is an RMS norm of read-outs less their mean.

    Norms over different numbers of queries and keys become norms over parts of one width: keys are filled up
    with zeros, and multiplied so that their mean square stays what it was.
    """
    if norms.query.centred != norms.key.centred or norms.query.epsilon != norms.key.epsilon:
        raise InterbasisError(f"norms of different kinds for queries and keys are not supported; {GENERAL}")
    queries, keys = len(norms.query.gain), len(norms.key.gain)
    sizes = (queries, keys) if norms.together else (width, width)
    rows = torch.arange(len(branch.read.weight))
    query, key, values = map(branch.read.rows, rows.tensor_split((queries, queries + keys)))
    if norms.query.centred:
        query, key = query.centred(sizes[0]), key.centred(sizes[1])
    stretch = (sizes[0] / sizes[1]) ** 0.5
    key = key.scaled(stretch).padded(sizes[0] * (keys // sizes[1]))
    normed = len(query.weight) + len(key.weight)
    gain = torch.cat([norms.query.gain, norms.key.gain / stretch, torch.ones_like(norms.key.gain)])
    bias = torch.cat([norms.query.bias, norms.key.bias, torch.zeros_like(norms.key.bias)])
    read = Affine(torch.diag(gain), bias)
    normed_heads = NormedHeads(normed, sizes[0], norms.query.epsilon, queries + keys, read)
    return replace(branch, read=Affine.stack(query, key, values), normed_heads=normed_heads)


def rotary(module: Any, layer_type: str | None = None) -> Rotary:
    """Rotary positions from the module that makes their angles.

    Where the module has frequencies for each kind of layer (Gemma 3), they are those of ``layer_type``.
    Frequencies that change with the length of the input are those of inputs up to `context`.
    """
    kind, prefix = module.rope_type, ""
    if isinstance(kind, dict):
        kind, prefix = kind[layer_type], f"{layer_type}_"
    name = "original_inv_freq" if kind in LENGTH_DEPENDENT else "inv_freq"
    frequencies, stretch = (getattr(module, prefix + part) for part in (name, "attention_scaling"))
    return Rotary(tuple(frequencies.double().tolist()), float(stretch))


def context(module: Any) -> int | None:
    """The most positions that all frequencies of a rotary module hold for; None: any number."""
    kinds, config = module.rope_type, module.config
    parameters: Any = getattr(config, "rope_parameters", getattr(config, "rope_scaling", None))
    if not isinstance(kinds, dict):
        kinds, parameters = {None: kinds}, {None: parameters}
    ends = [
        parameters[layer]["original_max_position_embeddings"]
        if kind == "longrope"
        else config.max_position_embeddings
        for layer, kind in kinds.items()
        if kind in LENGTH_DEPENDENT
    ]
    return min(ends, default=None)


@dataclass(frozen=True)
class TransformerBlock:
    """x + attention(norm₁ x), then x + mlp(norm₂ x); parallel, both read the same x. None: there is none.

    Where norm₂ is norm₁, parallel branches read what it puts out once (GPT-J, Phi).
    """

    norm1: Norm | None
    attention: Branch
    norm2: Norm | None
    mlp: Branch | None
    parallel: bool = False
    after_attention: Norm | None = None
    """Norm of the attention's output (Gemma 2)."""
    after_mlp: Norm | None = None
    norms_of_sum: bool = False
    """Whether the norms after the branches are norms of x + branch (BART)."""


class BlocksAsRead(Sequence[TransformerBlock]):
    """Blocks that are read, and converted from half precision, whenever one is asked for."""

    def __init__(self, layers: Sequence[nn.Module], read: Callable[[Any, int], TransformerBlock]):
        self.layers, self.read = layers, read

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, k: Any) -> Any:
        layer = self.layers[range(len(self))[k]]
        name, update = type(layer).__name__, "if transformers is older than 5, update it"
        with Explained(
            f"{name} lacks a part that is read", AttributeError, remedy=f"{update}, else {GENERAL}"
        ):
            return self.read(layer, k)


@dataclass(frozen=True)
class ModelParts:
    """Causal language model in parts."""

    family: str
    embedding: TokenEmbedding
    blocks: Sequence[TransformerBlock] = field(repr=False)
    norm: Norm | None
    unembedding: Affine
    cap: float | None = None
    """Logits are capped to cap · tanh(logit / cap)."""
    causal: bool = True

    @cached_property
    def begins_with_norm(self) -> bool:
        """Whether blocks begin with a norm."""
        return self.blocks[0].norm1 is not None

    @property
    def predicts_next(self) -> bool:
        """Whether the outputs can be about the token that follows."""
        return self.causal and len(self.unembedding.weight) == len(self.embedding.tokens)
