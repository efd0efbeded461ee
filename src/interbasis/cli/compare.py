"""`interbasis compare`: two runs of one model beside each other."""

from interbasis.cli import common


def compare(one: common.Run, other: common.Run, /, *, as_json: common.AsJson = False) -> None:
    """Compare two runs of one model: features, edges, ablation, modules.

    Example: interbasis compare runs/lib runs/pca
    """
    from interbasis.analysis import compare as comparison
    from interbasis.show.result_tables import comparison_tables

    common.show(comparison.compare(one, other), as_json, comparison_tables)
