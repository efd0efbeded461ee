"""Data sets of the Hugging Face Hub as parquet files: `hf:DATASET`, or `hf:FOLDER` for downloaded ones."""

from pathlib import Path, PurePath
from typing import TypeVar

from interbasis.base.connection import hub_is_out_of_reach
from interbasis.base.errors import InterbasisError
from interbasis.data.samples import Split

File = TypeVar("File", bound=PurePath)
WORDS = {"train": ("train",), "test": ("test", "validation", "valid")}


def parquet_files(name: str, split: Split, revision: str | None = None) -> tuple[list[Path], bool]:
    """The files of a split, in order, and whether they are the whole of it (not to be split once more)."""
    folder = Path(name) if Path(name).is_dir() else _downloaded(name, revision)
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise InterbasisError(f"hf:{name} has no parquet files; expected at least one")
    return files_of_split(f"hf:{name}", files, split)


def files_of_split(name: str, files: list[File], split: Split) -> tuple[list[File], bool]:
    """Those whose names say the split, and whether they are the whole of it; all, if no name says any."""
    named = {word: [file for file in files if word in file.name.lower()] for word in sum(WORDS.values(), ())}
    for word in WORDS[split]:
        if named[word]:
            return named[word], True
    if any(named[word] for word in WORDS["test"]):
        raise InterbasisError(f"{name} has no files for the {split} split")
    return files, False


def _downloaded(name: str, revision: str | None) -> Path:
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
                name,
                repo_type="dataset",
                revision=revision,
                allow_patterns="*.parquet",
                local_files_only=hub_is_out_of_reach(),
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InterbasisError(
            f"could not fetch the data set {name} ({reason}); without a network, put its parquet files into "
            "a folder and name it as hf:FOLDER"
        ) from error
