"""Token data by name: files of tokens, of text, or a data set of the Hugging Face Hub, as windows.

Which tokens are the training and which the test set:

- a name with {split} in it, `tokens:stories_{split}.uint16`, is two files;
- of a folder or a pattern with *, the files whose names say "train", or "test" or "valid";
- a file whose name says "test" or "valid" is a test set, and is read whole whichever split is asked for;
- a file whose name says "train" is a training set; its test set is the file beside it of the same name with
  "test" (or "valid", "validation") instead;
- of any other file the last tenth of the documents is the test set, or of the tokens, where documents are too
  long for that. part=all reads the whole of it.

`hf:DATASET,stream=yes` downloads nothing: ranges of the files are read at one commit (`data.hub_files`). Of a
column of tokens, a process reads the row groups that its samples lie in (`data.row_groups`). How many tokens
a text becomes is known only when it is tokenized, so of text the first samples=N are read, from the
beginning, by every process.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from interbasis.base.errors import InterbasisError
from interbasis.data.flat import Flat
from interbasis.data.hub import files_of_split, parquet_files
from interbasis.data.hub_files import pinned
from interbasis.data.joined import identity_of_files, open_joined, token_files
from interbasis.data.row_groups import identity_of_streamed, open_streamed, read_footer, rows_of
from interbasis.data.samples import Samples, Split
from interbasis.data.text import COLUMNS as TEXT_COLUMNS
from interbasis.data.text import Tokenizer, open_rows, open_text, open_tokenizer
from interbasis.data.tokens import COLUMNS, open_parquet, open_parquets, open_tokens
from interbasis.data.windows import Windows, samples, stride
from interbasis.data.windows import split as split_documents

TEST_WORDS = ("test", "validation", "valid", "val")
OWN_OPTIONS = ("part", "column", "tokenizer", "stream", "revision")


def load(
    family: str,
    path: str,
    split: Split,
    options: dict[str, str],
    tokenizer: str = "",
    count: int | None = None,
) -> Samples:
    """The samples of `tokens:`, `text:` or `hf:` data.

    ``tokenizer`` is used where no option names one. The first ``count`` samples are wanted: more may be
    there, but a stream is not looked at beyond them.
    """
    name = f"{family}:{path}"
    own = {key: options[key] for key in OWN_OPTIONS if key in options}
    part = own.get("part", "")
    if part not in ("", "all"):
        raise InterbasisError(f"{name}: the only part that can be chosen is part=all, not part={part}")
    windows = _windows(name, {key: value for key, value in options.items() if key not in own})
    _check_hub_options(name, family, own, windows)
    if own.get("stream") == "yes":
        return _streamed(_Wanted(name, split, windows, own, tokenizer, count), path)
    files, whole = _files(family, path, split, own.get("revision"))
    many = family == "tokens" and _is_many(path)
    if family != "hf" and not many and split == "test" and files[0] != Path(path):
        name = f"{family}:{files[0]}"  # the file that is read, in place of the training set's or the pattern
        own |= {} if _says(files[0], TEST_WORDS) else {"part": "all"}
    wanted = _Wanted(name, split, windows, own, tokenizer, count)
    holds_tokens = family == "tokens" or (
        family == "hf" and bool(set(COLUMNS) & set(open_parquet(files[0]).schema_arrow.names))
    )
    encoder = wanted.encoder(holds_tokens)
    wanted = wanted.with_beginning_of(encoder)
    documents = windows.per == "document" or not (whole or part)
    if many:
        flat = open_joined(files, own.get("column"), documents)
    else:
        flat = _open(files, encoder, own.get("column"))
    if documents and flat.starts is None:
        flat = flat.documents(wanted.windows.bos, wanted.windows.eos)
    beside = _beside(files[0])
    return wanted.made(flat, encoder, whole, identity_of_files(files) if many else "", beside)


@dataclass(frozen=True)
class _Wanted:
    """What was asked for."""

    name: str
    split: Split
    windows: Windows
    own: dict[str, str]
    """Options that say what is read, as they are spelt."""
    tokenizer: str
    """Of the model, where there is one."""
    count: int | None
    """How many samples; None is all of them."""

    def encoder(self, holds_tokens: bool) -> Tokenizer | None:
        """The tokenizer of text; None where the files hold tokens."""
        if holds_tokens:
            return None
        named = self.own.get("tokenizer") or self.tokenizer
        if not named:
            raise InterbasisError(
                f"{self.name} is text, so a tokenizer is needed: add ,tokenizer=FOLDER (one with "
                "tokenizer.json)"
            )
        return open_tokenizer(named)

    def with_beginning_of(self, encoder: Tokenizer | None) -> "_Wanted":
        """The same with the token that a tokenizer begins documents with, where none is named."""
        named = self.windows.bos is not None or self.windows.eos is not None
        if encoder is None or encoder.bos is None or named:
            return self
        return replace(self, windows=self.windows.model_copy(update={"bos": encoder.bos}))

    def made(
        self, flat: Flat, encoder: Tokenizer | None, whole: bool, identity: str, beside: str = ""
    ) -> Samples:
        """The samples, with a spec that opens them again; ``beside`` is a tokenizer next to the files."""
        if not (whole or "part" in self.own):
            flat = split_documents(flat, self.windows, self.split, self.name)
        given = self.own | ({"tokenizer": self.tokenizer} if encoder and "tokenizer" not in self.own else {})
        given |= {key: _text(value) for key, value in self.windows.model_dump(exclude_defaults=True).items()}
        given |= {"context": str(self.windows.context)}
        spec = ",".join([self.name, *(f"{key}={given[key]}" for key in sorted(given))])
        folder = given.get("tokenizer") or beside
        return replace(
            samples(flat, self.windows, self.name),
            spec=spec,
            tokenizer=Path(folder) if folder else None,
            identity=f"{identity} {self.split} {spec}" if identity else "",
            revision=self.own.get("revision", "") if "stream" in self.own else "",
        )


def _streamed(wanted: _Wanted, path: str) -> Samples:
    """Of a data set of the Hub that is not downloaded."""
    dataset = pinned(path, wanted.own.get("revision"))
    wanted = replace(wanted, own=wanted.own | {"revision": dataset.commit})
    paths, whole = files_of_split(wanted.name, [file.path for file in dataset.files], wanted.split)
    files = [dataset.file(path) for path in paths]
    everything, column = whole or "part" in wanted.own, wanted.own.get("column")
    columns = read_footer(dataset, files[0]).columns
    encoder = wanted.encoder(bool(set(COLUMNS) & set(columns)))
    wanted = wanted.with_beginning_of(encoder)
    identity = identity_of_streamed(dataset, files)
    tokens = None if wanted.count is None else wanted.count * stride(wanted.windows)
    if encoder is None:
        cut = None if everything else wanted.windows.held_out
        flat = open_streamed(dataset, files, column, tokens if everything else None, cut)
    elif tokens is None or not everything:
        remedy = "add samples=N" if everything else "add samples=N and part=all"
        raise InterbasisError(
            f"{wanted.name} is text, of which only a first part can be streamed; {remedy}, or leave "
            "stream=yes out to download it"
        )
    else:
        rows = rows_of(dataset, files, column, TEXT_COLUMNS)
        flat = open_rows(f"{column} {identity}", rows, encoder, tokens)
    return wanted.made(flat, encoder, whole, identity)


def _check_hub_options(name: str, family: str, own: dict[str, str], windows: Windows) -> None:
    for option in ("stream", "revision"):
        if option in own and family != "hf":
            raise InterbasisError(f"{name}: {option} is an option of data sets of the Hub, hf:DATASET")
    if own.get("stream", "yes") != "yes":
        raise InterbasisError(f"{name}: expected stream=yes or no such option, not stream={own['stream']}")
    if "stream" in own and windows.per == "document":
        raise InterbasisError(
            f"{name}: per=document requires the length of every document, which only the data themselves "
            "say; leave stream=yes out to download them"
        )


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _windows(name: str, options: dict[str, str]) -> Windows:
    try:
        return Windows(**options)
    except ValidationError as error:
        first = error.errors()[0]
        option = first["loc"][0]
        if first["type"] == "extra_forbidden":
            known = ", ".join(("samples", *OWN_OPTIONS, *Windows.model_fields))
            raise InterbasisError(
                f"{name}: there is no option {option!r}; the options are {known}"
            ) from error
        reason = first["msg"][0].lower() + first["msg"][1:]
        raise InterbasisError(f"{name}: {option} cannot be {first['input']!r}: {reason}") from error


def _files(family: str, path: str, split: Split, revision: str | None) -> tuple[list[Path], bool]:
    """The files of a split, and whether they are the whole of it."""
    if family == "hf":
        return parquet_files(path, split, revision)
    if family == "tokens" and _is_many(path):
        files = token_files(path.replace("{split}", split))
        return (files, True) if "{split}" in path else files_of_split(f"tokens:{path}", files, split)
    if "{split}" in path:
        return [Path(path.replace("{split}", split))], True
    file = Path(path)
    if _says(file, TEST_WORDS):
        return [file], True
    if _says(file, ("train",)):
        return [file if split == "train" else _sibling(file)], True
    return [file], False


def _is_many(path: str) -> bool:
    """Whether a path names several files: a folder, or a pattern."""
    pattern = any(sign in path for sign in "*?[") and not Path(path).is_file()
    return pattern or Path(path.replace("{split}", "train")).is_dir()


def _says(file: Path, words: Sequence[str]) -> bool:
    """Whether one of the words is in a file's name."""
    return any(word in words for word in re.split(r"[^a-z]+", file.name.lower()))


def _sibling(file: Path) -> Path:
    for word in TEST_WORDS:
        candidate = file.with_name(re.sub("train", word, file.name, count=1, flags=re.IGNORECASE))
        if candidate.is_file():
            return candidate
    raise InterbasisError(
        f"{file} is a training set, and there is no test set {re.sub('train', 'test', file.name, count=1)} "
        "beside it; name the test data"
    )


def _open(files: list[Path], encoder: Tokenizer | None, column: str | None) -> Flat:
    if encoder is not None:
        return open_text(files, encoder, column)
    return open_parquets(files, column) if len(files) > 1 else open_tokens(files[0], column)


def _beside(file: Path) -> str:
    """A tokenizer in the folder of the tokens made them, presumably."""
    return str(file.parent) if (file.parent / "tokenizer.json").is_file() else ""
