"""`interbasis merge`: from shards to a run."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common


def merge(
    shards: Annotated[
        list[Path],
        Parameter(help="Files that build --shard wrote, in any order, or folders of them.", negative=""),
    ],
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder of the run.")],
    trust: common.Trust = False,
    as_json: common.AsJson = False,
) -> None:
    """Join the shards of one round of a build; after the last round, save the run.

    Model and data are opened by the names that the shards hold. Shards that are missing, doubled, truncated
    or of another build are refused.

    Example: interbasis merge runs/lib/shards --out runs/lib
    """
    from interbasis.analysis.summary import summarise
    from interbasis.compute.shards import RoundMerged
    from interbasis.run.dictionary_run import DictionaryRun
    from interbasis.run.shards import merge as merge_shards
    from interbasis.show.dictionaries.tables import graph_tables
    from interbasis.show.result_tables import merge_lines, summary_tables

    result = merge_shards(shards, out, trust=trust)
    if isinstance(result, RoundMerged):
        common.show(result, as_json, lambda merged: merge_lines(merged, out), out)
        return
    if isinstance(result, DictionaryRun):
        common.show(result.graph.header, as_json, graph_tables, out)
        return
    common.show(summarise(result.graph), as_json, lambda summary: summary_tables(summary, str(out)), out)
