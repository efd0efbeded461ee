"""What data say about themselves: how samples are shown, what classes and outputs are called."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from interbasis.analysis.features.contexts import Images, Rendering, Rows, Tokens

UNREADABLE = "\ufffd"
"""What stands for bytes that are no whole character."""


def renderings(data: object) -> tuple[Rendering | None, Sequence[str], Sequence[str] | None]:
    """(rendering, names of classes, names of outputs) of data that know their kind; else nothing is said.

    Data may have ``kind`` (tokens, images, rows), ``classes``, ``image`` (channels, height, width) and
    ``tokenizer`` (a folder with tokenizer.json). A network with ``token_names`` of its own needs none of it.
    """
    kind, classes = getattr(data, "kind", None), tuple(getattr(data, "classes", ()))
    shape, folder = getattr(data, "image", None), getattr(data, "tokenizer", None)
    if kind == "images" and shape is not None:
        low, high = getattr(data, "pixel_range", (-1.0, 1.0))
        shown = Images(tuple(shape), classes, low, high, getattr(data, "channels_last", False))
        return shown, classes, classes or None
    if kind == "tokens" and folder is not None:
        texts = vocabulary(Path(folder))
        return Tokens(lookup(texts)), (), texts or None
    if kind == "rows":
        return Rows(classes), classes, classes or None
    return None, classes, classes or None


def vocabulary(folder: Path) -> list[str]:
    """The text of every token of a tokenizer folder; empty where there is no readable tokenizer.json."""
    path = folder / "tokenizer.json"
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # no such package or file, or not readable: the library raises plain Exceptions
        return []
    bytewise = "ByteLevel" in repr(tokenizer.decoder)
    return [_text(tokenizer, token, bytewise) for token in range(tokenizer.get_vocab_size())]


def _text(tokenizer: Any, token: int, bytewise: bool) -> str:
    """As it stands in a text, with its space in front; parts of a character as the tokenizer writes them."""
    piece = tokenizer.id_to_token(token)
    if piece is None:
        return ""
    text: str = tokenizer.decode([token], skip_special_tokens=False) if bytewise else UNREADABLE
    return text if UNREADABLE not in text else piece.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")


def lookup(texts: Sequence[str]) -> Callable[[int], str]:
    """The text of a token, its number where there is none."""
    return lambda token: texts[token] if 0 <= token < len(texts) else str(token)
