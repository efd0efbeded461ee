"""`interbasis show`: a run in a few numbers."""

from interbasis.cli import common


def show(run: common.Run, /, *, as_json: common.AsJson = False) -> None:
    """Summarise a run.

    Example: interbasis show runs/lib
    """
    from interbasis.graph.store import load
    from interbasis.run.summary import summarise
    from interbasis.terminal import summary_tables

    common.show(summarise(load(run)), as_json, lambda summary: summary_tables(summary, str(run)), run)
