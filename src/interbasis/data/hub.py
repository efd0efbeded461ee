"""The Hugging Face Hub: whether it is within reach, and data sets as parquet files (`hf:DATASET`)."""

import socket
import urllib.request
from functools import cache
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

from interbasis.data.samples import Split
from interbasis.runtime.errors import InterbasisError

SECONDS_TO_CONNECT = 3.0
"""Without an answer, the Hub counts as out of reach."""
WORDS = {"train": ("train",), "test": ("test", "validation", "valid")}


def parquet_files(name: str, split: Split) -> tuple[list[Path], bool]:
    """The files of a split, in order, and whether they are the whole of it (not to be split once more)."""
    folder = Path(name) if Path(name).is_dir() else _downloaded(name)
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise InterbasisError(f"hf:{name} has no parquet files; expected at least one")
    return files_of_split(f"hf:{name}", files, split)


def files_of_split(name: str, files: list[Path], split: Split) -> tuple[list[Path], bool]:
    """Those whose names say the split, and whether they are the whole of it; all, if no name says any."""
    named = {word: [file for file in files if word in file.name.lower()] for word in sum(WORDS.values(), ())}
    for word in WORDS[split]:
        if named[word]:
            return named[word], True
    if any(named[word] for word in WORDS["test"]):
        raise InterbasisError(f"{name} has no files for the {split} split")
    return files, False


def hub_is_out_of_reach() -> bool:
    """Whether only what is in the Hub's cache can be used: it is told to work offline, or does not answer.

    Its own clients try for half a minute before they say so.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    endpoint = urlsplit(constants.ENDPOINT)
    proxy = urllib.request.getproxies().get(endpoint.scheme)
    if proxy and not urllib.request.proxy_bypass(endpoint.hostname or ""):
        endpoint = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    default_port = 443 if endpoint.scheme == "https" else 80
    return not can_connect(endpoint.hostname or "", endpoint.port or default_port)


@cache
def can_connect(host: str, port: int) -> bool:
    """Whether a host answers; looking its name up counts, which can take longer than any connection."""
    answered: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=SECONDS_TO_CONNECT):
                answered.append(True)
        except OSError:
            pass

    trying = Thread(target=connect, daemon=True)
    trying.start()
    trying.join(SECONDS_TO_CONNECT)
    return bool(answered)


def _downloaded(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise InterbasisError(
            f"hf:{name} needs the huggingface_hub package; install it with: pip install 'interbasis[hf]'"
        ) from error
    try:
        return Path(
            snapshot_download(
                name, repo_type="dataset", allow_patterns="*.parquet", local_files_only=hub_is_out_of_reach()
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InterbasisError(
            f"could not fetch the data set {name} ({reason}); without a network, put its parquet files into "
            "a folder and name it as hf:FOLDER"
        ) from error
