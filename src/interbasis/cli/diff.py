"""`interbasis diff`: what two models compute differently."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common
from interbasis.compute.team import Resources
from interbasis.run.named_diff import DiffRequest


class DiffOutput(Resources):
    """Folder and resources of a difference."""

    cache_gigabytes: Annotated[float, Parameter(parse=False)] = 0.0
    out: Path | None = None
    """Folder to store the difference in; default: RUN/diffs/NAME for a run and another model, else none."""
    overwrite: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Discard unfinished work that was begun with other settings."""


def diff(
    *models: Annotated[str, Parameter(help="Models as build takes them, or folders of runs.")],
    request: Annotated[DiffRequest | None, common.Flat] = None,
    output: Annotated[DiffOutput | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Compare what two models, or a series of checkpoints, compute, section by section.

    Both models need the same node layers: checkpoints of one training, a fine-tune, a pruned or quantised
    model. With --transcoder the second model is the first with a transcoder in place of an MLP. Differences
    are stored as diff.json and diff.safetensors in --out, those of a run in its folder, where page and report
    show them; an interrupted command resumes when it is run again.

    Example: interbasis diff modadd:early.safetensors modadd --data modadd --out diffs/early
    """
    from interbasis.analysis.differences.records import DifferenceSeries
    from interbasis.run.named_diff import diff_by_name, folder_in_run
    from interbasis.show.difference_tables import difference_tables, series_tables

    output, request = output or DiffOutput(), request or DiffRequest()
    out = output.out or folder_in_run(models, request)
    found = diff_by_name(models, request, out, restart=output.overwrite, resources=output)
    stored = [] if out is None else [f"\nStored in {out}."]
    if len(found) == 1:
        common.show(found[0].record, as_json, difference_tables, out, *stored)
        return
    series = DifferenceSeries(differences=tuple(part.record for part in found))
    if out is not None:
        from interbasis.show.figures.differences import write_series

        stored.append(f"Heat map: {write_series(series, out / 'series.svg')}")
    common.show(series, as_json, series_tables, out, *stored)
