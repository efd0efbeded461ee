"""`interbasis show`: a run in a few numbers, or the sections that a model becomes."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common


def show(
    run: Annotated[str, Parameter(help="Folder of a run, or a model by name as for build.")],
    /,
    *,
    all_rows: Annotated[bool, common.flag("Print every layer and section.", "--all")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Summarise a run, or list the sections of a model before anything is built.

    Tables of more than 24 rows show the first and the last six, unless --all is given.

    For a model, it lists what comes before the first node layer, and every section with its core and how its
    Jacobians are computed, in closed form or by automatic differentiation.

    Example: interbasis show runs/lib

    For a model: interbasis show modadd
    """
    from interbasis.analysis.run_record import outdated_results
    from interbasis.analysis.summary import summarise
    from interbasis.dictionaries.graph import is_dictionary_graph, load_graph
    from interbasis.graph.named_models import MODEL_FAMILIES, open_model
    from interbasis.graph.store import is_unfinished, load_identified
    from interbasis.network.summary import describe
    from interbasis.show.dictionaries.tables import graph_tables
    from interbasis.show.result_tables import section_tables, summary_tables

    if not Path(run).is_dir() and run.partition(":")[0] in MODEL_FAMILIES:
        described = describe(open_model(run).network)
        common.show(described, as_json, lambda summary: section_tables(summary, run, all_rows))
        return
    folder = Path(run)
    if is_dictionary_graph(folder):
        common.show(load_graph(folder).header, as_json, graph_tables, folder)
        return
    tables = lambda summary: summary_tables(summary, run, all_rows)  # noqa: E731
    graph, digest = load_identified(folder)
    state = {"outdated": outdated_results(folder, digest), "unfinished": is_unfinished(folder)}
    summary = summarise(graph).model_copy(update=state)
    common.show(summary, as_json, tables, folder)
