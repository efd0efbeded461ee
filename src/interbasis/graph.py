"""The interaction graph: what a run *is*, and how it is kept on disk.

A run is a folder with `config.json` (what was asked, on what, with which versions, how long it took) and
one safetensors file (bases and edges) that `config.json` names together with its SHA-256. The tensors are
written first and under a new name, `config.json` last, each atomically: whoever reads the folder sees the
old run or the new one. Other results may lie beside them.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from interbasis.basis import LayerBasis, UnrotatedBasis
from interbasis.config import BuildConfig
from interbasis.errors import InterbasisError
from interbasis.files import remove, sha256_of, write_atomically, write_text_atomically
from interbasis.linalg import Cut
from interbasis.resume import FOLDER, Resume

FORMAT = "interbasis-graph"
SCHEMA = 1
CONFIG = "config.json"
TENSORS = re.compile(r"graph-[0-9a-f]{12}\.safetensors")
"""The tensor file of a run, named by its content."""
LEFTOVER = re.compile(r"graph\.safetensors\.new|\.graph\.safetensors\.new\..*\.tmp|\.config\.json\..*\.tmp")
"""What an interrupted save may leave behind."""
CUT: TypeAdapter[Cut | None] = TypeAdapter(Cut | None)
PER_LAYER = ("transform", "inverse", "mean", "eigenvalues", "variances", "eigenvalue_errors")


class Provenance(BaseModel):
    """Where a graph comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    family: str
    """Kind of network, "mlp" or "modadd"."""
    model: str
    """Name or path of the model, as far as it is known."""
    model_fingerprint: str
    """SHA-256 of the network's weights."""
    widths: tuple[int, ...]
    """Coordinates of each node layer before any were dropped, the constant among them."""
    data_fingerprints: dict[str, str]
    """SHA-256 of the inputs, for data, jacobian_data and edge_data."""
    samples: dict[str, int]
    versions: dict[str, str]
    timings: dict[str, float]
    """Seconds per phase."""
    request: dict[str, Any] = {}
    """What was asked for by name (model, data, settings), enough to build it again."""


@dataclass(frozen=True, eq=False)
class InteractionGraph:
    """Features of every node layer and the edges between neighbours."""

    layers: list[LayerBasis]
    edges: list[Tensor]
    """Ê per section, [features_out, features_in]; empty where a build left them out."""
    config: BuildConfig
    provenance: Provenance
    edge_errors: list[Tensor] = field(default_factory=list)
    """Standard errors of Ê where it was estimated with stochastic sources."""

    def __repr__(self) -> str:
        layers = " → ".join(f"{layer.name} ({layer.features})" for layer in self.layers)
        return f"InteractionGraph({self.config.basis}: {layers}; {len(self.edges)} sections with edges)"

    def _repr_html_(self) -> str:
        """The graph as a page inside a notebook."""
        from interbasis.viewer import html_of_graph

        return html_of_graph(self)

    def save(self, folder: str | Path) -> Path:
        """Write the run to a folder, in place of an older run if there is one; atomically."""
        folder = Path(folder)
        tensors = self._tensors()
        for name, tensor in tensors.items():
            _check_finite(name, tensor, f"this graph was not saved to {folder}")
        check_is_free(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InterbasisError(f"could not make the folder {folder} ({error.strerror})") from error
        staged = folder / "graph.safetensors.new"
        write_atomically(staged, lambda path: save_file(tensors, path, {"format": FORMAT}))
        digest = sha256_of(staged)
        file = staged.replace(folder / f"graph-{digest[:12]}.safetensors")
        header = {
            "format": FORMAT,
            "schema": SCHEMA,
            "tensors": {"file": file.name, "sha256": digest},
            "layers": [
                {
                    "name": layer.name,
                    "constant": layer.constant,
                    "isolated": layer.isolated,
                    "identity": layer.identity,
                    "width": layer.width,
                    "variance_cut": _plain(layer.variance_cut),
                    "jacobian_cut": _plain(layer.jacobian_cut),
                }
                for layer in self.layers
            ],
            "edges": len(self.edges),
            "edge_errors": len(self.edge_errors),
            "config": self.config.model_dump(),
            "provenance": self.provenance.model_dump(),
        }
        write_text_atomically(folder / CONFIG, json.dumps(header, indent=2) + "\n")
        clear_older(folder)
        return folder

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for k, layer in enumerate(self.layers):
            for name in PER_LAYER[2:] if layer.identity else PER_LAYER:
                tensor = getattr(layer, name)
                if tensor is not None:
                    tensors[f"layers.{k}.{name}"] = tensor.detach().cpu().contiguous().clone()
        for name, many in (("edges", self.edges), ("edge_errors", self.edge_errors)):
            tensors |= {f"{name}.{k}": t.detach().cpu().contiguous().clone() for k, t in enumerate(many)}
        return tensors


def load(folder: str | Path) -> InteractionGraph:
    """Read a run's folder; one that is truncated, foreign, newer or holds NaN is refused."""
    folder = Path(folder)
    try:
        header = _read_header(folder)
        try:
            tensors = _read_tensors(folder, header)
        except InterbasisError:
            if _read_header(folder) == header:
                raise
            header = _read_header(folder)  # the run was replaced just now
            tensors = _read_tensors(folder, header)
    except OSError as error:
        raise InterbasisError(f"could not read {folder} ({error.strerror or error})") from error
    try:
        graph = _assemble(header, tensors)
    except InterbasisError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InterbasisError(
            f"{folder / CONFIG} is damaged: something is missing or misplaced "
            f"({str(error).splitlines()[0]}); build the run again"
        ) from error
    _check_shapes(folder, graph)
    return graph


def clear_older(folder: Path) -> None:
    """Remove what is not of the graph in a run: older tensors, what kills left, unfinished builds."""
    current = _read_header(folder)["tensors"]["file"]
    for old in folder.iterdir():
        if old.name != current and _is_ours(old):
            remove(old)
    Resume(folder, "build", anew=True).finish()


def graph_digest(folder: str | Path) -> str:
    """What identifies the graph in a run's folder: the SHA-256 of its tensors."""
    return str(_read_header(Path(folder))["tensors"]["sha256"])


def _assemble(header: dict[str, Any], tensors: dict[str, Tensor]) -> InteractionGraph:
    layers = [_layer(spec, _given(tensors, f"layers.{k}.")) for k, spec in enumerate(header["layers"])]
    edges = [tensors[f"edges.{k}"] for k in range(header["edges"])]
    errors = [tensors[f"edge_errors.{k}"] for k in range(header["edge_errors"])]
    config, provenance = BuildConfig.of(**header["config"]), Provenance(**header["provenance"])
    return InteractionGraph(layers, edges, config, provenance, errors)


def _layer(spec: dict[str, Any], tensors: dict[str, Any]) -> LayerBasis:
    name, constant = _text(spec["name"]), bool(spec["constant"])
    if spec.get("identity"):
        return UnrotatedBasis(name, int(spec["width"]), tensors["mean"], tensors["variances"], constant)
    return LayerBasis(
        name,
        **tensors,
        constant=constant,
        variance_cut=CUT.validate_python(spec["variance_cut"]),
        jacobian_cut=CUT.validate_python(spec["jacobian_cut"]),
        isolated=int(spec.get("isolated", 0)),
    )


def _given(tensors: dict[str, Tensor], prefix: str) -> dict[str, Any]:
    return {name: tensors.get(prefix + name) for name in PER_LAYER}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a layer is called {value!r}")
    return value


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        there = "is no folder" if not folder.is_dir() else f"has no {CONFIG}"
        raise InterbasisError(f"expected a run made by 'interbasis build', but {folder} {there}")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InterbasisError(f"{path} is not readable JSON ({error}); build the run again") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InterbasisError(f"{folder} is not an interbasis run: {path.name} has no format {FORMAT!r}")
    check_schema(folder, header.get("schema"))
    return header


def check_schema(folder: Path, schema: object) -> None:
    """A run of a newer version is refused."""
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise InterbasisError(
            f"{folder} was written with schema {schema}, this version reads 1 to {SCHEMA}; "
            "upgrade interbasis to read a newer one"
        )


def _read_tensors(folder: Path, header: dict[str, Any]) -> dict[str, Tensor]:
    try:
        name, digest = header["tensors"]["file"], header["tensors"]["sha256"]
    except (KeyError, TypeError) as error:
        raise InterbasisError(f"{folder / CONFIG} is damaged: it names no tensor file") from error
    if not TENSORS.fullmatch(str(name)):
        raise InterbasisError(f"{folder / CONFIG} is damaged: {name!r} is no tensor file of a run")
    path = folder / name
    if not path.is_file():
        raise InterbasisError(f"{folder} is incomplete: {name} is missing; build the run again")
    if sha256_of(path) != digest:
        raise InterbasisError(
            f"{path} is truncated or changed (its SHA-256 is not the one in {CONFIG}); build the run again"
        )
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise InterbasisError(f"{path} is not a readable safetensors file ({error})") from error
    for key, tensor in tensors.items():
        _check_finite(key, tensor, f"{path} is not used")
    return tensors


def _check_finite(name: str, tensor: Tensor, consequence: str) -> None:
    if not tensor.isfinite().all():
        raise InterbasisError(f"{name} holds NaN or infinite values, so {consequence}; build the run again")


def check_is_free(folder: Path) -> None:
    """A folder may be written to if it is new, empty, or an interbasis run."""
    try:
        if folder.exists() and not folder.is_dir():
            raise InterbasisError(f"{folder} is a file; name a folder for the run")
        if not folder.is_dir() or all(_is_ours(path) or path.name == FOLDER for path in folder.iterdir()):
            return
    except OSError as error:
        raise InterbasisError(f"could not look into {folder} ({error.strerror})") from error
    try:
        _read_header(folder)
    except InterbasisError as error:
        raise InterbasisError(
            f"{folder} is not empty and not an interbasis run, so nothing was written there; "
            "name a new folder"
        ) from error


def _is_ours(path: Path) -> bool:
    return bool(TENSORS.fullmatch(path.name) or LEFTOVER.fullmatch(path.name))


def _check_shapes(folder: Path, graph: InteractionGraph) -> None:
    """All parts of a run fit together."""
    layers, sections = graph.layers, len(graph.layers) - 1
    whole = len(graph.provenance.widths) == len(layers) >= 2
    if not whole or any(len(many) not in (0, sections) for many in (graph.edges, graph.edge_errors)):
        raise InterbasisError(
            f"{folder} is damaged: {len(layers)} layers do not go with {len(graph.edges)} sections of edges "
            f"and {len(graph.edge_errors)} of errors; build the run again"
        )
    shapes: dict[str, tuple[Tensor | None, tuple[int, ...]]]
    shapes = {f"layers.{k}.eigenvalues": (v.eigenvalues, (v.features,)) for k, v in enumerate(layers)}
    shapes |= {f"layers.{k}.mean": (v.mean, (v.width,)) for k, v in enumerate(layers)}
    for name, many in (("edges", graph.edges), ("edge_errors", graph.edge_errors)):
        for k, matrix in enumerate(many):
            shapes[f"{name}.{k}"] = (matrix, (layers[k + 1].features, layers[k].features))
    for name, (tensor, expected) in shapes.items():
        if tensor is not None and tuple(tensor.shape) != expected:
            raise InterbasisError(
                f"{folder} is damaged: {name} has shape {list(tensor.shape)}, expected {list(expected)}; "
                "build the run again"
            )


def _plain(cut: Cut | None) -> dict[str, Any] | None:
    return None if cut is None else asdict(cut)
