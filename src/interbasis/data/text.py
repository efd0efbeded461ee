"""Text with any tokenizer: `text:PATH,tokenizer=FOLDER`.

Documents are separated by <|endoftext|> in a text file, or are the rows of a parquet column. A conversation, a
list of messages in a parquet column or in a line of a .jsonl file, is written out by the tokenizer's own chat
template. Every document begins with a token as the tokenizer says (`_beginning`). Tokens are made once and kept in the
cache; neither text nor tokens have to fit in memory.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from interbasis.data.flat import Flat, converted, identity_of
from interbasis.data.tokens import column_of, open_parquet
from interbasis.runtime.errors import InterbasisError

SEPARATOR = "<|endoftext|>"
CHARACTERS_PER_BLOCK = 2**20
"""Characters that are read at a time."""


@dataclass(frozen=True)
class Tokenizer:
    """What is needed of a tokenizer."""

    encode: Callable[[Sequence[str]], list[list[int]]]
    bos: int | None
    identity: str
    """Changes when the tokenizer does."""


def open_tokenizer(name: str | Path) -> Tokenizer:
    """A Hugging Face tokenizer: a folder with tokenizer.json or vocab.json and merges.txt, or a Hub id."""
    folder = Path(name)
    try:
        import tokenizers
    except ImportError as error:
        raise InterbasisError(
            "text needs the tokenizers package; install it with: pip install 'interbasis[hf]'"
        ) from error
    try:
        if (folder / "tokenizer.json").is_file():
            engine = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            from tokenizers.implementations import ByteLevelBPETokenizer

            files = [str(folder / file) for file in ("vocab.json", "merges.txt")]
            engine = ByteLevelBPETokenizer.from_file(*files)._tokenizer
        elif folder.exists() or not str(name) or str(name).count("/") > 1:
            raise InterbasisError(
                f"expected a tokenizer at {folder} (tokenizer.json, or vocab.json and merges.txt), "
                "but there is none"
            )
        else:
            engine = tokenizers.Tokenizer.from_pretrained(str(name))
    except InterbasisError:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception
        raise InterbasisError(
            f"could not open the tokenizer {name} ({str(error).splitlines()[0]}); give a folder with "
            "tokenizer.json"
        ) from error
    engine.no_truncation()
    engine.no_padding()
    digest = hashlib.sha256(engine.to_str().encode()).hexdigest()

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in engine.encode_batch(list(texts), add_special_tokens=False)]

    front = engine.encode("").ids
    return Tokenizer(encode, front[0] if front else _beginning(folder, engine.token_to_id), digest)


def open_text(paths: Sequence[Path], tokenizer: Tokenizer, column: str | None = None) -> Flat:
    """The tokens of text files, or of the text column of parquet files, one after the other."""
    for path in paths:
        if not path.is_file():
            raise InterbasisError(f"expected a text file at {path}, but there is no such file")
    identity = f"text {column} {tokenizer.bos} {tokenizer.identity}\n{identity_of(*paths)}"
    documents = (document for path in paths for document in documents_of(path, column))
    return converted(identity, _tokenized(documents, tokenizer))


def documents_of(path: Path, column: str | None = None) -> Iterator[str]:
    """The documents of a file, one at a time, without the line ends around them."""
    if path.suffix == ".parquet":
        file = open_parquet(path)
        name = column_of(path, file.schema_arrow.names, (column,) if column else ("text", "content", "story"))
        for batch in file.iter_batches(batch_size=256, columns=[name]):
            yield from (str(row.as_py() or "").strip("\r\n") for row in batch.column(0))
        return
    rest = ""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            while block := file.read(CHARACTERS_PER_BLOCK):
                *whole, rest = (rest + block).split(SEPARATOR)
                yield from (document.strip("\r\n") for document in whole)
    except UnicodeDecodeError as error:
        raise InterbasisError(
            f"{path} is not text in UTF-8 ({error.reason} at byte {error.start})"
        ) from error
    yield rest.strip("\r\n")


def _tokenized(documents: Iterator[str], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    wanted = (document for document in documents if document)
    while some := list(islice(wanted, 256)):
        for ids in tokenizer.encode(some):
            front = [] if tokenizer.bos is None or ids[:1] == [tokenizer.bos] else [tokenizer.bos]
            yield np.array(front + ids, np.uint32)


def _beginning(folder: Path, number_of: Callable[[str], int | None]) -> int | None:
    """The token that begins a document where the tokenizer puts none in front of a text itself.

    It is ``bos_token`` of the tokenizer's settings or, in its absence, <|endoftext|>, which GPT-2's successors
    have between documents. With a chat template, ``bos_token`` begins messages and not documents; it counts
    only where ``add_bos_token`` says so.
    """
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        named, added = settings.get("bos_token"), settings.get("add_bos_token")
        bos = named["content"] if isinstance(named, dict) else named
        chats = "chat_template" in settings or (folder / "chat_template.jinja").is_file()
    except (OSError, ValueError, AttributeError, KeyError):
        bos, added, chats = None, None, False
    names = [bos, SEPARATOR] if added or not chats else [SEPARATOR]
    for name in names if added is not False else [SEPARATOR]:
        if isinstance(name, str) and (number := number_of(name)) is not None:
            return number
    return None
