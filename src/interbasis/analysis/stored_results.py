"""Results of stages, stored beside the graph they belong to: `NAME.json`, with tensors in `NAME.safetensors`.

Every result names its graph by the hash of the graph's tensors. A run that was built again has another graph,
and results of the old one are not taken for its own.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from interbasis.base.errors import Explained, InterbasisError, short_repr
from interbasis.base.files import file_sha256, inside, write_atomically, write_text_atomically
from interbasis.base.json_text import parse_json
from interbasis.base.records import Record, read_record
from interbasis.graph.named_sources import relative_name
from interbasis.graph.store import graph_digest

if TYPE_CHECKING:
    from interbasis.data.batches import Data
    from interbasis.graph.interaction_graph import InteractionGraph


class Result(Record):
    """Result of a stage."""

    file: ClassVar[str]
    """Name of the file it is stored in, without its suffix."""
    command: ClassVar[str]
    """The command that makes it."""

    def stem(self) -> str:
        """The file's path in the run, without its suffix; results that several of are kept have names."""
        return self.file

    def misfit(self, graph: "InteractionGraph") -> str:
        """The first thing that the result names and the graph does not have; empty where it fits."""
        return ""

    @classmethod
    def remedy(cls, run: str | Path) -> str:
        """Return advice about a stored result that cannot be read."""
        return f"run 'interbasis {cls.command} {run}' again"


def unknown_layer(names: Iterable[str], known: Sequence[str]) -> str:
    """A sentence about the first name that is not among those of the graph; empty where all are."""
    other = next((name for name in names if name not in known), None)
    return "" if other is None else f"the graph has no layer {short_repr(other)}"


def unknown_feature(layer: str, features: Iterable[int], graph: "InteractionGraph") -> str:
    """A sentence about the first feature that a layer of the graph does not have; empty where it has all."""
    if problem := unknown_layer([layer], graph.layer_names):
        return problem
    size = graph.layers[graph.layer_names.index(layer)].features
    other = next((index for index in features if not 0 <= index < size), None)
    return "" if other is None else f"{short_repr(layer)} has no feature {other}"


def unknown_features(layers: Mapping[str, Iterable[int]], graph: "InteractionGraph") -> str:
    """The same for the features of several layers."""
    problems = (unknown_feature(name, features, graph) for name, features in layers.items())
    return next(filter(None, problems), "")


class DataUsed(Record):
    """The data that a result was measured on."""

    spec: str
    """Name of the data; empty where they were given as tensors."""
    samples: int
    fingerprint: str
    """SHA-256 of the inputs."""
    labels: str = ""
    """SHA-256 of labels that were given as tensors; empty where they follow from the data's name."""

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"fingerprint": self.fingerprint, "labels": self.labels}

    @classmethod
    def from_data(cls, data: "Data") -> "DataUsed":
        """Count and fingerprint data."""
        from interbasis.data.batches import Batches

        batches = data if isinstance(data, Batches) else Batches(data)
        fingerprint, labels = batches.fingerprint(), batches.labels_fingerprint()
        return cls(
            spec=relative_name(getattr(data, "spec", "")),
            samples=len(batches),
            fingerprint=fingerprint,
            labels=labels,
        )


FORMAT = "interbasis-result"
SCHEMA = 2


R = TypeVar("R", bound=Result)


class ResultHeader(Record):
    """Header of a result's file, before the result itself."""

    format: str
    schema_version: int
    graph: str
    """SHA-256 of the tensors of the graph that it belongs to."""
    tensors: str | None = None
    """SHA-256 of the result's own tensors, if it has any."""
    result: Any
    """Free-form until it is known to be of this version and this graph."""


def save_result(
    run: str | Path, result: Result, tensors: dict[str, Tensor] | None = None, graph: str | None = None
) -> Path:
    """Write a result beside a run's graph, in place of an older one; the JSON comes last.

    Args:
        run: Folder of the run.
        result: The result.
        tensors: Tensors that go with it.
        graph: Digest of the graph that it was measured on; default: the one in the folder.

    Returns:
        The JSON file.

    Raises:
        InterbasisError: The run holds another graph by now, or cannot be written to.
    """
    run, digest = Path(run), None
    path = inside(run, f"{result.stem()}.json")
    graph = graph or graph_digest(run)
    check_same_graph(run, graph)
    if tensors:
        plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        file = inside(run, f"{result.stem()}.safetensors")
        write_atomically(file, lambda path: save_file(plain, path))
        digest = file_sha256(file)
    header = ResultHeader(format=FORMAT, schema_version=SCHEMA, graph=graph, tensors=digest, result=result)
    path.parent.mkdir(exist_ok=True)
    write_text_atomically(path, header.to_json(indent=1) + "\n")
    return path


def check_same_graph(run: Path, graph: str) -> None:
    """Check that the run holds the graph that was loaded from it.

    Raises:
        InterbasisError: It was built again since.
    """
    if graph_digest(run) != graph:
        raise InterbasisError(
            f"{run} was built again after its graph was loaded, so nothing is stored for the old graph; run "
            "this command again"
        )


def load_result(
    run: str | Path,
    kind: type[R],
    graph: "InteractionGraph | None" = None,
    digest: str | None = None,
    stem: str | None = None,
) -> R | None:
    """A result of this run; None where there is none, or one of another graph.

    Args:
        run: Folder of the run.
        kind: Which result.
        graph: The run's graph; if given, a result that does not fit it is refused.
        digest: SHA-256 of that graph's tensors; default: of the graph in the folder.
        stem: The file's path in the run, without its suffix; default: the result's name.

    Returns:
        The result.

    Raises:
        InterbasisError: The result is damaged, or of another version.
    """
    run, stem = Path(run), stem or kind.file
    header = _header(run, kind, stem, digest)
    if header is None:
        return None
    file = f"{run / stem}.json"
    result = read_record(kind, header.result, file, kind.remedy(run))
    if graph is not None and (problem := result.misfit(graph)):
        raise InterbasisError(f"{file} is damaged: {problem}; {kind.remedy(run)}")
    return result


def result_names(run: str | Path, kind: type[Result]) -> list[str]:
    """Names of results of a kind of which several are kept, the newest first; none of them is read."""
    try:
        with os.scandir(inside(Path(run), kind.file)) as entries:
            files = [(-entry.stat(follow_symlinks=False).st_mtime_ns, entry.name) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InterbasisError(
            f"could not look into {Path(run) / kind.file} ({error.strerror}); {kind.remedy(run)}"
        ) from error
    return [name.removesuffix(".json") for _, name in sorted(files) if name.endswith(".json")]


def load_named(
    run: str | Path,
    kind: type[R],
    names: Iterable[str] | None = None,
    graph: "InteractionGraph | None" = None,
    digest: str | None = None,
    on_problem: Callable[[InterbasisError], None] | None = None,
) -> dict[str, R]:
    """Results of a kind of which several are kept, by name: those of this run's graph.

    Args:
        run: Folder of the run.
        kind: Which results.
        names: Those to read; default: all.
        graph: The run's graph; if given, results that do not fit it are refused.
        digest: SHA-256 of that graph's tensors; default: of the graph in the folder.
        on_problem: Told of results that cannot be read, which are left out; default: the first one is raised.

    Returns:
        The results in the order of their names.

    Raises:
        InterbasisError: A result is damaged, or of another version.
    """
    loaded = {}
    for name in sorted(result_names(run, kind) if names is None else names):
        try:
            result = load_result(run, kind, graph, digest, f"{kind.file}/{name}")
        except InterbasisError as error:
            if on_problem is None:
                raise
            on_problem(error)
            continue
        if result is not None:
            loaded[name] = result
    return loaded


def is_outdated(run: str | Path, kind: type[Result], digest: str) -> bool:
    """Whether the folder holds a result of a kind that was measured on another graph than this one."""
    run = Path(run)
    stems = [kind.file, *(f"{kind.file}/{name}" for name in result_names(run, kind))]
    for path in (inside(run, f"{stem}.json") for stem in stems):
        try:
            values = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(values, dict) and values.get("format") == FORMAT and values.get("graph") != digest:
            return True
    return False


def load_tensors(run: str | Path, kind: type[Result], digest: str | None = None) -> dict[str, Tensor]:
    """The tensors that go with a result; none where it has none."""
    run = Path(run)
    header = _header(run, kind, kind.file, digest)
    if header is None or header.tensors is None:
        return {}
    path = inside(run, f"{kind.file}.safetensors")
    with Explained(f"could not read {path}", OSError, SafetensorError, remedy=kind.remedy(run)):
        if file_sha256(path) == header.tensors:
            return load_file(path)
    raise InterbasisError(f"{path} does not belong to {kind.file}.json beside it; {kind.remedy(run)}")


def _header(run: Path, kind: type[Result], stem: str, digest: str | None) -> ResultHeader | None:
    path, digest = inside(run, f"{stem}.json"), digest or graph_digest(run)
    if not path.is_file():
        return None
    with Explained(f"{path} is not readable", OSError, ValueError, remedy=kind.remedy(run)):
        values = parse_json(path.read_text(encoding="utf-8"))
    if isinstance(values, dict) and values.get("format") == FORMAT and values.get("schema") == 1:
        if values.get("graph") != digest:
            return None
        raise InterbasisError(f"{path} was written by an older version of interbasis; {kind.remedy(run)}")
    header = read_record(ResultHeader, values, path, kind.remedy(run))
    if header.format != FORMAT or header.schema_version != SCHEMA:
        raise InterbasisError(
            f"{path} has format {short_repr(header.format)}, schema {header.schema_version}; this version "
            f"reads {FORMAT!r}, schema {SCHEMA}: upgrade interbasis, or {kind.remedy(run)}"
        )
    return header if header.graph == digest else None
