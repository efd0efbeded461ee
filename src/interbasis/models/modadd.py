"""The transformer that learns modular addition, as a network.

A sequence is [x, y, =], with "=" as token p; the label belongs to the last position. The transformer has
one or more blocks of causal attention and a ReLU MLP, no layer norm. From the last attention on only the
last position is kept. Its tensors, with x @ W as the convention and k the number of the block:

    embed.W_E [p + 1, d]                     pos_embed.W_pos [context, d]
    blocks.k.attn.W_{Q,K,V} [heads, d, h]    blocks.k.attn.b_{Q,K,V} [heads, h]
    blocks.k.attn.W_O [heads, h, d]          blocks.k.attn.b_O [d]
    blocks.k.mlp.W_in [d, hidden]            blocks.k.mlp.b_in [hidden]
    blocks.k.mlp.W_out [hidden, d]           blocks.k.mlp.b_out [d]
    unembed.W_U [d, vocabulary]              unembed.b_U [vocabulary]
"""

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.data.modadd import pairs, split
from interbasis.models.matrices import changed_matrices
from interbasis.network.cores import Attention, AttentionShape, Elementwise, Linear
from interbasis.network.network import Network, NodeLayer, Prefix, Section
from interbasis.network.prefix import with_constant

__all__ = ["from_weights", "load", "modulus", "pairs", "split"]

FAMILY = "modadd"


class Embedding(Prefix):
    """Token plus position embedding, with the constant in front."""

    def __init__(self, tokens: Tensor, positions: Tensor):
        super().__init__()
        self.tokens = nn.Parameter(tokens, requires_grad=False)  # [vocabulary, d]
        self.positions = nn.Parameter(positions, requires_grad=False)  # [context, d]

    def forward(self, inputs: Tensor) -> Tensor:  # [n, T] -> [n, T, d + 1]
        vocabulary, context = len(self.tokens), len(self.positions)
        if (
            inputs.is_floating_point()
            or inputs.dtype == torch.bool
            or inputs.ndim != 2
            or inputs.shape[1] > context
        ):
            raise InterbasisError(
                f"expected integer tokens of shape [samples, at most {context} positions], received "
                f"{inputs.dtype} of shape {list(inputs.shape)}"
            )
        if inputs.numel() and not 0 <= inputs.min() <= inputs.max() < vocabulary:
            raise InterbasisError(
                f"tokens lie between 0 and {vocabulary - 1}; received {inputs.min()} to {inputs.max()}"
            )
        return with_constant(self.tokens[inputs.long()] + self.positions[: inputs.shape[1]])


def modulus(network: Network) -> int:
    """p of a modular-addition network: all tokens but "=".

    Args:
        network: The network.

    Returns:
        p.

    Raises:
        InterbasisError: It is no modular-addition network.
    """
    if network.modulus is None:
        raise InterbasisError(f"expected a modular-addition network, received {network}")
    return network.modulus


def load(path: str | Path) -> Network:
    """The network of a modular-addition checkpoint (safetensors).

    Node layers: `attn_in.k` and `mlp_in.k` of every block, `unembed`, `output`.

    Args:
        path: The checkpoint.

    Returns:
        The network.

    Raises:
        InterbasisError: The file cannot be read, or tensors are missing or of another shape.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InterbasisError(
            f"could not read {path} as a modular-addition checkpoint in safetensors format ({error})"
        ) from error
    return from_weights(weights, str(path))


def from_weights(weights: dict[str, Tensor], origin: str = "the given weights") -> Network:
    """The network of a modular-addition transformer's named tensors.

    Args:
        weights: Tensors by name, as in a checkpoint.
        origin: Where they come from, for messages.

    Returns:
        The network.
    """
    numbers = {int(match[1]) for name in weights if (match := re.match(r"blocks\.(\d+)\.", name))}
    blocks = max(numbers, default=0) + 1
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
    p = len(embedding.tokens) - 1
    return Network(
        embedding,
        tuple(sections),
        family=FAMILY,
        rotate_last=False,
        token_names=(*map(str, range(p)), "="),
        modulus=p,
        remake=lambda change: from_weights(changed_matrices(weights, change), origin),
    )


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
    return Section(source, target, skip, read, write, Attention(AttentionShape(heads, head)), last_only)


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
    """Every tensor is there and all shapes agree; a letter stands for one size wherever it is met."""
    shapes = {"embed.W_E": "vd", "pos_embed.W_pos": "cd", "unembed.W_U": "do", "unembed.b_U": "o"}
    for k in range(blocks):
        shapes |= {f"blocks.{k}.attn.W_{x}": "adh" for x in "QKV"}
        shapes |= {f"blocks.{k}.attn.b_{x}": "ah" for x in "QKV"}
        shapes |= {f"blocks.{k}.attn.W_O": "ahd", f"blocks.{k}.attn.b_O": "d"}
        shapes |= {f"blocks.{k}.mlp.W_in": "dm", f"blocks.{k}.mlp.b_in": "m"}
        shapes |= {f"blocks.{k}.mlp.W_out": "md", f"blocks.{k}.mlp.b_out": "d"}
    missing = [name for name in shapes if name not in weights]
    if missing:
        there = ", ".join(sorted(weights)[:8]) or "none"
        raise InterbasisError(
            f"{origin} is not a modular-addition transformer: the tensor {missing[0]} is missing "
            f"({len(missing)} of {len(shapes)} are); it has {there}{' …' if len(weights) > 8 else ''}"
        )
    odd = [name for name in shapes if not weights[name].is_floating_point()]
    if odd:
        raise InterbasisError(
            f"{origin}: {odd[0]} holds {weights[odd[0]].dtype}, expected floating-point weights"
        )
    sizes: dict[str, int] = {}
    for name, letters in shapes.items():
        shape = list(weights[name].shape)
        if len(shape) == len(letters):
            for letter, size in zip(letters, shape, strict=True):
                sizes.setdefault(letter, size)
        expected = [sizes.get(letter, letter) for letter in letters]
        if shape != expected:
            raise InterbasisError(f"{origin}: {name} has shape {shape}, expected {expected}".replace("'", ""))
