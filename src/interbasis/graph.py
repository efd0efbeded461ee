"""The interaction graph: what a run *is*, and how it is kept on disk.

A run is a folder with `config.json` (what was asked, on what, with which versions, how long it took) and
one safetensors file (bases and edges) that `config.json` names together with its SHA-256. The tensors are
written first and under a new name, `config.json` last, each atomically: whoever reads the folder sees the
old run or the new one. Other results may lie beside them.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from interbasis.basis import LayerBasis
from interbasis.config import BuildConfig
from interbasis.errors import InterbasisError
from interbasis.files import sha256_of, write_atomically, write_text_atomically
from interbasis.linalg import Cut

FORMAT = "interbasis-graph"
SCHEMA = 1
CONFIG = "config.json"
OURS = re.compile(r"\.?graph.*\.safetensors.*|\.config\.json\..*\.tmp")
"""What an interrupted first save may leave behind."""
PER_LAYER = ("transform", "inverse", "mean", "eigenvalues", "variances")


@dataclass(frozen=True)
class Provenance:
    """Where a graph comes from."""

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

    def save(self, folder: str | Path) -> Path:
        """Write the run to a folder, in place of an older run if there is one; atomically."""
        folder = Path(folder)
        tensors = self._tensors()
        for name, tensor in tensors.items():
            _check_finite(name, tensor, f"this graph was not saved to {folder}")
        _check_is_free(folder)
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
                    "variance_cut": _plain(layer.variance_cut),
                    "jacobian_cut": _plain(layer.jacobian_cut),
                }
                for layer in self.layers
            ],
            "edges": len(self.edges),
            "edge_errors": len(self.edge_errors),
            "config": self.config.model_dump(),
            "provenance": asdict(self.provenance),
        }
        write_text_atomically(folder / CONFIG, json.dumps(header, indent=2) + "\n")
        for old in folder.glob("graph-*.safetensors"):
            if old != file:
                old.unlink()
        return folder

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for k, layer in enumerate(self.layers):
            for name in PER_LAYER:
                tensor = getattr(layer, name)
                if tensor is not None:
                    tensors[f"layers.{k}.{name}"] = tensor.detach().cpu().contiguous().clone()
        for name, many in (("edges", self.edges), ("edge_errors", self.edge_errors)):
            tensors |= {f"{name}.{k}": t.detach().cpu().contiguous().clone() for k, t in enumerate(many)}
        return tensors


def load(folder: str | Path) -> InteractionGraph:
    """Read a run's folder; one that is truncated, foreign, newer or holds NaN is refused."""
    folder = Path(folder)
    header = _read_header(folder)
    tensors = _read_tensors(folder, header)
    try:
        layers = [
            LayerBasis(
                spec["name"],
                **_given(tensors, f"layers.{k}."),
                constant=spec["constant"],
                variance_cut=_cut(spec["variance_cut"]),
                jacobian_cut=_cut(spec["jacobian_cut"]),
            )
            for k, spec in enumerate(header["layers"])
        ]
        edges = [tensors[f"edges.{k}"] for k in range(header["edges"])]
        errors = [tensors[f"edge_errors.{k}"] for k in range(header["edge_errors"])]
        provenance = dict(header["provenance"])
        provenance["widths"] = tuple(provenance["widths"])
        config = BuildConfig.of(**header["config"])
        graph = InteractionGraph(layers, edges, config, Provenance(**provenance), errors)
    except (KeyError, TypeError, AttributeError) as error:
        raise InterbasisError(
            f"{folder / CONFIG} is damaged: something is missing or misplaced ({error}); build the run again"
        ) from error
    _check_shapes(folder, layers, [*edges, *errors])
    return graph


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        there = "is no folder" if not folder.is_dir() else f"has no {CONFIG}"
        raise InterbasisError(f"expected a run made by 'interbasis build', but {folder} {there}")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InterbasisError(f"{path} is not readable JSON ({error}); build the run again") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InterbasisError(f"{folder} is not an interbasis run: {path.name} has no format {FORMAT!r}")
    schema = header.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise InterbasisError(
            f"{folder} was written with schema {schema}, this version reads up to {SCHEMA}; "
            "upgrade interbasis to read it"
        )
    return header


def _read_tensors(folder: Path, header: dict[str, Any]) -> dict[str, Tensor]:
    try:
        name, digest = header["tensors"]["file"], header["tensors"]["sha256"]
    except (KeyError, TypeError) as error:
        raise InterbasisError(f"{folder / CONFIG} is damaged: it names no tensor file") from error
    if not re.fullmatch(r"graph-[0-9a-f]+\.safetensors", str(name)):
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


def _check_is_free(folder: Path) -> None:
    """A folder may be written to if it is new, empty, or an interbasis run."""
    if folder.exists() and not folder.is_dir():
        raise InterbasisError(f"{folder} is a file; name a folder for the run")
    if folder.is_dir() and any(not OURS.fullmatch(path.name) for path in folder.iterdir()):
        try:
            _read_header(folder)
        except InterbasisError as error:
            raise InterbasisError(
                f"{folder} is not empty and not an interbasis run, so nothing was written there; "
                "name a new folder"
            ) from error


def _check_shapes(folder: Path, layers: Sequence[LayerBasis], matrices: Sequence[Tensor]) -> None:
    for k, edges in enumerate(matrices):
        k = k % (len(layers) - 1)
        expected = (layers[k + 1].features, layers[k].features)
        if tuple(edges.shape) != expected:
            raise InterbasisError(
                f"{folder} is damaged: the edges of section {k} have shape {list(edges.shape)}, its layers "
                f"want {list(expected)}; build the run again"
            )


def _given(tensors: dict[str, Tensor], prefix: str) -> dict[str, Any]:
    return {name: tensors.get(prefix + name) for name in PER_LAYER}


def _plain(cut: Cut | None) -> dict[str, Any] | None:
    return None if cut is None else asdict(cut)


def _cut(plain: dict[str, Any] | None) -> Cut | None:
    return None if plain is None else Cut(**plain)
