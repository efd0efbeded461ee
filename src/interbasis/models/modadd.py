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

import json
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from interbasis.base.errors import Explained, InterbasisError
from interbasis.data.modadd import FRACTION, pairs, split
from interbasis.models.embedding import TokenEmbedding
from interbasis.models.matrices import changed_matrices
from interbasis.network.cores import Attention, AttentionShape, Elementwise, Linear
from interbasis.network.network import Network, NodeLayer, Section

__all__ = ["from_weights", "load", "modulus", "pairs", "split"]

FAMILY = "modadd"
SHIPPED = Path(__file__).parents[1] / "weights" / "modadd-seed0.safetensors"
"""The checkpoint that comes with interbasis."""


class Embedding(TokenEmbedding):
    """Token plus position embedding; its name is part of the fingerprints of stored graphs."""


def modulus(network: Network) -> int:
    """Modulus p of a modular-addition network: the number of tokens but "=".

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


def load(path: str | Path | None = None) -> Network:
    """Load the network of a modular-addition checkpoint (safetensors).

    Node layers: `attn_in.k` and `mlp_in.k` of every block, `unembed`, `output`.

    Args:
        path: The checkpoint; default: the one that comes with interbasis, for p = 113.

    Returns:
        The network.

    Raises:
        InterbasisError: The file cannot be read, or tensors are missing or of another shape.
    """
    path = SHIPPED if path is None else path
    problem = f"could not read {path} as a modular-addition checkpoint in safetensors format"
    with Explained(problem, OSError, SafetensorError):
        weights = load_file(path)
    return from_weights(weights, str(path))


def training_fraction(path: Path) -> float:
    """Share of all pairs that a checkpoint was trained on; the paper's where it does not say."""
    problem = f"could not read how {path} was trained"
    with Explained(problem, OSError, SafetensorError, ValueError, TypeError), safe_open(path, "pt") as file:
        training = json.loads((file.metadata() or {}).get("training", "{}"))
        return float(training.get("fraction", FRACTION))


def from_weights(weights: dict[str, Tensor], origin: str = "the given weights") -> Network:
    """Network of a modular-addition transformer's named tensors.

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
    names = [f"{part}.{block}" for block in range(blocks) for part in ("attn_in", "mlp_in")]
    nodes = [NodeLayer(name, width + 1) for name in (*names, "unembed")]
    sections = []
    for block in range(blocks):
        prefix = f"blocks.{block}."
        part = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
        attention_in, mlp_in, after = nodes[2 * block : 2 * block + 3]
        sections.append(_attention(part, attention_in, mlp_in, last_only=block == blocks - 1))
        read, write = _read(part["mlp.b_in"], part["mlp.W_in"].T), _below_constant(part["mlp.W_out"].T)
        skip = _residual(part["mlp.b_out"])
        sections.append(Section(mlp_in, after, skip, read, write, Elementwise(nn.ReLU())))
    logits = _read(weights["unembed.b_U"], weights["unembed.W_U"].T)
    output = NodeLayer("output", len(logits), constant=False)
    sections.append(Section(nodes[-1], output, logits, logits[:0], logits[:, :0], Linear()))
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
    maps = [(part[f"attn.b_{x}"].flatten(), part[f"attn.W_{x}"].mT.reshape(-1, width)) for x in "QKV"]
    read = torch.cat([_read(*biased) for biased in maps])  # [3 · heads · head, d + 1]
    write = _below_constant(part["attn.W_O"].flatten(0, 1).T)
    skip = _residual(part["attn.b_O"])
    return Section(source, target, skip, read, write, Attention(AttentionShape(heads, head)), last_only)


def _read(bias: Tensor, weight: Tensor) -> Tensor:  # [c], [c, d] -> [c, d + 1]
    return torch.cat([bias[:, None], weight], dim=1)


def _residual(bias: Tensor) -> Tensor:  # [d] -> [d + 1, d + 1]
    """The identity on the stream and the constant, with the bias in the constant's column."""
    skip = torch.eye(len(bias) + 1, dtype=bias.dtype)
    skip[1:, 0] = bias
    return skip


def _below_constant(write: Tensor) -> Tensor:  # [d, c] -> [d + 1, c]
    return torch.nn.functional.pad(write, (0, 0, 1, 0))


def _check(weights: dict[str, Tensor], blocks: int, origin: str) -> None:
    """Refuse missing tensors and shapes that disagree; a letter stands for one size wherever it is met."""
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
