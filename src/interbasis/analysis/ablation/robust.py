"""Harder than random halves: the worst mask within the edges that were declared unneeded.

Every unneeded edge gets a number a between 0, its input at the mean, and the level ρ, where 1 is its input as
it is; needed edges keep 1. Output feature i then sees the inputs m_i ∘ f̂ with real m,

    f̂_out,i = P̂_i (m_i ∘ f̂) + B̂_i · core(Â (m_i ∘ f̂)).

Gradient ascent on the cross-entropy looks for the worst a: by signs of the gradient, within [0, ρ], from
several starts, on some of the samples. What the mask found costs, as it is or rounded to 0 and ρ, is measured
on all data. One mask for all inputs, or one for every input, which is harder still. An edge count is
*robust at level ρ* where no mask found costs more than the tolerance. ρ = 0 is the plain ablation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.ablation.evaluation import Evaluation, Score, passes, sample_losses
from interbasis.analysis.ablation.masked_pass import Before, WholeTokens, top_edges
from interbasis.analysis.ablation.memory import ATTACKED_SAMPLES
from interbasis.analysis.ablation.records import RobustCount
from interbasis.analysis.ablation.search import logarithmic
from interbasis.base.progress import Progress, silent
from interbasis.network.cores import Linear
from interbasis.network.network import Section

FIRST_STEP = 0.4
"""First step as a share of the level; steps shrink linearly to a tenth of it."""
MAX_BLOCK_ELEMENTS = 2**23
"""Masked features and read-outs held at once."""


Chunks = list[tuple[Tensor, Tensor]]
"""Activations [n, T, width] and labels of a few samples of one length each."""


@dataclass(frozen=True)
class Attack:
    """Settings of the search for a bad mask."""

    level: float = 1.0
    steps: int = 12
    starts: int = 3
    """Number of ascents: from 0 (the plain ablation), from ρ/2, and from random numbers."""
    samples: int = ATTACKED_SAMPLES
    """Samples on which a mask is sought; what a common mask costs is measured on all data."""
    seed: int = 0


def soft_ablated(
    section: Section, f: Tensor, mask: Tensor, whole: WholeTokens | None = None
) -> Tensor:  # [n, T, r_in] -> [n, S, r_out]
    """The section through a real mask [r_out, r_in], or one for every sample [n, r_out, r_in].

    Section and f are in the coordinates of the bases. Differentiable in the mask.
    """
    outputs, mask = section.outputs(f), mask.expand(len(f), *mask.shape[-2:])
    result = section.soft_skip(f, mask)
    if whole is not None:
        result = whole.among_skipped(result)
    if isinstance(section.core, Linear):
        return result
    rows = section.write.any(1).nonzero()[:, 0]  # the others see the input by the skip alone
    seen = mask[:, rows, None] * f[:, None]  # [n, rows, T, r_in]
    u = section.read_outs(seen.flatten(0, 1)).unflatten(0, (len(f), len(rows)))
    if whole is not None:
        u = whole.among_read_outs(u)
    core = section.core(u.flatten(0, 1), outputs).unflatten(0, (len(f), len(rows)))  # [n, rows, S, c_out]
    written = torch.einsum("nisc,ic->nsi", core, section.write[rows])
    return result.index_add(2, rows, written)


class RobustSearch:
    """Attacks on one section, whose edges are ranked by Ê."""

    def __init__(self, evaluation: Evaluation, section: int, limit: float, attack: Attack | None = None):
        self.evaluation, self.index, self.limit = evaluation, section, limit
        self.attack = attack or Attack()
        self._edges = evaluation.graph.edges[section]
        self._constant = evaluation.graph.layers[section].constant
        self._inputs = next(evaluation.activations_and_labels(section))[2]
        self._samples = self._first_samples()

    def mask(self, count: int) -> Tensor:
        """The mask of the ``count`` largest edges."""
        return top_edges(self._edges, count, self._constant)

    def count(self, plain: int, progress: Progress = silent) -> RobustCount:
        """The fewest edges that no mask found breaks, on a logarithmic grid from the plain count on.

        The grid is bisected, as if more edges were never worse.
        """
        candidates = self._edges[:, int(self._constant) :].numel()
        grid = [n for n in sorted(logarithmic(candidates, plain)) if n >= plain]
        worst: dict[int, float] = {}

        def passed(place: int) -> bool:
            number = grid[place]
            if number not in worst:
                worst[number] = self.worst_common(self.mask(number))
                progress(f"robust edges of section {self.index}", len(worst), len(grid))
            return passes(self.evaluation.metric, worst[number], self.limit)

        low, high = -1, len(grid) - 1  # all edges leave nothing to attack
        if passed(0):
            high = 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if passed(middle) else (middle, high)
        passed(high)
        return RobustCount(
            level=self.attack.level,
            count=grid[high],
            plain=plain,
            worst_at_plain=worst[plain],
            worst_per_input=self.worst_per_input(self.mask(plain)),
            worst_at_count=worst[grid[high]],
            limit=self.limit,
            starts=self.attack.starts,
            steps=self.attack.steps,
            ascent_samples=sum(len(f) for f, _ in self._samples),
        )

    def worst_common(self, keep: Tensor) -> float:
        """The metric over all data with the worst mask found, the same for all inputs."""
        if keep.all():
            return self.evaluation.baseline.value
        samples = self._samples
        free = ~keep.to(samples[0][0].device)
        starts = [self._start(k, free.shape, self._generator(k)) for k in range(self.attack.starts)]
        ascents = [self._ascend(free, samples, start) for start in starts]
        a, _, _ = max(ascents, key=lambda ascent: ascent[1])
        rounded = torch.where(a > self.attack.level / 2, self.attack.level, 0.0).to(a) * free
        worse = max(a, rounded, key=lambda mask: self._entropy(free, mask, samples))
        values = self._value(keep, worse), self.evaluation.edges({self.index: keep}).value
        return min(values) if self.evaluation.metric == "accuracy" else max(values)

    def worst_per_input(self, keep: Tensor) -> float:
        """The metric over the ascent's samples where every input has the worst mask found for it."""
        worst, counts = [], []
        generators = [self._generator(start) for start in range(self.attack.starts)]
        for f, labels in self._samples:  # every input has a mask of its own, so chunks are independent
            free, shape = ~keep.to(f.device), (len(f), *keep.shape)
            starts = [self._start(k, shape, generator) for k, generator in enumerate(generators)]
            ascents = [self._ascend(free, [(f, labels)], start) for start in starts]
            worst.append(torch.stack([losses for _, _, losses in ascents]).amax(0))
            counts.append(sample_losses(self.evaluation.metric, self._outputs(f, keep.to(f)), labels)[1])
        return Score(self.evaluation.metric, torch.cat(worst), torch.cat(counts)).value

    def _ascend(self, free: Tensor, samples: Chunks, start: Tensor) -> tuple[Tensor, float, Tensor]:
        """The numbers a with the largest cross-entropy met, its sum, and the largest loss of every sample.

        ``start`` [r_out, r_in] is common to all samples; with one mask per sample, [n, r_out, r_in], there is
        one chunk of them.
        """
        level, a = self.attack.level, start.to(samples[0][0]) * free
        best, best_loss = a, -torch.inf
        worst = torch.zeros(sum(len(f) for f, _ in samples), dtype=torch.float64)
        for step in range(self.attack.steps + 1):
            slope, losses, total = torch.zeros_like(a), [], 0.0
            for f, labels in samples:
                leaf = a.detach().requires_grad_()
                outputs = self._outputs(f, torch.where(free, leaf, 1.0))
                loss = sample_losses("cross_entropy", outputs, labels)[0].sum()
                slope += torch.autograd.grad(loss, leaf)[0]
                total += loss.item()
                losses.append(sample_losses(self.evaluation.metric, outputs.detach(), labels)[0])
            worst = torch.maximum(worst, torch.cat(losses))
            if total > best_loss:
                best, best_loss = a, total
            size = level * FIRST_STEP * (1 - 0.9 * step / self.attack.steps)
            a = (a + size * slope.sign()).clamp(0, level) * free
        return best, best_loss, worst

    @torch.no_grad()
    def _entropy(self, free: Tensor, a: Tensor, samples: Chunks) -> float:
        mask = torch.where(free, a, 1.0)
        losses = [sample_losses("cross_entropy", self._outputs(f, mask), labels)[0] for f, labels in samples]
        return torch.cat(losses).sum().item()

    def _generator(self, start: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.attack.seed * 1000 + start)

    def _start(self, number: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        if number < 2:
            return torch.full(shape, number * self.attack.level / 2, dtype=torch.float64)
        return self.attack.level * torch.rand(shape, generator=generator, dtype=torch.float64)

    def _outputs(self, f: Tensor, mask: Tensor) -> Tensor:
        """The model's outputs with this section behind a real mask; gradients flow into the mask."""
        k, masked = self.index, self.evaluation.masked
        before, counted = Before(masked.layers[k].to_features(f), f), masked.counted_tokens(f, k, k + 1)
        f = masked.through_mask(k, before, mask, counted, soft_ablated)
        for section in masked.network.sections[k + 1 :]:
            f = section(f)
        return masked.network.finish(f, self._inputs)

    def _value(self, keep: Tensor, a: Tensor) -> float:
        """The metric over all data with one mask."""
        mask = torch.where(keep.to(a.device), 1.0, a)

        def outputs() -> Iterator[tuple[Tensor, Tensor]]:
            for f, labels, _ in self.evaluation.activations_and_labels(self.index):
                for rows, row_labels in self._split(f, labels):
                    yield self._outputs(rows, mask.to(rows)), row_labels

        return self.evaluation.score(outputs()).value

    def _split(self, f: Tensor, labels: Tensor) -> Chunks:
        """As many samples at a time as a pass through a mask may hold."""
        section = self.evaluation.masked.section(self.index)
        outputs, features = self._edges.shape
        size = MAX_BLOCK_ELEMENTS // (f.shape[1] * outputs * (features + len(section.read)))
        size = max(1, min(size, self.evaluation.plan.samples))
        return list(zip(f.split(size), labels.split(size), strict=True))

    def _first_samples(self) -> Chunks:
        """The first samples, on which masks are sought, with their labels."""
        chunks: Chunks = []
        left = self.attack.samples
        for f, labels, _ in self.evaluation.activations_and_labels(self.index):
            chunks += self._split(f[:left], labels[:left])
            left -= min(left, len(f))
            if not left:
                break
        return chunks
