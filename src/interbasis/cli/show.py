"""`interbasis show`: a run in a few numbers."""

from interbasis.cli import common


def show(run: common.Run, /, *, as_json: common.AsJson = False) -> None:
    """Summarise a run.

    Example: interbasis show runs/lib
    """
    from interbasis.graph import load
    from interbasis.summary import summarise, tables

    common.show(summarise(load(run)) | {"run": str(run)}, as_json, tables)
