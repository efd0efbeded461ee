"""`interbasis features`: what the features of a run mean."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from interbasis.analysis.stages.features import FeaturesRequest, FeaturesResult
from interbasis.cli import common

if TYPE_CHECKING:
    from rich.console import RenderableType


def features(
    run: common.Run,
    /,
    *,
    request: Annotated[FeaturesRequest | None, common.Flat] = None,
    model: common.ModelName = None,
    trust: common.Trust = False,
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Find out what the features of a run respond to and what they do.

    Labels, class and position statistics, direct effects and histograms are stored as features.json in the
    run, dataset examples as examples.json. An interrupted command resumes when it is run again.

    Example: interbasis features runs/lib
    """
    from interbasis.analysis.stages import features as stage

    result = stage.run(common.open_run(run, model, trust).on(device), request or FeaturesRequest())
    common.show(result, as_json, lambda result: _tables(result, run), run)


def _tables(result: FeaturesResult, run: Path) -> "list[RenderableType]":
    from interbasis.show.result_tables import feature_tables

    return [*feature_tables(result), f"\nStored as features.json and examples.json in {run}."]
