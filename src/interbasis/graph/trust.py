"""Trust in what a run names: a model or data by a stranger's name may be any code and any file.

A run that this user built is signed (`base/signatures.py`), and its names are opened without a word. The
names of any other run are opened after `trust`, which signs them, or not at all: the user names a model and
data in their place.
"""

from collections.abc import Iterable
from pathlib import Path

from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.base.signatures import NoKeyError, sign, standing, why_no_key
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import Provenance
from interbasis.graph.named_sources import NamedSources, source_location
from interbasis.graph.store import read_origin


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


def trust(run: str | Path) -> None:
    """Trust whoever built a run: the model and data that it names are opened, from now on.

    Their names are signed in the run's folder with a key of this user. A model by the name ``python:…`` is
    code that runs with all rights of the user; the message that refuses a run says what it names.

    Args:
        run: Folder of the run.

    Raises:
        InterbasisError: There is no run.
    """
    folder = Path(run)
    trust_names(folder, NamedSources.from_provenance(*read_origin(folder), folder))


def trust_names(folder: Path, sources: NamedSources) -> None:
    """Sign names beside what holds them; where that cannot be stored, they are trusted in this process."""
    if not sources.unsafe() or standing(folder, sources.content, sources.places) == "signed":
        return
    try:
        sign(folder, sources.content, sources.places)
    except (NoKeyError, InterbasisError) as error:
        logger.warning(
            f"what {folder} names is trusted this time only, since it could not be signed: {error}"
        )


def require_trust(folder: Path | None, sources: NamedSources, kinds: Iterable[str]) -> None:
    """Names of certain kinds may be opened: they are public, or this user has signed all that are there.

    Raises:
        InterbasisError: They may not; the message says what would be opened, and what to do.
    """
    unsafe = sources.unsafe(kinds)
    state = standing(folder, sources.content, sources.places) if unsafe else "signed"
    if state == "signed":
        return
    here = folder or "this graph"
    would = " and ".join(f"{'run' if name.startswith('python:') else 'read'} {name}" for name in unsafe)
    if state == "elsewhere":
        raise InterbasisError(
            f"{here} was signed when its names meant other files than they mean now: it would {would}, that "
            f"is {_places(sources, unsafe)}; move them back, change to the folder where it was built, name "
            "other sources with --model and --data, or add --trust once"
        )
    raise InterbasisError(
        f"{here} has no signature of yours (somebody else, another machine or version 0.1 built it"
        f"{why_no_key()}), so what it names is not opened: it would {would}; name sources yourself with "
        "--model and --data, or, if you trust whoever built it, add --trust once (interbasis.trust in Python)"
    )


def _places(sources: NamedSources, names: Iterable[str]) -> str:
    """Files that names mean now, in words."""
    known = [source_location(name, sources.folder).replace("\n", ", ") for name in names]
    return " and ".join(filter(None, known)) or "nothing that is there"
