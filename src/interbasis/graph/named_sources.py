"""Models and data that a run names: which of them are files or code, and where on this machine they are.

A run remembers the way from its folder to the one in which its sources were named. Paths are looked for
there, and then in the working folder; a module may be found elsewhere on another Python path. What a user
signs is therefore a name together with its place.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from glob import glob
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import Provenance
from interbasis.graph.settings import BuildRequest

SHIPPED_MODELS = ("modadd", "cifar10-conv")
"""Models that come with interbasis, by name alone."""
PUBLIC_DATA = ("modadd", "cifar10", "mnist")
"""Data that are computed, or downloaded from fixed addresses and checked, by name alone."""
FILE_OPTIONS = ("tokenizer", "classes")
"""Options of data whose values are files or folders."""
HUB_KINDS = ("hf", "tokenizer")
"""Families and options whose value may also be a name of the Hugging Face Hub."""
DATA = ("data", "jacobian_data", "edge_data")
"""Data that a request names."""


@dataclass(frozen=True)
class NamedSources:
    """Names of a model and data, and what they belong to."""

    names: Mapping[str, str]
    """By what they are names of: ``model``, ``request.model``, ``data``, ``jacobian_data``, ``edge_data``,
    ``dictionary LAYER``."""
    owner: Mapping[str, str]
    """Hashes that bind the names to one graph or one set of shards."""
    folder: Path | None = None
    """Folder in which they were named; None is the working folder."""

    @classmethod
    def from_provenance(cls, provenance: Provenance, graph: str, run: Path | None = None) -> "NamedSources":
        """Return the sources of the graph whose tensors have this SHA-256, in the folder of a run."""
        names = {"model": provenance.model}
        if provenance.request is not None:
            names |= _request_names(provenance.request)
        owner = {"graph": graph, "weights": provenance.model_fingerprint}
        if provenance.working_folder:  # where names are looked for is signed with them
            owner["way to the working folder"] = sha256(provenance.working_folder.encode()).hexdigest()
        return cls(_without_empty(names), owner, provenance.naming_folder(run))

    @classmethod
    def from_request(cls, request: BuildRequest, settings: str) -> "NamedSources":
        """Return the sources of shards that were computed with settings of this SHA-256."""
        return cls(_without_empty(_request_names(request)), {"shards": settings})

    @property
    def content(self) -> dict[str, str]:
        """Signed content, apart from the places."""
        named = {f"name of {kind}": name for kind, name in self.names.items()}
        return named | {f"SHA-256 of {part}": digest for part, digest in self.owner.items()}

    @property
    def places(self) -> dict[str, str]:
        """Places that the names mean now, found without importing or reading anything."""
        return {kind: source_location(name, self.folder) for kind, name in self.names.items()}

    def unsafe(self, kinds: Iterable[str] | None = None) -> list[str]:
        """Return the names, of certain kinds or of all, that mean files, downloads or code."""
        chosen = self.names if kinds is None else [kind for kind in kinds if kind in self.names]
        return list(
            dict.fromkeys(self.names[kind] for kind in chosen if not _is_public(kind, self.names[kind]))
        )


def source_location(name: str, folder: Path | None = None) -> str:
    """Return the file that a name of a model or of data means here; empty where it means none.

    A name with ``hf:`` is a folder if there is one, and else of the Hugging Face Hub.
    """
    family, _, path = name.partition(":")
    if family == "python":
        return _module_location(path.partition(":")[0], folder)
    path, options = split_options(path, strict=False)
    found = find_path(path, folder) or ("" if family == "hf" else path)
    further = (find_path(options.get(option, ""), folder) for option in FILE_OPTIONS)
    return "\n".join([found and os.path.abspath(found), *(os.path.abspath(file) for file in further if file)])


def find_path(path: str, folder: Path | None) -> str:
    """Return a path as it is found in a folder, or else in the working folder; empty if in neither."""
    near = "" if folder is None or not path else os.path.relpath(os.path.join(folder, path))
    return next((place for place in (near, path) if place and _is_there(place)), "")


def _is_there(path: str) -> bool:
    """Whether there is such a file or folder, or a file of such a pattern."""
    return os.path.exists(path) or ("*" in path and "\0" not in path and bool(glob(path)))


def located(name: str, folder: Path | None) -> str:
    """Return a name of a model or of data with its paths as they are found from the working folder.

    Args:
        name: The name, as it was given.
        folder: The folder in which it was given; None is the working folder.

    Raises:
        InterbasisError: There is no such file in either folder.
    """

    def find(path: str, kind: str) -> str:
        found = find_path(path, folder)
        if found or (kind in HUB_KINDS and not path.startswith(".")):
            return found or path
        places = dict.fromkeys(os.path.abspath(place) for place in (os.path.join(folder or "", path), path))
        raise InterbasisError(
            f"{name} was looked for at {' and at '.join(places)}, but there is no such file; put it there, "
            "or name another one with --model or --data"
        )

    return name if folder is None else with_paths(name, find)


def with_paths(name: str, change: Callable[[str, str], str]) -> str:
    """Return a name of a model or of data with change(path, family or option) in place of every path."""
    if name.startswith("python:"):
        return name
    try:
        named, options = split_options(name)
    except InterbasisError:  # whoever opens it says what is wrong with it
        return name
    family, colon, path = named.partition(":")
    changed = {key: change(text, key) if key in FILE_OPTIONS else text for key, text in options.items()}
    first = f"{family}:{change(path, family)}" if colon and path else named
    return join_options(first, changed)


def relative_name(name: str) -> str:
    """Return a name with paths relative to the working folder; a folder that may be on the Hub gets a dot."""

    def relative(path: str, kind: str) -> str:
        path = os.path.relpath(path) if os.path.isabs(path) else path
        is_folder = kind in HUB_KINDS and not path.startswith(".") and os.path.exists(path)
        return os.path.join(os.curdir, path) if is_folder else path

    return with_paths(name, relative)


def with_relative_names(request: BuildRequest) -> BuildRequest:
    """Return a request that names no path of the machine."""
    names = {kind: getattr(request, kind) for kind in ("model", *DATA)}
    update = {kind: relative_name(name) for kind, name in names.items() if name is not None}
    entries = (entry.partition("=") for entry in request.dictionary)
    files = tuple(
        f"{place}={path if path == 'lib' else relative_name(f'file:{path}').removeprefix('file:')}"
        for place, _, path in entries
    )
    return request.model_copy(update={**update, "dictionary": files})


def _request_names(request: BuildRequest) -> dict[str, str]:
    names = {"request.model": request.model} | {kind: getattr(request, kind) or "" for kind in DATA}
    files = (entry.partition("=")[::2] for entry in request.dictionary)
    return names | {f"dictionary {place}": f"file:{path}" for place, path in files if path != "lib"}


def _without_empty(names: Mapping[str, str]) -> dict[str, str]:
    return {kind: name for kind, name in names.items() if name}


def _is_public(kind: str, name: str) -> bool:
    """Whether a name means what comes with interbasis, or is fetched from where interbasis says."""
    if kind.endswith("model"):
        return name in SHIPPED_MODELS
    bare, options = split_options(name, strict=False)
    return bare in PUBLIC_DATA and options.keys() <= {"samples"}


def split_options(spec: str, *, strict: bool = True) -> tuple[str, dict[str, str]]:
    """`tokens:a.npy,context=8` as `tokens:a.npy` and {"context": "8"}; a comma may also be part of a path.

    Raises:
        InterbasisError: ``strict``, and an option has no value or is given twice.
    """
    name, *parts = spec.split(",")
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not (equals and key.isidentifier() and value):
            if not options:
                name += f",{part}"
            elif strict:
                raise InterbasisError(f"{spec!r}: expected an option as name=value, received {part!r}")
            continue
        if strict and key in options:
            raise InterbasisError(
                f"{spec!r}: the option {key} is given twice, as {options[key]} and {value}; give it once"
            )
        options[key] = value
    return name, options


def join_options(name: str, options: Mapping[str, str]) -> str:
    """Return the spec that `split_options` takes apart."""
    return ",".join([name, *(f"{key}={value}" for key, value in options.items())])


def _module_location(name: str, folder: Path | None = None) -> str:
    """Return the file of a module as `open_model` would find it, without importing it or its packages."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return _origin(getattr(loaded, "__spec__", None)) or str(getattr(loaded, "__file__", None) or "")
    here = str(Path.cwd())
    path = sys.path if "" in sys.path or here in sys.path else [here, *sys.path]
    path = path if folder is None else [str(folder), *path]
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        full = ".".join(parts[:number])
        try:
            if full in sys.modules:
                spec = sys.modules[full].__spec__
            else:
                finders = sys.meta_path if number == 1 else [PathFinder]
                specs = (finder.find_spec(full, path if finder is PathFinder else None) for finder in finders)
                spec = next((candidate for candidate in specs if candidate is not None), None)
        except (ImportError, AttributeError, ValueError, KeyError, OSError):
            return ""
        if spec is None:
            return ""
        # of a namespace package within another, only the private list is readable before an import
        places = spec.submodule_search_locations
        path = list(getattr(places, "_path", places) or ())
    return _origin(spec)


def _origin(spec: ModuleSpec | None) -> str:
    if spec is None:
        return ""
    if spec.origin is None:  # a namespace package
        places = spec.submodule_search_locations
        return "\n".join(map(os.path.abspath, getattr(places, "_path", places) or ()))
    return os.path.abspath(spec.origin) if spec.has_location else spec.origin
