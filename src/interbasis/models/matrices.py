"""The weight matrices of a model, and the same model with others in their place.

Weight matrices are what linear maps and convolutions hold, each as the model stores it: where queries, keys
and values are one tensor (GPT-2), they are one matrix, and so are all heads of a W_Q. Everything else stays:
biases, gains of norms, embeddings of tokens and positions, and with these an unembedding tied to them.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.network.network import Change

LINEAR_MAPS = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
UNCHANGED = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)

Module = TypeVar("Module", bound=nn.Module)


def changed_copy(module: Module, change: Change) -> Module:
    """Copy of a module with change(W) in the place of every weight matrix W."""
    _matrices(module)  # refuses what cannot be told, of which some cannot be copied either
    return change_matrices(deepcopy(module), change)


@torch.no_grad()
def change_matrices(module: Module, change: Change) -> Module:
    """Change a module in place, one matrix after the other in the order of their names."""
    for _, matrix in sorted(_matrices(module).items()):
        matrix.copy_(change(matrix))
    return module


def changed_matrices(weights: Mapping[str, Tensor], change: Change) -> dict[str, Tensor]:
    """Change tensors with TransformerLens' names, as a modular-addition checkpoint has them."""
    return dict(weights) | {name: change(weights[name]) for name in sorted(weights) if _named_matrix(name)}


def _matrices(module: nn.Module) -> dict[str, nn.Parameter]:
    """Weight matrices by name; one that several modules share is there once."""
    parts = dict(module.named_modules())
    seen = {
        id(p)
        for part in parts.values()
        if isinstance(part, UNCHANGED) or type(part).__name__.endswith("Norm")
        for p in part.parameters(recurse=False)
    }
    matrices: dict[str, nn.Parameter] = {}
    for path, part in parts.items():
        if _is_map(part) and "weight" not in part._parameters:
            raise _unknown(f"{path}.weight", part)
        for name, parameter in part.named_parameters(recurse=False):
            if parameter.ndim > 1 and id(parameter) not in seen and _holds_matrix(part, path, name):
                seen.add(id(parameter))
                matrices[f"{path}.{name}"] = parameter
    return matrices


def _is_map(part: nn.Module) -> bool:
    """Whether a part is a linear map; Conv1D is transformers' transposed nn.Linear."""
    return isinstance(part, LINEAR_MAPS) or type(part).__name__ == "Conv1D"


def _holds_matrix(part: nn.Module, path: str, name: str) -> bool:
    """Whether a parameter with more than one dimension is a weight matrix."""
    if _is_map(part) and name == "weight":
        return True
    if name.lstrip("_").startswith(("W_", "b_")):
        return _named_matrix(name)
    raise _unknown(f"{path}.{name}", part)


def _named_matrix(name: str) -> bool:
    """Whether a name is a weight matrix's: `blocks.0.attn.W_Q`, or `_W_K` where heads share keys.

    W_E and W_pos are embeddings, b_Q is a bias.
    """
    last = name.rpartition(".")[2].lstrip("_")
    return last.startswith("W_") and last not in ("W_E", "W_pos")


def _unknown(name: str, part: nn.Module) -> InterbasisError:
    return InterbasisError(
        f"expected weights that linear maps or convolutions hold as plain parameters, received "
        f"{name.lstrip('.')} of {type(part).__name__}, which may be a weight matrix or not; give the "
        "Network a remake of your own, or leave scrambled networks out with scrambles=0"
    )
