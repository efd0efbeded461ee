"""Features: what they respond to and what they do. Stored as `features.json`, examples as `examples.json`."""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from interbasis.features.records import ExampleKind, FeatureExamples, Idle, LayerFeatures
from interbasis.run.records import DataUsed, Result
from interbasis.runtime.progress import progress_bar
from interbasis.runtime.records import Record
from interbasis.runtime.team import ALONE

if TYPE_CHECKING:
    from interbasis.run.opened import OpenedRun


class FeaturesRequest(Record):
    """How many features, and how many examples of each."""

    data: str | None = None
    """Data to use; default: what the run was built on."""
    top: int = Field(32, ge=1)
    """Features of each layer, the constant left out."""
    ends: int = Field(8, ge=1)
    """Most positive and most negative examples of each feature."""
    bands: int = Field(4, ge=0)
    """Quantile bands of examples in between."""
    per_band: int = Field(4, ge=1)
    """Examples in each band."""
    mean_effect_samples: int = Field(64, ge=0)
    """Samples over which effects on a language model's outputs through all blocks above are averaged; 0 is
    none."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the examples in between."""


class FeaturesResult(Result):
    """Labels, statistics and direct effects of features, by layer."""

    file: ClassVar[str] = "features"
    made_by: ClassVar[str] = "features"

    data: DataUsed
    layers: dict[str, LayerFeatures]
    idle: tuple[Idle, ...] = ()


class ExamplesResult(Result):
    """Dataset examples of features, by layer."""

    file: ClassVar[str] = "examples"
    made_by: ClassVar[str] = "features"

    kind: ExampleKind
    layers: dict[str, tuple[FeatureExamples, ...]]


def run(opened: "OpenedRun", request: FeaturesRequest) -> FeaturesResult:
    """Find out what the features of a run respond to and what they do.

    Args:
        opened: A run with its network and data.
        request: How many features and examples.

    Returns:
        The result, which is stored in the run's folder, if it has one, with the examples beside it.

    Raises:
        InterbasisError: The data do not fit the network.
    """
    if opened.team.size > 1:  # one pass over the data for all layers: the first process makes it
        if opened.team.is_first:
            run(replace(opened, team=ALONE), request)
        opened.team.wait_for_all()
        result = opened.stored(FeaturesResult)
        assert result is not None
        return result
    features, examples = analyse(opened, request)
    opened.store(features)
    opened.store(examples)
    opened.checkpoints("features", request, fingerprint=features.data.fingerprint).finish(
        features.file, examples.file
    )
    return features


def analyse(opened: "OpenedRun", request: FeaturesRequest) -> tuple[FeaturesResult, ExamplesResult]:
    """The results without storing them: all layers in one pass over the data."""
    from interbasis.data.batches import Batches
    from interbasis.features.analysis import Analysis, Presentation
    from interbasis.features.dataset_examples import Plan

    data = opened.data(request.data, "train")
    used = DataUsed.from_data(data)
    plan = Plan(ends=request.ends, bands=request.bands, per_band=request.per_band, seed=request.seed)
    batches = data if isinstance(data, Batches) else Batches(data)
    presentation = Presentation.of(opened.network, data, batches)
    analysis = Analysis(
        opened.graph, opened.network, request.top, plan, presentation, request.mean_effect_samples
    )
    checkpoints = opened.checkpoints("features", request, fingerprint=used.fingerprint)
    with progress_bar(opened.progress) as advance:
        layers = analysis.run(batches, advance, checkpoints)
    examples = ExamplesResult(kind=presentation.rendering.kind, layers=analysis.examples())
    return FeaturesResult(data=used, layers=layers, idle=analysis.idle()), examples
