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
column of tokens, a process reads the row groups that its samples lie in. How many tokens
a text becomes is known only when it is tokenized, so of text the first samples=N are read, from the
beginning, by every process.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from interbasis.base.errors import InterbasisError
from interbasis.data import hub_files, text, tokens
from interbasis.data.hub_files import split_files
from interbasis.data.samples import Samples, Split
from interbasis.data.windows import Windows, samples, stride
from interbasis.data.windows import split as split_documents

TEST_WORDS = ("test", "validation", "valid", "val")
SOURCE_OPTIONS = ("part", "column", "tokenizer", "stream", "revision")


def load(
    family: str,
    path: str,
    split: Split,
    options: dict[str, str],
    tokenizer: str = "",
    count: int | None = None,
) -> Samples:
    """Load the samples of `tokens:`, `text:` or `hf:` data.

    ``tokenizer`` is used where no option names one. The first ``count`` samples are wanted: more may be
    there, but a stream is not looked at beyond them.
    """
    name = f"{family}:{path}"
    source = {key: options[key] for key in SOURCE_OPTIONS if key in options}
    part, column = source.get("part", ""), source.get("column")
    if part not in ("", "all"):
        raise InterbasisError(f"{name}: the only part that can be chosen is part=all, not part={part}")
    windows = _windows(name, {key: value for key, value in options.items() if key not in source})
    _check_hub_options(name, family, source, windows)
    if source.get("stream") == "yes":
        return _streamed(_Request(name, split, windows, source, tokenizer, count), path)
    files, whole = _files(family, path, split, source.get("revision"))
    is_joined = family == "tokens" and _is_many(path)
    if family != "hf" and not is_joined and split == "test" and files[0] != Path(path):
        name = f"{family}:{files[0]}"  # the file that is read, in place of the training set's or the pattern
        source |= {} if _says(files[0], TEST_WORDS) else {"part": "all"}
    request = _Request(name, split, windows, source, tokenizer, count)
    columns = tokens.COLUMNS if family == "tokens" else ()
    if family == "hf":
        columns = tokens.open_parquet(files[0]).schema_arrow.names
    request, encoder = request.with_tokenizer(columns)
    documents = windows.per == "document" or not (whole or part)
    if is_joined:
        stream = tokens.open_joined(files, column, documents)
    elif encoder is not None:
        stream = text.open_text(files, encoder, column)
    elif family == "hf":
        stream = tokens.open_parquets(files, column)
    else:
        stream = tokens.open_tokens(files[0], column)
    if documents and stream.starts is None:
        stream = stream.with_documents(request.windows.bos, request.windows.eos)
    folder = files[0].parent  # a tokenizer beside the tokens made them, presumably
    beside = str(folder) if (folder / "tokenizer.json").is_file() else ""
    identity = tokens.content_identity(files) if is_joined else ""
    return request.samples(stream, encoder is not None, whole, identity, beside)


@dataclass(frozen=True)
class _Request:
    """Data that are asked for."""

    name: str
    split: Split
    windows: Windows
    source: dict[str, str]
    """Options that say what is read, as they are spelt."""
    tokenizer: str
    """Tokenizer of the model, where there is one."""
    count: int | None
    """Number of samples; None is all of them."""

    def with_tokenizer(self, columns: Iterable[str]) -> "tuple[_Request, text.Tokenizer | None]":
        """Tokenizer of text, None where the columns hold tokens, and the same with its first token.

        That is the token that it begins documents with, where none is named.
        """
        if set(tokens.COLUMNS) & set(columns):
            return self, None
        name = self.source.get("tokenizer") or self.tokenizer
        if not name:
            raise InterbasisError(
                f"{self.name} is text, so a tokenizer is needed: add ,tokenizer=FOLDER (one with "
                "tokenizer.json)"
            )
        encoder = text.open_tokenizer(name)
        if encoder.bos is None or self.windows.bos is not None or self.windows.eos is not None:
            return self, encoder
        return replace(self, windows=self.windows.model_copy(update={"bos": encoder.bos})), encoder

    def samples(
        self, stream: tokens.TokenStream, is_text: bool, whole: bool, identity: str, beside: str = ""
    ) -> Samples:
        """Samples with a spec that opens them again; ``beside`` is a tokenizer next to the files."""
        if not (whole or "part" in self.source):
            stream = split_documents(stream, self.windows, self.split, self.name)
        options = {"tokenizer": self.tokenizer} if is_text else {}
        for key, value in self.windows.model_dump(exclude_defaults=True).items():
            options[key] = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        options |= self.source | {"context": str(self.windows.context)}
        spec = ",".join([self.name, *(f"{key}={options[key]}" for key in sorted(options))])
        folder = options.get("tokenizer") or beside
        return replace(
            samples(stream, self.windows, self.name),
            spec=spec,
            tokenizer=Path(folder) if folder else None,
            identity=f"{identity} {self.split} {spec}" if identity else "",
            revision=self.source.get("revision", "") if "stream" in self.source else "",
        )


def _streamed(request: _Request, path: str) -> Samples:
    """Samples of a data set of the Hub that is not downloaded."""
    dataset = hub_files.pinned(path, request.source.get("revision"))
    request = replace(request, source=request.source | {"revision": dataset.commit})
    by_path = {file.path: file for file in dataset.files}
    paths, whole = split_files(request.name, list(by_path), request.split)
    files = [by_path[path] for path in paths]
    everything, column = whole or "part" in request.source, request.source.get("column")
    request, encoder = request.with_tokenizer(hub_files.read_footer(dataset, files[0]).columns)
    identity = hub_files.streamed_identity(dataset, files)
    needed = None if request.count is None else request.count * stride(request.windows)
    if encoder is None:
        cut = None if everything else request.windows.held_out
        stream = hub_files.open_streamed(dataset, files, column, needed if everything else None, cut)
    elif needed is None or not everything:
        remedy = "add samples=N" if everything else "add samples=N and part=all"
        raise InterbasisError(
            f"{request.name} is text, of which only a first part can be streamed; {remedy}, or leave "
            "stream=yes out to download it"
        )
    else:
        rows = hub_files.streamed_rows(dataset, files, column, text.COLUMNS)
        stream = text.open_rows(f"{column} {identity}", rows, encoder, needed)
    return request.samples(stream, encoder is not None, whole, identity)


def _check_hub_options(name: str, family: str, source: dict[str, str], windows: Windows) -> None:
    for option in ("stream", "revision"):
        if option in source and family != "hf":
            raise InterbasisError(f"{name}: {option} is an option of data sets of the Hub, hf:DATASET")
    if source.get("stream", "yes") != "yes":
        raise InterbasisError(f"{name}: expected stream=yes or no such option, not stream={source['stream']}")
    if "stream" in source and windows.per == "document":
        raise InterbasisError(
            f"{name}: per=document requires the length of every document, which only the data themselves "
            "say; leave stream=yes out to download them"
        )


def _windows(name: str, options: dict[str, str]) -> Windows:
    try:
        return Windows(**options)
    except ValidationError as error:
        first = error.errors()[0]
        option = first["loc"][0]
        if first["type"] == "extra_forbidden":
            known = ", ".join(("samples", *SOURCE_OPTIONS, *Windows.model_fields))
            raise InterbasisError(
                f"{name}: there is no option {option!r}; the options are {known}"
            ) from error
        reason = first["msg"][0].lower() + first["msg"][1:]
        raise InterbasisError(f"{name}: {option} cannot be {first['input']!r}: {reason}") from error


def _files(family: str, path: str, split: Split, revision: str | None) -> tuple[list[Path], bool]:
    """Files of a split, and whether they are the whole of it."""
    if family == "hf":
        return hub_files.parquet_files(path, split, revision)
    if family == "tokens" and _is_many(path):
        files = tokens.token_files(path.replace("{split}", split))
        return (files, True) if "{split}" in path else split_files(f"tokens:{path}", files, split)
    if "{split}" in path:
        return [Path(path.replace("{split}", split))], True
    file = Path(path)
    if _says(file, TEST_WORDS):
        return [file], True
    if _says(file, ("train",)):
        return [file if split == "train" else _test_file(file)], True
    return [file], False


def _is_many(path: str) -> bool:
    """Whether a path names several files: a folder, or a pattern."""
    pattern = any(sign in path for sign in "*?[") and not Path(path).is_file()
    return pattern or Path(path.replace("{split}", "train")).is_dir()


def _says(file: Path, words: Sequence[str]) -> bool:
    """Whether one of the words is in a file's name."""
    return any(word in words for word in re.split(r"[^a-z]+", file.name.lower()))


def _test_file(file: Path) -> Path:
    """Test set beside a training set, of the same name but for that word."""
    for word in TEST_WORDS:
        candidate = file.with_name(re.sub("train", word, file.name, count=1, flags=re.IGNORECASE))
        if candidate.is_file():
            return candidate
    raise InterbasisError(
        f"{file} is a training set, and there is no test set {re.sub('train', 'test', file.name, count=1)} "
        "beside it; name the test data"
    )
