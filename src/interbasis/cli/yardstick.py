"""`interbasis yardstick`: methods that rank directions, measured the same way."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.analysis.yardstick.records import YardstickRequest
from interbasis.cli import common


def yardstick(
    model: Annotated[
        str, Parameter(help="modadd[:PATH], mlp:PATH, hf:FOLDER-OR-HUB-ID or python:MODULE:FUNCTION.")
    ],
    /,
    *,
    data: Annotated[
        str | None,
        Parameter(help="Data that methods are fitted on, and tested on its test set; default: the model's."),
    ] = None,
    test_data: Annotated[str | None, Parameter(help="Other data to test on.")] = None,
    twin: Annotated[
        list[str] | None,
        Parameter(help="Model trained like this one from another seed, for stability; may be repeated."),
    ] = None,
    out: Annotated[Path | None, Parameter(help="Folder to store the result and unfinished work in.")] = None,
    request: Annotated[YardstickRequest | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Compare methods that rank directions: what is lost when only the first ones are kept.

    Each method ranks the directions of a node layer's activations. The first r are kept, the others put at
    their mean, and the rest of the network runs on: rise of the cross-entropy and divergence from the
    original outputs, layer by layer and in all layers at once, with 95 % bootstrap intervals over the test
    samples. With --out, an interrupted command resumes.

    Example: interbasis yardstick modadd --methods lib,pca,random --out runs/yardstick
    """
    from interbasis.analysis.yardstick import stage
    from interbasis.compute.team import torchrun_team
    from interbasis.graph.named_models import open_model
    from interbasis.show.yardstick_tables import yardstick_tables

    named = open_model(model)
    team = torchrun_team()
    result = stage.run(
        named.network, named.open_data(data), named.open_data(test_data or data, "test"),
        request or YardstickRequest(),
        twins={name: open_model(name).network for name in twin or ()},
        model=model, folder=out, team=team,
    )  # fmt: skip
    common.show(result, as_json, yardstick_tables)
