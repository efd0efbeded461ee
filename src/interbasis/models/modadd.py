"""Modular addition: the task z = x + y mod p, and the transformer that learns it.

A sequence is [x, y, =], with "=" as token p; the label belongs to the last position. The transformer has
one or more blocks of causal attention and a ReLU MLP, no layer norm. From the last attention on only the
last position is kept.
"""

from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from interbasis.cores import Attention, Elementwise, Linear
from interbasis.errors import InterbasisError
from interbasis.network import Network, NodeLayer, Prefix, Section, with_constant


class Labelled(NamedTuple):
    """Inputs with their labels."""

    inputs: Tensor
    labels: Tensor


def pairs(p: int = 113) -> Labelled:
    """All p² sequences [x, y, =], x-major, with labels x + y mod p."""
    x, y = torch.arange(p).repeat_interleave(p), torch.arange(p).repeat(p)
    return Labelled(torch.stack([x, y, torch.full_like(x, p)], dim=1), (x + y) % p)


def split(p: int = 113, fraction: float = 0.3, seed: int = 0) -> tuple[Labelled, Labelled]:
    """The paper's training and test sets: a random split of all pairs by a generator seeded ``seed``."""
    if not 0 < fraction < 1:
        raise InterbasisError(f"the training fraction lies between 0 and 1, not at {fraction}")
    everything = pairs(p)
    total = len(everything.labels)
    train = int(total * fraction)
    generator = torch.Generator().manual_seed(seed)
    index: Any = range(total)
    parts = torch.utils.data.random_split(index, [train, total - train], generator)
    chosen = [torch.tensor(list(part.indices)) for part in parts]
    training, test = (Labelled(everything.inputs[c], everything.labels[c]) for c in chosen)
    return training, test


class Embedding(Prefix):
    """Token plus position embedding, with the constant in front."""

    def __init__(self, tokens: Tensor, positions: Tensor):
        super().__init__()
        self.tokens = nn.Parameter(tokens, requires_grad=False)  # [vocabulary, d]
        self.positions = nn.Parameter(positions, requires_grad=False)  # [context, d]

    def forward(self, inputs: Tensor) -> Tensor:  # [n, T] -> [n, T, d + 1]
        vocabulary, context = len(self.tokens), len(self.positions)
        if inputs.is_floating_point() or inputs.ndim != 2 or inputs.shape[1] > context:
            raise InterbasisError(
                f"expected integer tokens of shape [samples, at most {context} positions], received "
                f"{inputs.dtype} of shape {list(inputs.shape)}"
            )
        if inputs.numel() and not 0 <= inputs.min() <= inputs.max() < vocabulary:
            raise InterbasisError(
                f"tokens lie between 0 and {vocabulary - 1}; received {inputs.min()} to {inputs.max()}"
            )
        return with_constant(self.tokens[inputs] + self.positions[: inputs.shape[1]])


def modulus(network: Network) -> int:
    """p of a modular-addition network: all tokens but "="."""
    return len(cast(Embedding, network.prefix).tokens) - 1


def load(path: str | Path) -> Network:
    """The network of a modular-addition checkpoint (safetensors).

    Node layers: `attn_in.k` and `mlp_in.k` of every block, `unembed`, `output`.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InterbasisError(
            f"could not read {path} as a modular-addition checkpoint in safetensors format ({error})"
        ) from error
    return from_weights(weights, str(path))


def from_weights(weights: dict[str, Tensor], origin: str = "the given weights") -> Network:
    """The network of a modular-addition transformer's named tensors."""
    blocks = 1 + max((int(name.split(".")[1]) for name in weights if name.startswith("blocks.")), default=-1)
    _check(weights, blocks, origin)
    width = weights["embed.W_E"].shape[1]
    nodes = [
        NodeLayer(f"{part}.{block}", width + 1) for block in range(blocks) for part in ("attn_in", "mlp_in")
    ]
    nodes += [
        NodeLayer("unembed", width + 1),
        NodeLayer("output", weights["unembed.W_U"].shape[1], constant=False),
    ]
    sections = []
    for block in range(blocks):
        prefix = f"blocks.{block}."
        part = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
        attention_in, mlp_in, after = nodes[2 * block : 2 * block + 3]
        sections.append(_attention(part, attention_in, mlp_in, last_only=block == blocks - 1))
        sections.append(_mlp(part, mlp_in, after))
    sections.append(_unembedding(weights, *nodes[-2:]))
    embedding = Embedding(weights["embed.W_E"], weights["pos_embed.W_pos"])
    return Network(embedding, tuple(sections), family="modadd", rotate_last=False)


def _attention(part: dict[str, Tensor], source: NodeLayer, target: NodeLayer, last_only: bool) -> Section:
    heads, width, head = part["attn.W_Q"].shape
    read = torch.cat(
        [
            torch.cat([part[f"attn.b_{x}"].reshape(-1, 1), part[f"attn.W_{x}"].mT.reshape(-1, width)], dim=1)
            for x in "QKV"
        ]
    )  # [3 · heads · head, d + 1]
    write = _below_constant(part["attn.W_O"].flatten(0, 1).T)
    skip = _residual(part["attn.b_O"])
    return Section(source, target, skip, read, write, Attention(heads, head), last_only)


def _mlp(part: dict[str, Tensor], source: NodeLayer, target: NodeLayer) -> Section:
    read = torch.cat([part["mlp.b_in"][:, None], part["mlp.W_in"].T], dim=1)
    write = _below_constant(part["mlp.W_out"].T)
    return Section(source, target, _residual(part["mlp.b_out"]), read, write, Elementwise(nn.ReLU()))


def _unembedding(weights: dict[str, Tensor], source: NodeLayer, target: NodeLayer) -> Section:
    skip = torch.cat([weights["unembed.b_U"][:, None], weights["unembed.W_U"].T], dim=1)
    nothing = skip.new_zeros
    return Section(source, target, skip, nothing(0, skip.shape[1]), nothing(len(skip), 0), Linear())


def _residual(bias: Tensor) -> Tensor:  # [d] -> [d + 1, d + 1]
    """The identity on the stream and the constant, with the bias in the constant's column."""
    skip = torch.eye(len(bias) + 1, dtype=bias.dtype)
    skip[1:, 0] = bias
    return skip


def _below_constant(write: Tensor) -> Tensor:  # [d, c] -> [d + 1, c]
    return torch.nn.functional.pad(write, (0, 0, 1, 0))


def _check(weights: dict[str, Tensor], blocks: int, origin: str) -> None:
    names = ["embed.W_E", "pos_embed.W_pos", "unembed.W_U", "unembed.b_U"]
    for block in range(max(blocks, 1)):
        names += [f"blocks.{block}.attn.{kind}_{x}" for kind in "Wb" for x in "QKVO"]
        names += [f"blocks.{block}.mlp.{kind}_{x}" for kind in "Wb" for x in ("in", "out")]
    missing = [name for name in names if name not in weights]
    if missing:
        raise InterbasisError(
            f"{origin} is not a modular-addition transformer: the tensor {missing[0]} is missing "
            f"({len(missing)} of {len(names)} are); its tensors are {', '.join(sorted(weights)) or 'none'}"
        )
    width = weights["embed.W_E"].shape[1]
    heads, _, head = weights["blocks.0.attn.W_Q"].shape
    hidden = weights["blocks.0.mlp.W_in"].shape[-1]
    shapes = {
        "pos_embed.W_pos": (len(weights["pos_embed.W_pos"]), width),
        "unembed.W_U": (width, weights["unembed.W_U"].shape[-1]),
        "unembed.b_U": (weights["unembed.W_U"].shape[-1],),
    }
    for block in range(blocks):
        shapes |= {f"blocks.{block}.attn.W_{x}": (heads, width, head) for x in "QKV"}
        shapes |= {f"blocks.{block}.attn.b_{x}": (heads, head) for x in "QKV"}
        shapes |= {
            f"blocks.{block}.attn.W_O": (heads, head, width),
            f"blocks.{block}.attn.b_O": (width,),
            f"blocks.{block}.mlp.W_in": (width, hidden),
            f"blocks.{block}.mlp.b_in": (hidden,),
            f"blocks.{block}.mlp.W_out": (hidden, width),
            f"blocks.{block}.mlp.b_out": (width,),
        }
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise InterbasisError(
                f"{origin}: {name} has shape {list(weights[name].shape)}, expected {list(shape)}"
            )
