"""The state of a training run on disk: weights and Adam's moments, so that it resumes after a kill."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.files import clear_left_over, write_atomically
from interbasis.base.tensor_file import tensor_digest

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Everything that the next step of a training run depends on."""

    path: Path
    recipe: dict[str, Any]
    weights: Weights
    optimizer: torch.optim.Optimizer
    buffers: Weights = field(default_factory=dict)
    """Tensors that change without being trained, such as a batch norm's running statistics."""

    def save(self, **counters: int) -> None:
        """Write it; ``counters`` hold ``step`` and what else is counted."""
        tensors: dict[str, Tensor] = {f"buffer/{name}": buffer for name, buffer in self.buffers.items()}
        for name, weight in self.weights.items():
            moments = self.optimizer.state[weight]
            tensors |= {
                f"weight/{name}": weight.detach(),
                f"mean/{name}": moments["exp_avg"],
                f"square/{name}": moments["exp_avg_sq"],
            }
        metadata = {"recipe": json.dumps(self.recipe)} | {name: str(n) for name, n in counters.items()}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        metadata["sha256"] = tensor_digest(tensors, json.dumps(metadata, sort_keys=True))
        write_atomically(self.path, lambda temporary: save_file(tensors, temporary, metadata))

    def restore(self, **counters: int) -> dict[str, int]:
        """Load the state of an interrupted run and give its counters; those given where there is none."""
        if not self.path.exists():
            return counters
        with Explained(
            f"{self.path} is not a readable training state", SafetensorError, OSError, KeyError, TypeError,
            RuntimeError, remedy="delete it to start again",
        ), torch.no_grad():  # fmt: skip
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata()
                stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            digest = metadata.pop("sha256", "")
            if tensor_digest(stored, json.dumps(metadata, sort_keys=True)) != digest:
                raise RuntimeError("its SHA-256 is not the one it was written with")
            self._check_recipe(json.loads(metadata["recipe"]))
            counters = {name: int(metadata[name]) for name in counters}
            for name, weight in self.weights.items():
                weight.copy_(stored[f"weight/{name}"])
                self.optimizer.state[weight] = {
                    "step": torch.tensor(float(counters["step"])),
                    "exp_avg": stored[f"mean/{name}"],
                    "exp_avg_sq": stored[f"square/{name}"],
                }
            for name, buffer in self.buffers.items():
                buffer.copy_(stored[f"buffer/{name}"])
        return counters

    def _check_recipe(self, before: dict[str, Any]) -> None:
        for key, value in json.loads(json.dumps(self.recipe)).items():
            if before.get(key) != value:
                raise InterbasisError(
                    f"{self.path} was begun with {key} = {before.get(key)}, not {value}; "
                    "use the old value, or delete the file to start again"
                )


def discard_state(path: Path) -> None:
    """Remove the state of a run that has ended, and what a kill in the middle of a save left beside it."""
    path.unlink(missing_ok=True)
    clear_left_over(path.parent, path.name, path.with_suffix(".safetensors").name)
