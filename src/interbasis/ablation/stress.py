"""Does the graph only work when *all* unneeded edges are gone?

Edges whose ablation does no harm together may do harm in parts: two that cancel each other, say. So random
halves of them are ablated, and a short search looks for a bad half: it ranks groups of unneeded edges by the
damage that ablating each alone does, takes the worse half of the groups, and exchanges groups as long as it
gets worse.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.ablation.evaluation import Evaluation
from interbasis.ablation.metrics import passes
from interbasis.runtime.progress import Progress, silent

GROUPS = 12
EXCHANGES = 6


@dataclass(frozen=True)
class Stress:
    """What parts of the unneeded edges of one section do."""

    section: int
    unneeded: int
    """Edges of the graph that the accepted mask leaves out."""
    all_gone: float
    """The metric with all of them ablated: the accepted mask."""
    halves: tuple[float, ...]
    """With random halves of them ablated."""
    worst_half: float
    """With the worst half that the search met."""
    limit: float
    """What the metric had to meet."""
    failed: int
    """Halves tried, random or not, that do not meet it."""
    tried: int


def stress(
    evaluation: Evaluation,
    section: int,
    mask: Tensor,
    limit: float,
    *,
    halves: int = 8,
    seed: int = 0,
    progress: Progress = silent,
) -> Stress:
    """Ablate parts of what ``mask`` leaves out, for one section."""
    unneeded = (~mask).flatten().nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    total = halves + min(GROUPS, len(unneeded)) + EXCHANGES + 2
    values: list[float] = []

    def value(gone: Tensor, counts: bool = True) -> float:
        kept = torch.ones(mask.numel(), dtype=torch.bool)
        kept[gone.cpu()] = False
        found = evaluation.edges({section: kept.view_as(mask)}).value
        if counts:
            values.append(found)
        progress(f"stress, section {section}", min(len(values) + 1, total), total)
        return found

    all_gone = value(unneeded, counts=False)
    if len(unneeded) < 2:
        return Stress(section, len(unneeded), all_gone, (), all_gone, limit, 0, 0)
    for _ in range(halves):
        order = torch.randperm(len(unneeded), generator=generator)
        value(unneeded[order[: len(unneeded) // 2]])
    random_halves = tuple(values)
    _search(unneeded, value, generator, evaluation.metric == "accuracy")
    worst = min(values) if evaluation.metric == "accuracy" else max(values)
    failed = sum(not passes(evaluation.metric, v, limit) for v in values)
    return Stress(section, len(unneeded), all_gone, random_halves, worst, limit, failed, len(values))


def _search(
    unneeded: Tensor,
    value: Callable[[Tensor, bool], float],
    generator: torch.Generator,
    higher_is_better: bool,
) -> None:
    """Tells ``value`` of ever worse halves."""
    groups: Sequence[Tensor] = unneeded[torch.randperm(len(unneeded), generator=generator)].chunk(GROUPS)
    sign = 1 if higher_is_better else -1
    alone = [sign * value(group, False) for group in groups]
    order = sorted(range(len(groups)), key=alone.__getitem__)
    chosen, rest = order[: len(groups) // 2], order[len(groups) // 2 :]

    def badness(which: list[int]) -> float:
        return sign * value(torch.cat([groups[k] for k in which]), True)

    best = badness(chosen) if chosen else 0.0
    for _ in range(EXCHANGES if chosen else 0):
        out, into = (int(torch.randint(len(x), (1,), generator=generator)) for x in (chosen, rest))
        changed, other = chosen.copy(), rest.copy()
        changed[out], other[into] = rest[into], chosen[out]
        found = badness(changed)
        if found < best:
            best, chosen, rest = found, changed, other
