"""The state of a training run on disk: weights and Adam's moments, so that it resumes after a kill."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.files import clear_left_over, write_atomically
from interbasis.base.tensor_file import tensor_digest

Weights = Mapping[str, Tensor]


def save_state(
    path: Path,
    recipe: dict[str, Any],
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    counters: dict[str, int],
    buffers: Weights | None = None,
) -> None:
    """Write everything that the next step depends on; ``counters`` hold ``step`` and what else is counted.

    ``buffers`` are what is not trained but changes, a batch norm's running statistics, say.
    """
    tensors: dict[str, Tensor] = {f"buffer/{name}": buffer for name, buffer in (buffers or {}).items()}
    for name, weight in weights.items():
        moments = optimizer.state[weight]
        tensors |= {
            f"weight/{name}": weight.detach(),
            f"mean/{name}": moments["exp_avg"],
            f"square/{name}": moments["exp_avg_sq"],
        }
    metadata = {"recipe": json.dumps(recipe)} | {name: str(count) for name, count in counters.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata["sha256"] = tensor_digest(tensors, json.dumps(metadata, sort_keys=True))
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


def restore_state(
    path: Path,
    recipe: dict[str, Any],
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    counters: dict[str, int],
    buffers: Weights | None = None,
) -> dict[str, int]:
    """Load the state of an interrupted run and give its counters; those given where there is none."""
    if not path.exists():
        return counters
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            digest = metadata.pop("sha256", "")
            if tensor_digest(stored, json.dumps(metadata, sort_keys=True)) != digest:
                raise RuntimeError("its SHA-256 is not the one it was written with")
            _check_unchanged(path, json.loads(metadata["recipe"]), json.loads(json.dumps(recipe)))
            values = {name: int(metadata[name]) for name in counters}
            with torch.no_grad():
                for name, weight in weights.items():
                    weight.copy_(stored[f"weight/{name}"])
                    optimizer.state[weight] = {
                        "step": torch.tensor(float(values["step"])),
                        "exp_avg": stored[f"mean/{name}"],
                        "exp_avg_sq": stored[f"square/{name}"],
                    }
                for name, buffer in (buffers or {}).items():
                    buffer.copy_(stored[f"buffer/{name}"])
            return values
    except (SafetensorError, OSError, KeyError, TypeError, RuntimeError) as error:
        raise InterbasisError(
            f"{path} is not a readable training state ({error}); delete it to start again"
        ) from error


def discard_state(path: Path) -> None:
    """Remove the state of a run that has ended, and what a kill in the middle of a save left beside it."""
    path.unlink(missing_ok=True)
    clear_left_over(path.parent, path.name, path.with_suffix(".safetensors").name)


def _check_unchanged(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for key, value in now.items():
        if before.get(key) != value:
            raise InterbasisError(
                f"{path} was begun with {key} = {before.get(key)}, not {value}; "
                "use the old value, or delete the file to start again"
            )
