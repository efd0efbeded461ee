"""Text with any tokenizer: `text:PATH,tokenizer=FOLDER`.

Documents are separated by <|endoftext|> in a text file, or are the rows of a parquet column or of a .jsonl
file. A conversation, a row that is a list of messages, is written out by the tokenizer's own chat template.
Other documents begin with the token that the tokenizer says (`_first_token`). Tokens are made
once and stored in the cache; neither text nor tokens have to fit in memory.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from interbasis.base.connection import hub_is_out_of_reach
from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.lazy import optional_import
from interbasis.data.tokens import TokenStream, cached_stream, file_identity, find_column, open_parquet

SEPARATOR = "<|endoftext|>"
COLUMNS = ("text", "content", "story", "messages", "conversation")
"""Names of columns of text or of conversations."""
CHARACTERS_PER_BLOCK = 2**20
"""Characters that are read at a time."""


@dataclass(frozen=True)
class Tokenizer:
    """Tokenizer of texts."""

    encode: Callable[[Sequence[str]], list[list[int]]]
    bos: int | None
    identity: str
    """Changes when the tokenizer does."""
    name: str = ""
    """Its folder or Hub id."""

    def chat(self) -> Callable[[list[dict[str, str]]], str]:
        """Function that writes messages, each a role and its content, by the tokenizer's chat template."""
        transformers = optional_import("transformers", "conversations need the transformers package")
        with Explained(f"could not open the tokenizer {self.name}", Exception):
            local = Path(self.name).is_dir() or hub_is_out_of_reach()
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.name, local_files_only=local)
        if not tokenizer.chat_template:
            raise InterbasisError(
                f"{self.name} has no chat template, so conversations cannot be written out; give text instead"
            )

        def written(messages: list[dict[str, str]]) -> str:
            problem = f"the chat template of {self.name} does not take these messages"
            with Explained(problem, Exception, remedy="expected a list of role and content"):
                return str(tokenizer.apply_chat_template(messages, tokenize=False))

        return written


class Document(NamedTuple):
    """Text of a document; with ``has_start``, its first token is in the text."""

    text: str
    has_start: bool = False


def open_tokenizer(name: str | Path) -> Tokenizer:
    """Open a tokenizer: a folder with tokenizer.json or vocab.json and merges.txt, or a Hub id."""
    folder = Path(name)
    tokenizers = optional_import("tokenizers", "text needs the tokenizers package")
    whole, parts = folder / "tokenizer.json", [folder / "vocab.json", folder / "merges.txt"]
    is_split = not whole.is_file() and all(part.is_file() for part in parts)
    is_hub_id = not folder.exists() and len(str(name)) > 0 and str(name).count("/") <= 1
    if not (whole.is_file() or is_split or is_hub_id):
        raise InterbasisError(
            f"expected a tokenizer at {folder} (tokenizer.json, or vocab.json and merges.txt), "
            "but there is none"
        )
    remedy = "give a folder with tokenizer.json"
    with Explained(f"could not open the tokenizer {name}", Exception, remedy=remedy):
        if is_split:
            engine = tokenizers.implementations.ByteLevelBPETokenizer.from_file(*map(str, parts))._tokenizer
        else:
            if is_hub_id:
                from huggingface_hub import hf_hub_download

                local = hub_is_out_of_reach()
                whole = Path(hf_hub_download(str(name), whole.name, local_files_only=local))
            engine = tokenizers.Tokenizer.from_file(str(whole))
    engine.no_truncation()
    engine.no_padding()
    digest = hashlib.sha256(engine.to_str().encode())
    for file in (folder / "tokenizer_config.json", folder / "chat_template.jinja"):
        digest.update(file.read_bytes() if file.is_file() else b"")

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in engine.encode_batch(list(texts), add_special_tokens=False)]

    front = engine.encode("").ids
    bos = front[0] if front else _first_token(folder, engine.token_to_id)
    return Tokenizer(encode, bos, digest.hexdigest(), str(name))


def open_text(paths: Sequence[Path], tokenizer: Tokenizer, column: str | None = None) -> TokenStream:
    """Open the tokens of text files, or of the text column of parquet files, one after the other."""
    for path in paths:
        if not path.is_file():
            raise InterbasisError(f"expected a text file at {path}, but there is no such file")
        if column is not None and path.suffix not in (".parquet", ".jsonl"):
            raise InterbasisError(f"{path} is plain text and has no columns; leave out column={column}")
    identity = f"text {column} {tokenizer.bos} {tokenizer.identity}\n{file_identity(*paths)}"
    documents = (document for path in paths for document in _documents(path, tokenizer, column))
    return cached_stream(identity, _tokenized(documents, tokenizer))


def _documents(path: Path, tokenizer: Tokenizer, column: str | None) -> Iterator[Document]:
    """Documents of a file, one at a time, without the line ends around them."""
    if path.suffix in (".parquet", ".jsonl"):
        rows = _parquet_rows if path.suffix == ".parquet" else _json_rows
        yield from _row_documents(rows(path, column), tokenizer)
        return
    last = ""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            while block := file.read(CHARACTERS_PER_BLOCK):
                *whole, last = (last + block).split(SEPARATOR)
                yield from (Document(document.strip("\r\n")) for document in whole)
    except UnicodeDecodeError as error:
        raise InterbasisError(
            f"{path} is not text in UTF-8 ({error.reason} at byte {error.start})"
        ) from error
    yield Document(last.strip("\r\n"))


def open_rows(identity: str, rows: Iterable[object], tokenizer: Tokenizer, tokens: int) -> TokenStream:
    """Open the tokens of rows of text or of conversations, up to the row in which so many are reached.

    ``identity`` is whatever decides the rows.
    """

    def first_documents() -> Iterator[np.ndarray]:
        total = 0
        for document in _tokenized(_row_documents(rows, tokenizer), tokenizer):
            yield document
            total += len(document)
            if total >= tokens:
                return

    decisive = f"rows {tokens} {tokenizer.bos} {tokenizer.identity}\n{identity}"
    return cached_stream(decisive, first_documents())


def _row_documents(rows: Iterable[object], tokenizer: Tokenizer) -> Iterator[Document]:
    chat: Callable[[list[dict[str, str]]], str] | None = None
    for number, row in enumerate(rows, 1):
        if isinstance(row, list):
            chat = chat or tokenizer.chat()
            yield Document(chat(row), has_start=True)
        elif isinstance(row, str | None):
            yield Document((row or "").strip("\r\n"))
        else:
            raise InterbasisError(
                f"row {number}: expected text or a list of messages, received {type(row).__name__} "
                f"({str(row)[:40]}); name the column that holds the text as column=NAME"
            )


def _parquet_rows(path: Path, column: str | None) -> Iterator[object]:
    file = open_parquet(path)
    name = find_column(path, file.schema_arrow.names, column, COLUMNS)
    for batch in file.iter_batches(batch_size=256, columns=[name]):
        yield from (row.as_py() for row in batch.column(0))


def _json_rows(path: Path, column: str | None) -> Iterator[object]:
    """Value of every line: the column named, or the first that holds text or messages."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            with Explained(f"{path}, line {number} is not JSON", ValueError, RecursionError):
                row = json.loads(line)
            if not isinstance(row, dict):
                raise InterbasisError(
                    f"{path}, line {number}: expected an object with text or messages, received "
                    f"{type(row).__name__}"
                )
            yield row[find_column(path, tuple(row), column, COLUMNS)]


def _tokenized(documents: Iterator[Document], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    filled = (document for document in documents if document.text)
    while batch := list(islice(filled, 256)):
        for document, ids in zip(batch, tokenizer.encode([d.text for d in batch]), strict=True):
            has_start = document.has_start or tokenizer.bos is None or ids[:1] == [tokenizer.bos]
            yield np.array(ids if has_start else [tokenizer.bos, *ids], np.uint32)


def _first_token(folder: Path, token_number: Callable[[str], int | None]) -> int | None:
    """Token that begins a document where the tokenizer puts none in front of a text itself.

    It is ``bos_token`` of the tokenizer's settings or, in its absence, <|endoftext|>, which models trained as
    GPT-2 was have between documents. With a chat template, ``bos_token`` begins messages and not documents;
    it is taken only where ``add_bos_token`` says so.
    """
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        bos, added = settings.get("bos_token"), settings.get("add_bos_token")
        bos = bos["content"] if isinstance(bos, dict) else bos
        chats = "chat_template" in settings or (folder / "chat_template.jinja").is_file()
    except (OSError, ValueError, AttributeError, KeyError):
        bos, added, chats = None, None, False
    names = [bos, SEPARATOR] if added or not chats else [SEPARATOR]
    for name in names if added is not False else [SEPARATOR]:
        if isinstance(name, str) and (number := token_number(name)) is not None:
            return number
    return None
