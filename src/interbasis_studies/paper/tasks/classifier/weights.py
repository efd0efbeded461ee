"""The models of a reproduction over seeds: named by the user, or trained here."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.graph.named_models import SHIPPED
from interbasis_studies.paper.plan import SEEDS, ReproduceRequest, TaskName


@dataclass(frozen=True)
class Weights:
    """Checkpoints of all seeds, named by the user or trained here."""

    task: TaskName
    request: ReproduceRequest
    asked: tuple[int, ...] | None
    """Seeds that were asked for; None is all five, or those that are given."""
    train: Callable[[int, Path, Progress], None]

    def seeds(self) -> tuple[int, ...]:
        """The seeds that there are weights for, or that can be trained."""
        folder, wanted = self.request.checkpoints, self.asked or SEEDS
        if folder is None:
            return wanted
        if not folder.is_dir():
            raise InterbasisError(f"expected a folder of checkpoints at {folder}, but there is none")
        available = tuple(seed for seed in wanted if self._checkpoint(folder, seed) is not None)
        missing = [seed for seed in self.asked or () if seed not in available]
        if missing or not available:
            seed = missing[0] if missing else 0
            raise InterbasisError(
                f"{folder} has no checkpoint of seed {seed}; expected {' or '.join(self._names(seed))}"
            )
        return available

    def path(self, seed: int, progress: Progress = silent) -> Path:
        """The checkpoint of a seed; its training is started, or resumed, where it is not there yet."""
        if self.request.checkpoints is not None:
            path = self._checkpoint(self.request.checkpoints, seed)
            if path is None:
                raise InterbasisError(f"{self.request.checkpoints} has no checkpoint of seed {seed}")
            return path.absolute()
        if self.request.quick and self.task == "modadd" and seed == 0:
            return SHIPPED
        path = self.request.out / "checkpoints" / f"{self.task}-seed{seed}.safetensors"
        if not path.is_file():
            self.train(seed, path, progress)
        return path.absolute()

    def _names(self, seed: int) -> tuple[str, str]:
        return f"{self.task}-seed{seed}.safetensors", f"seed{seed}.safetensors"

    def _checkpoint(self, folder: Path, seed: int) -> Path | None:
        return next((folder / name for name in self._names(seed) if (folder / name).is_file()), None)
