"""What data say about themselves: how samples are shown, what classes and outputs are called."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from interbasis.features.contexts import Images, Rendering, Rows, Tokens


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
    size = tokenizer.get_vocab_size()
    return [_text(tokenizer, token) for token in range(size)]


def _text(tokenizer: Any, token: int) -> str:
    """As it stands in a text, with the space that byte-level tokenizers write as Ġ."""
    piece = tokenizer.id_to_token(token)
    return "" if piece is None else piece.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")


def lookup(texts: Sequence[str]) -> Callable[[int], str]:
    """The text of a token, its number where there is none."""
    return lambda token: texts[token] if 0 <= token < len(texts) else str(token)
