"""Signatures of what this user made, with a key that lies in the user's configuration folder.

A run may come from anybody, and it names a model and data. `signature.json` beside it says which names this
user gave or has trusted: an HMAC over the names, what they belong to, and the places that they mean on this
machine. Without the key nobody can make one; a signature of other names, or of another graph, does not fit.

    CONFIG/interbasis/key      64 hexadecimal digits, mode 0600; CONFIG is XDG_CONFIG_HOME or ~/.config
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from interbasis.base.errors import InterbasisError
from interbasis.base.files import check_writable, inside, write_text_atomically
from interbasis.base.records import Record

SIGNATURE = "signature.json"
PURPOSE = "names of an interbasis run, 1"
"""Keeps these signatures apart from any others that the key may make one day."""
MAX_SIGNATURES = 64
"""Signatures in a file: a run in a shared folder may be signed by several users."""
MAX_BYTES = 100_000
"""Longest file of signatures that is read."""

Content = Mapping[str, str]
Standing = Literal["signed", "elsewhere", "unsigned"]
"""Signed here; signed, but the names meant other places then; not signed by this user."""


class NoKeyError(Exception):
    """There is no key, and the message says why."""


class Signature(Record):
    """One user's signature."""

    places: str = Field(max_length=64)
    """HMAC of the places that the names mean; the places themselves would tell about the user's machine."""
    names: str = Field(max_length=64)
    """HMAC of names, what they belong to, and ``places``."""


class SignatureFile(Record):
    """`signature.json`."""

    format: Literal["interbasis-signature"] = "interbasis-signature"
    signatures: tuple[Signature, ...] = ()


_trusted: set[str] = set()
"""Identities signed or trusted in this process; they hold where no signature can be stored."""


def sign(folder: Path, content: Content, places: Content) -> None:
    """Sign names in a folder, beside the signatures that are there: of other users, or of an older run.

    In this process they are trusted even if the signature cannot be stored.

    Raises:
        NoKeyError: There is no key and none can be made.
        InterbasisError: The signature cannot be written.
    """
    _trusted.add(_identity(content, places))
    key = user_key(make=True)
    signature = _signature(key, content, places)
    older = [other for other in _stored(folder) if other != signature]
    file = SignatureFile(signatures=(signature, *older[: MAX_SIGNATURES - 1]))
    write_text_atomically(inside(folder, SIGNATURE), file.to_json(indent=1) + "\n")


def standing(folder: Path | None, content: Content, places: Content) -> Standing:
    """Whether this user has signed names in a folder, and whether they still mean the same places."""
    if _identity(content, places) in _trusted:
        return "signed"
    try:
        key = user_key()
    except NoKeyError:
        return "unsigned"
    now = _signature(key, content, places)
    result: Standing = "unsigned"
    for signature in [] if folder is None else _stored(folder):
        if hmac.compare_digest(signature.names, now.names):
            return "signed"
        then = _hmac(key, {"content": dict(content), "places": signature.places})
        if hmac.compare_digest(signature.names, then):
            result = "elsewhere"
    return result


def user_key(make: bool = False) -> bytes:
    """The user's key; made where there is none and ``make`` says so.

    Raises:
        NoKeyError: There is none, none can be made, or others can read it.
    """
    try:
        path = config_folder() / "key"
        if make and not path.exists():
            _make_key(path)
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise NoKeyError(f"{path} can be read by others; delete it to have a new one made")
            text = file.read(1000)
        key = bytes.fromhex(text.decode("ascii"))
        if len(key) != 32:
            raise ValueError(f"{len(key)} bytes")
        return key
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        reason = getattr(error, "strerror", None) or error
        place = getattr(error, "filename", None) or "the user's configuration folder"
        raise NoKeyError(f"there is no key in {place} ({reason})") from error
    except ValueError as error:
        raise NoKeyError(f"{path} does not hold a key; delete it to have a new one made") from error


def why_no_key() -> str:
    """Reason why this user can have no key, as the end of a sentence; empty where there is or can be one."""
    try:
        user_key()
    except NoKeyError as error:
        try:
            if not (config_folder() / "key").exists():
                check_writable(config_folder())
                return ""
        except (InterbasisError, RuntimeError):
            pass
        return f"; {error}"
    return ""


def config_folder() -> Path:
    """Folder of the user's settings: XDG_CONFIG_HOME, where that is an absolute path, or ~/.config."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".config") / "interbasis"


def _make_key(path: Path) -> None:
    """Make the key whole or not at all: of two processes, both use that of the first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, it does not replace the key of another process
    finally:
        temporary.unlink()


def _stored(folder: Path) -> tuple[Signature, ...]:
    """The signatures in a folder; a file that is no such file holds none."""
    try:
        with open(inside(folder, SIGNATURE), "rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            return ()
        signatures = SignatureFile.model_validate_json(text).signatures
    except (OSError, ValidationError, InterbasisError):
        return ()
    return tuple(item for item in signatures if (item.names + item.places).isascii())


def _signature(key: bytes, content: Content, places: Content) -> Signature:
    hidden = _hmac(key, {"of": "places", "places": dict(places)})
    return Signature(places=hidden, names=_hmac(key, {"content": dict(content), "places": hidden}))


def _hmac(key: bytes, value: Mapping[str, object]) -> str:
    return hmac.new(key, _canonical({"purpose": PURPOSE, **value}), hashlib.sha256).hexdigest()


def _identity(content: Content, places: Content) -> str:
    return hashlib.sha256(_canonical({"content": dict(content), "places": dict(places)})).hexdigest()


def _canonical(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
