"""`interbasis show`: a run in a few numbers."""

from interbasis.cli import common


def show(run: common.Run, /, *, as_json: common.AsJson = False) -> None:
    """Summarise a run.

    Example: interbasis show runs/lib
    """
    from interbasis.graph.store import load
    from interbasis.run.summary import summarise, tables

    common.show(summarise(load(run)) | {"run": str(run)}, as_json, tables)
