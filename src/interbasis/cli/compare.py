"""`interbasis compare`: two runs of one model beside each other."""

from interbasis.cli import common


def compare(one: common.Run, other: common.Run, /, *, as_json: common.AsJson = False) -> None:
    """Compare two runs of one model: features, edges, ablation, modules.

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
    common.show(comparison.compare(one, other), as_json, comparison_tables)
