"""Token data by name: files of tokens, of text, or a data set of the Hugging Face Hub, as windows.

Which tokens are the training and which the test set:

- a name with {split} in it, `tokens:stories_{split}.uint16`, is two files;
- of a folder or a pattern with *, the files whose names say "train", or "test" or "valid";
- a file whose name says "test" or "valid" is a test set, and is read whole whichever split is asked for;
- a file whose name says "train" is a training set; its test set is the file beside it of the same name with
  "test" (or "valid", "validation") instead;
- of any other file the last tenth of the documents is the test set, or of the tokens, where documents are too
  long for that. part=all reads the whole of it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from interbasis.data.flat import Flat
from interbasis.data.hub import files_of_split, parquet_files
from interbasis.data.joined import identity_of_files, open_joined, token_files
from interbasis.data.samples import Samples, Split
from interbasis.data.text import Tokenizer, open_text, open_tokenizer
from interbasis.data.tokens import COLUMNS, open_parquet, open_parquets, open_tokens
from interbasis.data.windows import Windows, samples
from interbasis.data.windows import split as split_documents
from interbasis.runtime.errors import InterbasisError

TEST_WORDS = ("test", "validation", "valid", "val")
OWN_OPTIONS = ("part", "column", "tokenizer")


def load(family: str, path: str, split: Split, options: dict[str, str], tokenizer: str = "") -> Samples:
    """The samples of `tokens:`, `text:` or `hf:` data; ``tokenizer`` is used where no option names one."""
    name = f"{family}:{path}"
    own = {key: options[key] for key in OWN_OPTIONS if key in options}
    part = own.get("part", "")
    if part not in ("", "all"):
        raise InterbasisError(f"{name}: the only part that can be chosen is part=all, not part={part}")
    windows = _windows(name, {key: value for key, value in options.items() if key not in own})
    files, whole = _files(family, path, split)
    many = family == "tokens" and _is_many(path)
    if family != "hf" and not many and split == "test" and files[0] != Path(path):
        name = f"{family}:{files[0]}"  # the file that is read, in place of the training set's or the pattern
        own |= {} if _says(files[0], TEST_WORDS) else {"part": "all"}
    encoder = _tokenizer(name, family, files, own.get("tokenizer") or tokenizer)
    if encoder is not None and windows.bos is None and windows.eos is None and encoder.bos is not None:
        windows = windows.model_copy(update={"bos": encoder.bos})
    documents = windows.per == "document" or not (whole or part)
    if many:
        flat = open_joined(files, own.get("column"), documents)
    else:
        flat = _open(files, encoder, own.get("column"))
    if documents and flat.starts is None:
        flat = flat.documents(windows.bos, windows.eos)
    if not (whole or part):
        flat = split_documents(flat, windows, split, name)
    given = own | ({"tokenizer": tokenizer} if encoder and "tokenizer" not in own else {})
    given |= {key: _text(value) for key, value in windows.model_dump(exclude_defaults=True).items()}
    given |= {"context": str(windows.context)}
    spec = ",".join([name, *(f"{key}={given[key]}" for key in sorted(given))])
    folder = given.get("tokenizer") or _beside(files[0])
    identity = f"{identity_of_files(files)} {split} {spec}" if many else ""
    made = samples(flat, windows, name)
    return replace(made, spec=spec, tokenizer=Path(folder) if folder else None, identity=identity)


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


def _files(family: str, path: str, split: Split) -> tuple[list[Path], bool]:
    """The files of a split, and whether they are the whole of it."""
    if family == "hf":
        return parquet_files(path, split)
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


def _tokenizer(name: str, family: str, files: Sequence[Path], tokenizer: str) -> Tokenizer | None:
    """The tokenizer of text; None where the files hold tokens."""
    if family == "tokens":
        return None
    if family == "hf" and set(COLUMNS) & set(open_parquet(files[0]).schema_arrow.names):
        return None
    if not tokenizer:
        raise InterbasisError(
            f"{name} is text, so a tokenizer is needed: add ,tokenizer=FOLDER (one with tokenizer.json)"
        )
    return open_tokenizer(tokenizer)


def _open(files: list[Path], encoder: Tokenizer | None, column: str | None) -> Flat:
    if encoder is not None:
        return open_text(files, encoder, column)
    return open_parquets(files, column) if len(files) > 1 else open_tokens(files[0], column)


def _beside(file: Path) -> str:
    """A tokenizer in the folder of the tokens made them, presumably."""
    return str(file.parent) if (file.parent / "tokenizer.json").is_file() else ""
