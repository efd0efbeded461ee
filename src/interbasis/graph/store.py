"""A graph as a folder: `config.json` and one safetensors file.

`config.json` says what was asked, on what, with which versions and how long it took; the safetensors file
holds bases and edges, and `config.json` names it together with its SHA-256. The tensors are written first and
under a new name, `config.json` last, each atomically: whoever reads the folder sees the old run or the new
one. Results of stages lie beside them.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from pydantic import ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from interbasis.base.errors import Explained, InterbasisError, first_problem, short_repr
from interbasis.base.files import file_sha256, inside, remove, write_atomically, write_text_atomically
from interbasis.base.json_text import parse_json
from interbasis.base.messages import logger
from interbasis.base.records import Record
from interbasis.base.signatures import SIGNATURE, NoKeyError, sign
from interbasis.base.tensor_file import Entry, write_tensors
from interbasis.compute.checkpoints import FOLDER, Checkpoints, unfinished_tasks
from interbasis.compute.locks import LOCK, building
from interbasis.compute.shards import SHARDS
from interbasis.graph.interaction_graph import InteractionGraph, Provenance
from interbasis.graph.layer_basis import LayerHeader, StoredBasis, StoredTensors, layer_entries
from interbasis.graph.named_sources import NamedSources
from interbasis.graph.settings import BuildConfig

FORMAT = "interbasis-graph"
SCHEMA = 1
CONFIG = "config.json"
DICTIONARY_GRAPH = "dictionary_graph.json"
"""Header of a graph between dictionaries (`dictionaries/graph.py`), in place of `config.json`."""
TENSOR_FILE = re.compile(r"(dictionary_)?graph-[0-9a-f]{12}\.safetensors")
"""The tensor file of a run, named by its content."""
LARGE = re.compile(r"\.(transform|inverse)$|^edge(s|_errors)\.")
"""Tensors of which a graph has one per layer or section, and which may be large."""
LEFTOVER = re.compile(
    r"(dictionary_)?graph\.safetensors\.new|\.(dictionary_)?graph\.safetensors\.new\..*\.tmp"
    r"|\.(config|dictionary_graph)\.json\..*\.tmp"
)
"""Names of files that an interrupted save may leave behind."""


class TensorFile(Record):
    """The file that holds a run's tensors."""

    file: str
    sha256: str


class GraphHeader(Record):
    """`config.json`."""

    model_config = ConfigDict(populate_by_name=True)

    format: str = FORMAT
    version: int = Field(default=SCHEMA, alias="schema")
    tensors: TensorFile
    layers: tuple[LayerHeader, ...]
    edges: int
    """Sections with edges."""
    edge_errors: int
    """Sections with standard errors of edges."""
    config: BuildConfig
    provenance: Provenance


def save(
    graph: InteractionGraph, folder: str | Path, *, signed: bool = False, unfinished: bool = False
) -> str:
    """Write a graph to a folder, atomically, in place of an older run if there is one.

    Args:
        graph: The graph.
        folder: Where it goes; made if it does not exist.
        signed: Sign the models and data that it names, since this user named them.
        unfinished: The build goes on: keep its unfinished work.

    Returns:
        SHA-256 of the graph's tensors, which identifies it.

    Raises:
        InterbasisError: The graph holds NaN, the folder holds something else than a run, or it cannot be
            written.
    """
    folder = Path(folder)
    entries = graph_entries(graph)
    for entry in entries:
        _check_finite(entry.name, entry.read(), f"this graph was not saved to {folder}")
    check_is_free(folder)
    with building(folder, "save"):
        digest = _write(graph, entries, folder, signed)
        clear_older(folder, unfinished)
        return digest


def _write(graph: InteractionGraph, entries: list[Entry], folder: Path, signed: bool) -> str:
    """Write tensors and config.json; return the digest of the tensors."""
    staged = folder / "graph.safetensors.new"
    write_atomically(staged, lambda path: write_tensors(path, entries, {"format": FORMAT}))
    digest = file_sha256(staged)
    file = staged.replace(folder / f"graph-{digest[:12]}.safetensors")
    if signed:
        sign_names(folder, graph.provenance, digest)
    header = GraphHeader(
        tensors=TensorFile(file=file.name, sha256=digest),
        layers=tuple(map(LayerHeader.from_layer, graph.layers)),
        edges=len(graph.edges),
        edge_errors=len(graph.edge_errors),
        config=graph.config,
        provenance=graph.provenance,
    )
    write_text_atomically(folder / CONFIG, header.to_json(indent=2) + "\n")
    return digest


def sign_names(folder: Path, provenance: Provenance, digest: str) -> None:
    """Sign the model and data that a graph names, since this user named them."""
    sources = NamedSources.from_provenance(provenance, digest, folder)
    if not sources.unsafe():
        return
    try:
        sign(folder, sources.content, sources.places)
    except NoKeyError as error:
        logger.warning(f"{folder} is not signed, so its model and data are opened with --trust only: {error}")


def load(folder: str | Path) -> InteractionGraph:
    """Read a graph from a run's folder, bit for bit as it was saved.

    Raises:
        InterbasisError: The folder is truncated, foreign, from a newer version, or holds NaN.
    """
    return load_identified(folder)[0]


def load_identified(folder: str | Path, *, in_memory: bool = True) -> tuple[InteractionGraph, str]:
    """Read a graph and the SHA-256 of its tensors, which identifies it.

    Args:
        folder: Folder of the run.
        in_memory: Read all matrices now, and refuse NaN in them; else they stay in the run's file until they
            are used.

    Raises:
        InterbasisError: The folder is truncated, foreign, from a newer version, or holds NaN.
    """
    folder = Path(folder)
    with Explained(f"could not read {folder}", OSError):
        header = read_header(folder)
        try:
            tensors = _read_tensors(folder, header, in_memory)
        except InterbasisError:
            if read_header(folder) == header:
                raise
            header = read_header(folder)  # the run was replaced just now
            tensors = _read_tensors(folder, header, in_memory)
    try:
        layers = [spec.to_layer(f"layers.{k}.", tensors) for k, spec in enumerate(header.layers)]
        edges = [tensors[f"edges.{k}"] for k in range(header.edges)]
        errors = [tensors[f"edge_errors.{k}"] for k in range(header.edge_errors)]
    except KeyError as error:
        raise InterbasisError(f"{folder} is damaged: {error} is missing; build the run again") from error
    graph = InteractionGraph(layers, edges, header.config, header.provenance, errors)
    _check_shapes(folder, graph)
    return graph if in_memory else _left_in_file(graph, folder, header.tensors), header.tensors.sha256


def reopened(graph: InteractionGraph, folder: Path) -> InteractionGraph:
    """A graph that was saved just now, with its matrices left in the run's file."""
    return _left_in_file(graph, folder, read_header(folder).tensors)


def _left_in_file(graph: InteractionGraph, folder: Path, tensors: TensorFile) -> InteractionGraph:
    file = folder / tensors.file
    layers = [
        layer if layer.identity else StoredBasis(layer, file, f"layers.{k}.")
        for k, layer in enumerate(graph.layers)
    ]
    edges, errors = (
        StoredTensors([(file, f"{name}.{k}") for k in range(len(matrices))])
        for name, matrices in _edge_matrices(graph).items()
    )
    return InteractionGraph(layers, edges, graph.config, graph.provenance, errors)


def graph_digest(folder: str | Path) -> str:
    """SHA-256 of the tensors of the graph in a run's folder, which identifies it."""
    return read_origin(Path(folder))[1]


def read_origin(folder: Path) -> tuple[Provenance, str]:
    """Provenance of the graph in a run's folder, of either kind, and the SHA-256 of its tensors."""
    path = inside(folder, DICTIONARY_GRAPH)
    if not path.is_file():
        header = read_header(folder)
        return header.provenance, header.tensors.sha256
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
        return Provenance.model_validate(values["provenance"]), TensorFile(**values["tensors"]).sha256
    except (ValueError, KeyError, TypeError) as error:
        raise InterbasisError(f"{path} is damaged; build the graph again") from error


def clear_older(folder: Path, unfinished: bool = False) -> None:
    """Remove what is not of a run's graph: older tensors, what kills left, builds that have ended."""
    current = read_header(folder).tensors.file
    for old in folder.iterdir():
        if old.name != current and _is_ours(old):
            remove(old)
    if not unfinished:
        clear_unfinished(folder)


def is_unfinished(folder: Path) -> bool:
    """Whether the build of a run goes on, or was interrupted after a round."""
    return bool(unfinished_tasks(folder, "build"))


def clear_unfinished(folder: Path) -> None:
    """Remove the state of unfinished builds."""
    for task in ("pilot", "build"):
        for name in unfinished_tasks(folder, task):
            Checkpoints(folder, name, restart=True).finish()


def read_header(folder: Path) -> GraphHeader:
    """`config.json` of a run, checked."""
    path = inside(folder, CONFIG)
    if not path.is_file():
        if (folder / DICTIONARY_GRAPH).is_file():
            raise InterbasisError(
                f"{folder} is a graph between dictionaries, which this does not take; use show, view, "
                "features, trace, steer, ablate, modules, compare, report or export with it"
            )
        problem = "is not a folder" if not folder.is_dir() else f"has no {CONFIG}"
        raise InterbasisError(f"expected a run made by 'interbasis build', but {folder} {problem}")
    with Explained(f"{path} is not readable JSON", ValueError, remedy="build the run again"):
        values = parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InterbasisError(f"{folder} is not an interbasis run: {path.name} has no format {FORMAT!r}")
    check_schema(folder, values.get("schema"))
    try:
        header = GraphHeader.model_validate(values)
    except ValidationError as error:
        raise InterbasisError(f"{path} is damaged: {first_problem(error)}; build the run again") from error
    if not TENSOR_FILE.fullmatch(header.tensors.file):
        received = short_repr(header.tensors.file)
        raise InterbasisError(f"{path} is damaged: {received} is not a tensor file of a run")
    return header


def check_schema(folder: Path, schema: object) -> None:
    """A run of a newer version is refused."""
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise InterbasisError(
            f"{folder} was written with schema {short_repr(schema)}, this version reads 1 to {SCHEMA}; "
            "upgrade interbasis to read a newer one"
        )


def check_is_free(folder: Path) -> None:
    """A folder may be written to if it is new, empty, or an interbasis run."""
    with Explained(f"could not look into {folder}", OSError):
        if folder.exists() and not folder.is_dir():
            raise InterbasisError(f"{folder} is a file; name a folder for the run")
        if not folder.is_dir() or all(map(_may_stay, folder.iterdir())):
            return
    try:
        read_header(folder)
    except InterbasisError as error:
        raise InterbasisError(
            f"{folder} is not empty and not an interbasis run, so nothing was written there; "
            "name a new folder"
        ) from error


def _may_stay(path: Path) -> bool:
    """Whether a file or folder is of a run, or of the work on one."""
    return _is_ours(path) or path.name in (FOLDER, SHARDS, SIGNATURE) or bool(LOCK.fullmatch(path.name))


def _is_ours(path: Path) -> bool:
    return bool(TENSOR_FILE.fullmatch(path.name) or LEFTOVER.fullmatch(path.name))


def _check_shapes(folder: Path, graph: InteractionGraph) -> None:
    """All parts of a run fit together."""
    layers, sections = graph.layers, len(graph.layers) - 1
    whole = len(graph.provenance.widths) == len(layers) >= 2
    if not whole or any(len(matrices) not in (0, sections) for matrices in _edge_matrices(graph).values()):
        raise InterbasisError(
            f"{folder} is damaged: {len(layers)} layers do not go with {len(graph.edges)} sections of edges "
            f"and {len(graph.edge_errors)} of errors; build the run again"
        )
    for layer in layers:
        if not 0 <= layer.isolated <= layer.features:
            raise InterbasisError(
                f"{folder} is damaged: {short_repr(layer.name)} isolates {layer.isolated} of its "
                f"{layer.features} features; build the run again"
            )
    shapes: dict[str, tuple[Tensor | None, tuple[int, ...]]]
    shapes = {f"layers.{k}.eigenvalues": (v.eigenvalues, (v.features,)) for k, v in enumerate(layers)}
    shapes |= {f"layers.{k}.mean": (v.mean, (v.width,)) for k, v in enumerate(layers)}
    for name, matrices in _edge_matrices(graph).items():
        for k, matrix in enumerate(matrices):
            shapes[f"{name}.{k}"] = (matrix, (layers[k + 1].features, layers[k].features))
    for name, (tensor, expected) in shapes.items():
        if tensor is not None and tuple(tensor.shape) != expected:
            raise InterbasisError(
                f"{folder} is damaged: {name} has shape {list(tensor.shape)}, expected {list(expected)}; "
                "build the run again"
            )


def graph_entries(graph: InteractionGraph) -> list[Entry]:
    """All tensors of a graph by the names they are stored under, to be read one at a time."""
    layers = graph.layers
    entries = [entry for k, layer in enumerate(layers) for entry in layer_entries(layer, f"layers.{k}.")]
    for name, matrices in _edge_matrices(graph).items():
        for k in range(len(matrices)):
            shape = layers[k + 1].features, layers[k].features
            entries.append(Entry(f"{name}.{k}", shape, torch.float64, partial(matrices.__getitem__, k)))
    return entries


def _edge_matrices(graph: InteractionGraph) -> dict[str, Sequence[Tensor]]:
    return {"edges": graph.edges, "edge_errors": graph.edge_errors}


def _read_tensors(folder: Path, header: GraphHeader, in_memory: bool) -> dict[str, Tensor]:
    """Read the tensor file, if it is unchanged; large tensors only if they are wanted in memory."""
    path = inside(folder, header.tensors.file)
    if not path.is_file():
        raise InterbasisError(f"{folder} is incomplete: {path.name} is missing; build the run again")
    if file_sha256(path) != header.tensors.sha256:
        raise InterbasisError(
            f"{path} is truncated or changed (its SHA-256 is not the one in {CONFIG}); build the run again"
        )
    tensors = {}
    unreadable = Explained(f"{path} is not a readable safetensors file", SafetensorError)
    with unreadable, safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            if in_memory or not LARGE.search(name):
                tensors[name] = file.get_tensor(name)
                _check_finite(name, tensors[name], f"{path} is not used")
            else:  # a tensor of the same shape that takes no memory
                shape = file.get_slice(name).get_shape()
                tensors[name] = torch.empty(shape, dtype=torch.float64, device="meta")
    return tensors


def _check_finite(name: str, tensor: Tensor, consequence: str) -> None:
    if not tensor.isfinite().all():
        raise InterbasisError(f"{name} holds NaN or infinite values, so {consequence}; build the run again")
