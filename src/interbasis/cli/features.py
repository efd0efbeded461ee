"""`interbasis features`: what the features of a run mean."""

from typing import Annotated

from interbasis.analysis.stages.features import FeaturesRequest
from interbasis.cli import common


def features(
    run: common.Run,
    /,
    *,
    request: Annotated[FeaturesRequest | None, common.Flat] = None,
    options: Annotated[common.DeviceOptions | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Find out what the features of a run respond to and what they do.

    Labels, class and position statistics, direct effects and histograms are stored as features.json in the
    run, dataset examples as examples.json. An interrupted command resumes when it is run again.

    Example: interbasis features runs/lib
    """
    stored = f"\nStored as features.json and examples.json in {run}."
    common.show_stage(run, "features", request or FeaturesRequest(), as_json, options, lambda _: stored)
