"""Curves: the metric at fractions of the edges kept. Stored as `curves.json`."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from interbasis.ablation.records import Curves, Sparsity
from interbasis.run.records import DataUsed, Result
from interbasis.runtime.literals import Metric
from interbasis.runtime.records import Record

if TYPE_CHECKING:
    from interbasis.run.opened import OpenedRun


class CurvesRequest(Record):
    """What the metric is measured on."""

    data: str | None = None
    """Data to evaluate on; default: the test set of what the run was built on."""
    metric: Metric | None = None
    """accuracy or cross_entropy; default: cross_entropy for language models, else accuracy."""
    seed: int = Field(0, ge=0)
    """Seed of the bootstrap."""


class CurvesResult(Result):
    """Curves of every section and of all at once, with the sparsity of the edges."""

    file: ClassVar[str] = "curves"
    made_by: ClassVar[str] = "curves"

    data: DataUsed
    curves: Curves
    sparsity: dict[str, Sparsity]
    """By the name of the section's source layer."""


def run(opened: "OpenedRun", request: CurvesRequest) -> CurvesResult:
    """Measure the curves of a run.

    Args:
        opened: A run with its network and data.
        request: Metric and data.

    Returns:
        The result, which is stored in the run's folder, if it has one.

    Raises:
        InterbasisError: The graph has no edges.
    """
    from interbasis.ablation.curves import sparsity_curves
    from interbasis.ablation.sparsity import interaction_sparsity

    data = opened.data(request.data)
    used = DataUsed.from_data(data)
    checkpoints = opened.checkpoints("curves", request, fingerprint=used.fingerprint)
    curves = sparsity_curves(
        opened.network, opened.graph, data, request.metric,
        seed=request.seed, checkpoints=checkpoints, progress=opened.progress, team=opened.team,
    )  # fmt: skip
    sparsity = {section.source: section for section in interaction_sparsity(opened.graph)}
    result = CurvesResult(data=used, curves=curves, sparsity=sparsity)
    opened.store(result)
    opened.finish(checkpoints, result.file)
    return result
