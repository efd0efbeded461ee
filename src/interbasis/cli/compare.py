"""`interbasis compare`: two runs beside each other."""

from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common


def compare(
    one: common.Run,
    other: common.Run,
    /,
    *,
    data: Annotated[
        str | None,
        Parameter(
            help="Match features by their correlation over these data, with both models; for two seeds."
        ),
    ] = None,
    trust: common.Trust = False,
    as_json: common.AsJson = False,
) -> None:
    """Compare two runs: features matched one to one, edges between them, ablation, modules.

    Runs of one model, or of two with the same node layers: a base and its fine-tune, two checkpoints. For
    models that have nothing in common but the data, such as two seeds, add --data.

    Example: interbasis compare runs/lib runs/pca
    """
    from interbasis.analysis import compare as comparison
    from interbasis.analysis.dictionaries.compare import compare_graphs
    from interbasis.dictionaries.graph import is_dictionary_graph, load_graph
    from interbasis.show.dictionaries.tables import comparison_tables as dictionary_tables
    from interbasis.show.result_tables import comparison_tables

    if is_dictionary_graph(one) and is_dictionary_graph(other):
        common.show(compare_graphs(load_graph(one), load_graph(other)), as_json, dictionary_tables)
        return
    if data is None:
        result = comparison.compare(one, other)
    else:
        runs = [common.open_run(run, common.RunOptions(trust=trust)) for run in (one, other)]
        result = comparison.compare_on(runs[0], runs[1], runs[0].data(data, "train"))
    common.show(result, as_json, comparison_tables)
