"""Does the graph only work when *all* unneeded edges are gone?

Edges whose ablation does no harm together may do harm in parts: two that cancel each other, say. So random
halves of them are ablated, and a short search looks for a bad half: it ranks groups of unneeded edges by the
damage that ablating each alone does, takes the worse half of the groups, and exchanges groups as long as it
gets worse.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.metrics import passes
from interbasis.analysis.ablation.records import Stress
from interbasis.base.progress import Progress, silent

RANDOM_HALVES = 8
GROUPS = 12
"""Groups of unneeded edges that the search for a bad half takes or leaves."""
EXCHANGES = 6
"""Exchanges of two groups that it tries."""


def stress(
    evaluation: Evaluation,
    section: int,
    mask: Tensor,
    limit: float,
    seed: int = 0,
    progress: Progress = silent,
) -> Stress:
    """Ablate parts of what ``mask`` leaves out, for one section."""
    unneeded = (~mask).flatten().nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    total = RANDOM_HALVES + min(GROUPS, len(unneeded)) + EXCHANGES + 2
    values: list[float] = []

    def value(gone: Tensor, counts: bool = True) -> float:
        kept = torch.ones(mask.numel(), dtype=torch.bool)
        kept[gone.cpu()] = False
        metric = evaluation.edges({section: kept.view_as(mask)}).value
        if counts:
            values.append(metric)
        progress(f"stress, section {section}", min(len(values) + 1, total), total)
        return metric

    all_ablated = value(unneeded, counts=False)
    if len(unneeded) < 2:
        return Stress(
            unneeded=len(unneeded),
            all_ablated=all_ablated,
            halves=(),
            worst_half=all_ablated,
            limit=limit,
            failed=0,
            tried=0,
        )
    for _ in range(RANDOM_HALVES):
        order = torch.randperm(len(unneeded), generator=generator)
        value(unneeded[order[: len(unneeded) // 2]])
    random_halves = tuple(values)
    _search(unneeded, value, generator, evaluation.metric == "accuracy")
    worst = min(values) if evaluation.metric == "accuracy" else max(values)
    failed = sum(not passes(evaluation.metric, v, limit) for v in values)
    return Stress(
        unneeded=len(unneeded),
        all_ablated=all_ablated,
        halves=random_halves,
        worst_half=worst,
        limit=limit,
        failed=failed,
        tried=len(values),
    )


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
        metric = badness(changed)
        if metric < best:
            best, chosen, rest = metric, changed, other
