"""Causal language models of any other type, block by block: sections that call the model's own blocks.

    block.0  x   block.1  x   …   end  x        then the model's own norm and logits

A *hollow* copy of the model has stand-ins in place of its blocks. It embeds tokens, it says with which masks
and positions the model calls its blocks on inputs of some shape, and it makes logits of the last stream. A
block is then a function of the stream alone, differentiated automatically (`General`): state spaces, linear
attention and recurrences among them. A model whose blocks read anything else that depends on the tokens, or
do not pass the stream on unchanged, is refused: its logits would differ.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from interbasis.base.errors import Explained, InterbasisError
from interbasis.models.embedding import check_tokens
from interbasis.models.hf.parts import GENERAL
from interbasis.models.own_output import evaluation_mode
from interbasis.network.cores import General
from interbasis.network.network import LayerMap, Network, NodeLayer, Section
from interbasis.network.prefix import Prefix, with_constant

STREAM = "hidden_states"
"""Name of the stream among a block's arguments, where it has one."""
Calls = Callable[[int, int], list[tuple[Any, Any]]]
"""Arguments and keyword arguments of every block, for numbers of samples and positions."""
EXAMPLE = torch.arange(6)[None]
MAX_RELATIVE_ERROR = 1e-4
"""Largest difference, of the largest logit, of a sample that is run alone and beside another one."""


class StandIn(nn.Module):
    """In place of a block: notes how it is called, and passes the stream on."""

    def __init__(self, block: nn.Module, returns: tuple[Any, ...] | None):
        super().__init__()
        self.held = (block,)  # no part of it
        self.returns = returns
        """What the block returns beside the stream; None if it returns that alone."""
        self.stream: Tensor | None = None
        """Stream that is put out in place of the one that came in."""
        self.call: tuple[Any, Any] | None = None
        self.seen: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "StandIn":
        return StandIn(self.held[0], self.returns)

    def __getattr__(self, name: str) -> Any:
        if name in ("_parameters", "_buffers", "_modules", "held"):
            return super().__getattr__(name)
        return getattr(self.held[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.seen = args[0] if args else kwargs[STREAM]
        self.call = args[1:], {name: x for name, x in kwargs.items() if name != STREAM}
        stream = self.seen if self.stream is None else self.stream
        return stream if self.returns is None else (stream, *self.returns)


class Hollow(nn.Module):
    """A model with stand-ins for its blocks."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model: Any = model

    @property
    def stand_ins(self) -> list[StandIn]:
        return [part for part in self.model.modules() if isinstance(part, StandIn)]

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)

    def run(self, tokens: Tensor, stream: Tensor | None = None) -> Any:
        """Run the model, with another stream after its blocks where one is given."""
        for part in self.stand_ins:
            part.stream = stream
        with evaluation_mode(self.model):
            return self.model(tokens, use_cache=False)

    def embedded(self, tokens: Tensor) -> Tensor:  # [n, T] -> [n, T, d]
        self.run(tokens)
        stream = self.stand_ins[0].seen
        assert stream is not None
        return stream.to(self.model.get_input_embeddings().weight.dtype)

    def logits(self, stream: Tensor) -> Tensor:  # [n, T, d] -> [n, T, vocabulary]
        tokens = self.neutral_tokens(stream.shape[0], stream.shape[1]).to(stream.device)
        return self.run(tokens, stream).logits.to(stream)

    def neutral_tokens(self, samples: int, positions: int) -> Tensor:
        padding = getattr(self.model.config, "pad_token_id", None)
        return torch.full((samples, positions), ((padding or 0) + 1) % self.vocabulary)


def block_calls(hollow: Hollow) -> Calls:
    """Arguments of blocks beside the stream, the same for all inputs of a shape."""

    @lru_cache(maxsize=4)
    @torch.no_grad()
    def calls(samples: int, positions: int) -> list[tuple[Any, Any]]:
        tokens = hollow.neutral_tokens(samples, positions)
        hollow.run(tokens.to(next(hollow.model.parameters()).device))
        return [part.call or ((), {}) for part in hollow.stand_ins]

    return calls


class OwnBlock(nn.Module):
    """[c | x] ↦ block(x) − x − (1 − c) block(0), 0 at 0; c is the constant."""

    def __init__(self, block: nn.Module, number: int, calls: Calls):
        super().__init__()
        self.block, self.number, self.calls = block, number, calls

    def forward(self, u: Tensor) -> Tensor:  # [n, T, 1 + d] -> [n, T, d]
        x = u[..., 1:]
        with torch.no_grad():
            zero = self._output(torch.zeros_like(x[:1]))
        return self._output(x) - x - (1 - u[..., :1]) * zero

    def _output(self, x: Tensor) -> Tensor:
        def fitted(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.to(x) if value.is_floating_point() else value.to(x.device)

        args, kwargs = tree_map(fitted, self.calls(*x.shape[:2])[self.number])
        output = self.block(x, *args, **kwargs)
        return (output if isinstance(output, Tensor) else output[0]).to(x)  # some put out float32 always


class OwnEmbedding(Prefix):
    """Tokens to the stream that the first block reads."""

    context: int | None = None

    def __init__(self, hollow: Hollow):
        super().__init__()
        self.hollow = hollow

    @property
    def tokens(self) -> Tensor:  # [vocabulary, d]
        weight: Tensor = self.hollow.model.get_input_embeddings().weight
        return weight

    def forward(self, inputs: Tensor) -> Tensor:  # [n, T] -> [n, T, 1 + d]
        check_tokens(inputs)
        return with_constant(self.hollow.embedded(inputs.long()))


@dataclass(frozen=True, eq=False)
class OwnLogits(LayerMap):
    """The model's own norm and logits, for a tail."""

    source: NodeLayer
    target: NodeLayer
    hollow: Hollow

    def __call__(self, f: Tensor) -> Tensor:
        return self.hollow.logits(f[..., 1:])

    def tensors(self) -> list[Tensor]:
        return list(self.hollow.state_dict().values())

    def to(self, *args: Any, **kwargs: Any) -> "OwnLogits":
        return OwnLogits(self.source, self.target, deepcopy(self.hollow).to(*args, **kwargs))


def network_of_blocks(model: Any, **about: Any) -> Network:
    """Network of a causal language model whose sections are its blocks.

    Raises:
        InterbasisError: Its blocks are not found, or do more than to pass one stream on.
    """
    name = type(model).__name__
    with Explained(f"the blocks of {name} could not be run one by one", Exception, remedy=GENERAL):
        network = _network_of_blocks(model)
        vocabulary = model.get_input_embeddings().num_embeddings
        network(EXAMPLE % vocabulary)
        two = torch.arange(16).view(2, 8) * 3 % vocabulary
        together, alone = network(two), torch.cat([network(two[:1]), network(two[1:])])
    if not (together - alone).abs().max() <= MAX_RELATIVE_ERROR * alone.abs().max():
        raise InterbasisError(
            f"{name} mixes the samples of a batch, so that outputs depend on which are run "
            f"together; expected a model that treats every sample by itself; {GENERAL}"
        )
    return replace(network, **about)


def _network_of_blocks(model: Any) -> Network:
    model = deepcopy(model).eval().requires_grad_(False)
    if next(model.parameters()).element_size() < 4:
        model = model.float()
    blocks, returns = _chain(model)
    pairs = zip(blocks, returns, strict=True)
    hollow = Hollow(deepcopy(model, {id(block): StandIn(block, more) for block, more in pairs}))
    embedding = OwnEmbedding(hollow)
    width = embedding(EXAMPLE % hollow.vocabulary).shape[2]
    nodes = [NodeLayer(f"block.{k}", width) for k in range(len(blocks))] + [NodeLayer("end", width)]
    calls, unit = block_calls(deepcopy(hollow)), torch.eye(width).to(embedding.tokens)
    sections = []
    for k, block in enumerate(blocks):
        core = General(OwnBlock(block, k, calls), f"{type(block).__name__} {k}")
        sections.append(Section(nodes[k], nodes[k + 1], unit, unit, unit[:, 1:], core))
    logits = NodeLayer("output", hollow.vocabulary, constant=False)
    tail = OwnLogits(nodes[-1], logits, hollow)
    return Network(embedding, tuple(sections), (tail,), model.config.model_type, predicts_next=True)


def _chain(model: Any) -> tuple[list[nn.Module], list[Any]]:
    """Blocks that pass one stream on, each called once, and what each returns beside the stream."""
    calls: dict[int, list[tuple[Tensor, Any]]] = {}

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        stream = args[0] if args else kwargs.get(STREAM)
        calls.setdefault(id(module), []).append((stream, output))

    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
    hooks = [
        block.register_forward_hook(note, with_kwargs=True)
        for block in dict.fromkeys(block for part in lists for block in part)
    ]
    name = type(model).__name__
    try:
        with (
            torch.no_grad(),
            Explained(f"{name} could not be run on tokens alone", Exception, remedy=GENERAL),
        ):
            model(EXAMPLE % model.get_input_embeddings().num_embeddings, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    for part in lists:
        found = [calls.get(id(block), []) for block in part]
        if all(len(each) == 1 for each in found) and _passes_on([each[0] for each in found]):
            outputs = [each[0][1] for each in found]
            return list(part), [None if isinstance(x, Tensor) else tuple(x[1:]) for x in outputs]
    raise InterbasisError(
        f"{name} has no list of blocks that pass one stream of activations on, each called "
        f"once and with nothing in between; {GENERAL}"
    )


def _passes_on(calls: list[tuple[Any, Any]]) -> bool:
    """Whether the output of every block is a stream [1, T, d] and the input of the next."""
    outputs = [output[0] if isinstance(output, tuple) else output for _, output in calls]
    streams = [stream for stream, _ in calls]
    if not all(
        isinstance(x, Tensor) and x.shape[:2] == EXAMPLE.shape and x.ndim == 3 for x in streams + outputs
    ):
        return False
    return all(torch.equal(a, b) for a, b in zip(outputs, streams[1:], strict=False))
