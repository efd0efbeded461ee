"""MLP checkpoints: safetensors of an `nn.Sequential` with its architecture in the metadata.

The tensors are the module's state ("0.weight", "0.bias", "2.weight", …). The metadata hold, as JSON,

    architecture   {"family": "mlp", "layers": [{"type": "Linear", "in_features": 3072, "out_features": 60},
                    {"type": "ReLU"}, …], "data": "cifar10"}

with a module of `torch.nn` per layer and the arguments it is made with; ``data`` is the spec of the data the
model was trained on, where there is one.
"""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.files import write_atomically
from interbasis.models.module import from_torch
from interbasis.models.sequential import ELEMENTWISE, FAMILY, IDENTITIES
from interbasis.network.network import Network

__all__ = ["load", "load_module", "save"]

Contents = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors by name, and the architecture."""
KNOWN = {kind.__name__: kind for kind in (nn.Linear, nn.Flatten, *ELEMENTWISE, *IDENTITIES)}
"""Modules that a checkpoint may be made of."""
NOT_STORED = ("inplace", "device", "dtype")
"""Arguments of modules that a checkpoint leaves out."""


def architecture(module: nn.Sequential, data: str = "") -> dict[str, Any]:
    """Architecture in a checkpoint's metadata, enough to make the module again.

    Args:
        module: A plain MLP.
        data: Name of the data that go with it.

    Returns:
        Names and arguments of its layers.
    """
    layers = [_description(layer) for layer in module]
    return {"family": FAMILY, "layers": layers} | ({"data": data} if data else {})


def save(
    module: nn.Sequential, path: str | Path, data: str = "", training: dict[str, Any] | None = None
) -> Path:
    """Write a checkpoint that `mlp:PATH` reads.

    Args:
        module: A plain MLP.
        path: The file.
        data: Name of the data that go with it.
        training: How it was trained, stored in the metadata.

    Returns:
        The path.
    """
    about = {"architecture": architecture(module, data)} | ({"training": training} if training else {})
    return write_checkpoint(module, Path(path), about)


def write_checkpoint(module: nn.Module, path: Path, about: Mapping[str, object]) -> Path:
    """Write a module's state as safetensors, with JSON in the metadata."""
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in module.state_dict().items()}
    metadata = {name: json.dumps(value) for name, value in about.items()}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))
    return path


def load(path: str | Path) -> Network:
    """Load the network of a checkpoint."""
    return from_torch(load_module(path))


def load_module(path: str | Path) -> nn.Sequential:
    """Load the `nn.Sequential` of a checkpoint.

    Args:
        path: The checkpoint.

    Returns:
        The module.

    Raises:
        InterbasisError: The file cannot be read, or its tensors do not match its architecture.
    """
    tensors, about = _read(Path(path))
    layers = about.get("layers")
    if not isinstance(layers, list) or not layers:
        raise InterbasisError(f"{path}: its architecture names no layers; save it with interbasis.mlp.save")
    module = nn.Sequential(*(_module(path, number, layer) for number, layer in enumerate(layers)))
    expected = {name: list(weight.shape) for name, weight in module.state_dict().items()}
    shapes = {name: list(weight.shape) for name, weight in tensors.items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            raise InterbasisError(
                f"{path}: its architecture requires {name} of shape {expected.get(name, 'none')}, "
                f"the file has {shapes.get(name, 'none')}"
            )
    dtype = next(iter(tensors.values())).dtype if tensors else torch.float32
    module.to(dtype if dtype.is_floating_point else torch.float32).load_state_dict(tensors)
    return module.eval()


def training_data(path: str | Path) -> str:
    """Spec of the data that a checkpoint was trained on; empty where it does not say."""
    return str(_read(Path(path))[1].get("data") or "")


def _read(path: Path) -> Contents:
    refusal = "{} is not an MLP checkpoint: {}; save one with interbasis.mlp.save"
    return read_checkpoint(path, FAMILY, "an MLP checkpoint", refusal)


def read_checkpoint(path: Path, family: str, kind: str, refusal: str) -> Contents:
    """Tensors and architecture of a checkpoint of a family.

    ``kind`` is its name in messages, ``refusal`` the message for another, with places for path and reason.
    """
    if not path.is_file():
        raise InterbasisError(f"expected a safetensors checkpoint at {path}, but there is no such file")
    problem = f"could not read {path} as {kind} in safetensors format"
    with Explained(problem, OSError, SafetensorError), safe_open(path, "pt") as file:
        about = (file.metadata() or {}).get("architecture")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        architecture = json.loads(about or "")
        if architecture["family"] == family:
            return tensors, architecture
        reason = f"its family is {architecture['family']!r}"
    except (ValueError, KeyError, TypeError):
        reason = "its metadata have no architecture"
    raise InterbasisError(refusal.format(path, reason))


def _description(layer: nn.Module) -> dict[str, Any]:
    kind = type(layer)
    if KNOWN.get(kind.__name__) is not kind:
        raise InterbasisError(
            f"an MLP checkpoint is an nn.Sequential of {', '.join(KNOWN)}; received {kind.__name__}"
        )
    wanted = (name for name in inspect.signature(kind).parameters if name not in NOT_STORED)
    arguments = {name: getattr(layer, name) for name in wanted if hasattr(layer, name)}
    if isinstance(layer, nn.Linear):
        arguments["bias"] = layer.bias is not None
    return {"type": kind.__name__} | arguments


def _module(path: str | Path, number: int, layer: Any) -> nn.Module:
    try:
        arguments = dict(layer)
        kind = KNOWN[arguments.pop("type")]
        return kind(**arguments)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InterbasisError(
            f"{path}: layer {number} of its architecture is {layer!r}, which is none of {', '.join(KNOWN)} "
            "with its arguments"
        ) from error
