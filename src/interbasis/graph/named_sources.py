"""Models and data that a run names: which of them are files or code, and where on this machine they are.

A relative name means another file in another working folder, and a module may be found elsewhere on another
Python path. What a user signs is therefore a name together with its place.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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

    @classmethod
    def from_provenance(cls, provenance: Provenance, graph: str) -> "NamedSources":
        """Return the sources of the graph whose tensors have this SHA-256."""
        names = {"model": provenance.model}
        if provenance.request is not None:
            names |= _request_names(provenance.request)
        return cls(_without_empty(names), {"graph": graph, "weights": provenance.model_fingerprint})

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
        """Places that the names mean in this working folder, found without importing or reading anything."""
        return {kind: source_location(name) for kind, name in self.names.items()}

    def unsafe(self, kinds: Iterable[str] | None = None) -> list[str]:
        """Return the names, of certain kinds or of all, that mean files, downloads or code."""
        chosen = self.names if kinds is None else [kind for kind in kinds if kind in self.names]
        return list(
            dict.fromkeys(self.names[kind] for kind in chosen if not _is_public(kind, self.names[kind]))
        )


def source_location(name: str) -> str:
    """Return the file that a name of a model or of data means here; empty where it means none.

    A name with ``hf:`` is a folder if there is one, and else of the Hugging Face Hub.
    """
    family, _, path = name.partition(":")
    if family == "python":
        return _module_location(path.partition(":")[0])
    path, options = split_options(path, strict=False)
    places = [os.path.abspath(path)] if path and (family != "hf" or os.path.exists(path)) else [""]
    further = (options.get(option, "") for option in FILE_OPTIONS)
    return "\n".join([*places, *(os.path.abspath(file) for file in further if os.path.exists(file))])


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


def _module_location(name: str) -> str:
    """Return the file of a module as an import would find it, without importing it or its packages."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return _origin(getattr(loaded, "__spec__", None)) or str(getattr(loaded, "__file__", None) or "")
    here = str(Path.cwd())
    path = sys.path if "" in sys.path or here in sys.path else [here, *sys.path]
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
