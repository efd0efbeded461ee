"""Trying masks that keep the largest edges of a section: each number of edges is tried once."""

import math
from collections.abc import Callable, Iterator

from torch import Tensor

from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.ablation.metrics import Score
from interbasis.analysis.ablation.records import Trial
from interbasis.compute.checkpoints import Checkpoint, State

GRID_POINTS_PER_OCTAVE = 2
"""Counts of the logarithmic grid between n and 2n."""


class SectionTrials:
    """Keeping the largest edges of one section, each number of them tried once."""

    def __init__(
        self,
        edges: Tensor,
        constant: bool,
        score: Callable[[Tensor, bool], Score],
        passes: Callable[[float], bool],
        memory: "Memory",
    ):
        self.edges = edges
        self.free = int(constant)
        self.candidates = edges[:, self.free :].numel()
        self._memory = memory
        self._score = score
        self._passes = passes

    def mask(self, kept: int) -> Tensor:
        return top_edges(self.edges, kept, bool(self.free))

    def smallest(self, kept: int) -> float:
        """The smallest edge among the ``kept`` largest; of none of them, the largest edge there is."""
        ranked = self.edges[:, self.free :].flatten().sort(descending=True).values
        return ranked[max(kept - 1, 0)].item() if len(ranked) else 0.0

    def __call__(self, kept: int) -> Trial:
        kept = min(kept, self.candidates)
        if kept not in self.visited:
            self._try(kept, whole=False)
        return self.visited[kept]

    def whole(self, kept: int) -> None:
        """Look at all samples, however badly it goes."""
        if kept not in self.losses:
            self._try(kept, whole=True)

    def _try(self, kept: int, whole: bool) -> None:
        score = self._score(self.mask(kept), whole)
        visited = Trial(
            kept=kept, value=score.value, passed=self._passes(score.value), complete=score.complete
        )
        self._memory.add(visited, score.losses)

    @property
    def losses(self) -> dict[int, Tensor]:
        """Of the masks that were looked at in full, by the number kept, [samples] each."""
        return self._memory.losses

    @property
    def visited(self) -> dict[int, Trial]:
        return self._memory.visited


class Memory:
    """What was tried, by the number kept; written to unfinished work where there is a place for it."""

    def __init__(self, checkpoint: Checkpoint | None = None, losses: bool = False):
        self._checkpoint = checkpoint or Checkpoint()
        self._keeps_losses = losses
        rows = self._checkpoint.values.get("visited", [])
        self.visited = {row["kept"]: Trial(**row) for row in rows}
        self.losses = {int(kept): losses for kept, losses in self._checkpoint.tensors.items()}

    def add(self, visited: Trial, losses: Tensor | None = None) -> None:
        self.visited[visited.kept] = visited
        if self._keeps_losses and visited.complete and losses is not None:
            self.losses[visited.kept] = losses
        self._checkpoint.save(len(self.visited), self._state)

    def _state(self) -> State:
        tensors = {str(kept): losses for kept, losses in self.losses.items()}
        return tensors, {"visited": [row.model_dump() for row in self.visited.values()]}


def logarithmic(largest: int, also: int = 1) -> Iterator[int]:
    """Counts from ``largest`` down to 1, evenly spaced in their logarithm, ``also`` in its place, and 0."""
    steps = math.ceil(math.log2(max(largest, 1)) * GRID_POINTS_PER_OCTAVE)
    grid = {round(2 ** (step / GRID_POINTS_PER_OCTAVE)) for step in range(steps)} | {largest, also, 0}
    yield from sorted((count for count in grid if count <= largest), reverse=True)
