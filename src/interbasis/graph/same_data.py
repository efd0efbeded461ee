"""Data by name may have changed since a run was built on them; their fingerprint is stored with it."""

from pathlib import Path

from interbasis.base.errors import InterbasisError
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import Provenance


def require_same_data(
    data: Data, provenance: Provenance, run: Path | None = None, *, kind: str = "data"
) -> None:
    """Data that a run names are those that it was built on.

    Args:
        data: The data, opened by their name.
        provenance: Where the run's graph comes from.
        run: Folder of the run, for the message.
        kind: Which data of the build: ``data``, ``jacobian_data`` or ``edge_data``.

    Raises:
        InterbasisError: They have changed since.
    """
    stored = provenance.data_fingerprints.get(kind)
    received = (data if isinstance(data, Batches) else Batches(data)).fingerprint()
    if stored is not None and received != stored:
        option = f"--{kind.replace('_', '-')}"
        raise InterbasisError(
            f"{getattr(data, 'spec', '') or 'the data'} are not the data that {run or 'this graph'} was "
            f"built on: their SHA-256 begins with {received[:12]}, that of the build's with {stored[:12]}; "
            f"restore them, build the run again, or name data with {option} to use others on purpose"
        )
