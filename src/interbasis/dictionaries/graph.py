"""The graph between dictionaries: features of every dictionary and the edges from one to the next, sparse.

A graph is a folder: `dictionary_graph.json` says what was asked, on what, and which dictionaries it is of;
the safetensors file that it names holds statistics, edges and bases of LIB. Dictionaries stay in their own
files, and are checked by their SHA-256 when they are opened again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from interbasis.base.errors import InterbasisError, first_problem
from interbasis.base.files import file_sha256, inside, remove, write_atomically, write_text_atomically
from interbasis.base.json_text import parse_json
from interbasis.base.records import Dtype, Measured, Method, Record
from interbasis.base.tensor_file import Entry, write_tensors
from interbasis.dictionaries.lib_bases import LIB, LibBasis
from interbasis.graph.costs import Cost
from interbasis.graph.interaction_graph import Provenance
from interbasis.graph.settings import BuildConfig
from interbasis.graph.store import DICTIONARY_GRAPH, TensorFile, clear_unfinished, sign_names

FORMAT: Literal["interbasis-dictionary-graph"] = "interbasis-dictionary-graph"


class DictionaryReference(Record):
    """A dictionary in its own file."""

    place: str
    """Its place in the network."""
    name: str
    path: str
    """File or folder; "lib" for LIB's basis, which the graph holds; empty where it was given in Python."""
    digest: str
    features: int
    active: int | None
    """k of TopK; None is any number."""


class PairRecord(Record):
    """Summary of the edges between two dictionaries."""

    source: str
    target: str
    tokens: int
    """Tokens that sums are over."""
    nonzero: int
    """Pairs of features that were active together."""
    stored: int
    """The strongest of them, which are stored."""
    stored_share: Measured
    """Share of Σ Ê² over pairs of features in those that are stored."""
    feature_share: Measured
    """Share of features in Σ Ê² over all sources: features, error, carried streams and the constant."""
    through_attention: bool
    """Whether positions mix between the two."""


class DictionaryBuildConfig(Record):
    """Settings of a graph between dictionaries."""

    edge_method: Method = "gradient"
    edge_points: int = Field(16, ge=1)
    edge_positions: int | None = Field(None, ge=1)
    """Output positions sampled per sample; default: all."""
    skip_positions: int = Field(0, ge=0)
    norm_limit: float = Field(0.0, ge=0)
    """Tokens whose norm exceeds this many times the median of their layer are left out; 0 leaves none out."""
    seed: int = Field(0, ge=0, lt=2**63)
    dtype: Dtype = "float32"
    only_dictionaries: bool = True
    """Pass through node layers without a dictionary; else those between the first and the last dictionary
    have LIB's basis."""

    @property
    def lib_settings(self) -> BuildConfig:
        """Settings of LIB's bases between dictionaries; as many positions are sampled in their Jacobians."""
        return BuildConfig.validated(
            edge_method=None, jacobian_queries=self.edge_positions, skip_positions=self.skip_positions,
            norm_limit=self.norm_limit, seed=self.seed, dtype=self.dtype,
        )  # fmt: skip


class DictionaryPlan(Record):
    """Time, memory and disk that a graph between dictionaries takes on this machine."""

    model: str
    samples: int
    positions: int
    """Positions of a sample."""
    processes: int
    """Devices that share the sums over the data."""
    survey: Cost
    bases: Cost
    """LIB's bases; 0 where there are none."""
    edges: Cost
    """Sums over the data."""
    fixed: Cost
    """Time of the preparation of the edges, and of the choice of those that are stored."""
    forward: Cost
    """All data through the network."""
    memory: int
    """Bytes that a process holds without a limit on memory."""
    disk: int
    """Bytes of the run at most."""
    unfinished: int
    """Bytes of sums that a build keeps on disk until it ends, to be resumed."""
    trial: Cost

    @property
    def seconds(self) -> Cost:
        """Time of the whole build by one process."""
        return self.survey + self.bases + self.edges + self.fixed

    @property
    def wall(self) -> float:
        """Seconds of wall time by all processes; of the bases, too, which takes the sums as shared."""
        return self.survey.wall + self.fixed.wall + (self.bases.wall + self.edges.wall) / self.processes


class DictionaryGraphHeader(Record):
    """`dictionary_graph.json`, without what changes with the file."""

    format: Literal["interbasis-dictionary-graph"] = FORMAT
    version: Literal[2] = 2
    layers: tuple[DictionaryReference, ...]
    pairs: tuple[PairRecord, ...]
    config: DictionaryBuildConfig
    norm_limits: tuple[float, ...] = ()
    """Largest norm of a token that counted, by node layer; empty is any."""
    provenance: Provenance


class StoredHeader(DictionaryGraphHeader):
    """`dictionary_graph.json`."""

    tensors: TensorFile


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Statistics of a dictionary's features over the data, [features] each."""

    frequency: Tensor
    """Share of the tokens at which it is active."""
    mean: Tensor
    """Mean activation over all tokens."""
    square: Tensor
    """Mean square of the activation over all tokens."""


@dataclass(frozen=True, eq=False)
class SparseEdges:
    """The strongest edges from the features of one dictionary to those of the next, in descending order."""

    source: Tensor  # [E]
    target: Tensor  # [E]
    rms: Tensor
    """Ê [E]: RMS over all tokens of the attribution, 0 where the target is inactive."""
    rms_active: Tensor
    """RMS over the tokens where both are active, [E]."""
    mean: Tensor
    """Mean over all tokens, with its sign, [E]."""
    frequency: Tensor
    """Share of the tokens where both are active, [E]."""
    error: Tensor | None
    """Standard error of Ê [E] where positions were sampled."""
    remainders: Tensor
    """RMS over all tokens of the attribution to error, carried streams and constant, [features_out, 3]."""

    unstored_mean: Tensor
    """Mean over all tokens of the attributions to features by edges that are not stored, [features_out]."""

    FIELDS = ("source", "target", "rms", "rms_active", "mean", "frequency", "error", "remainders",
              "unstored_mean")  # fmt: skip

    def into(self, feature: int) -> Tensor:  # [e]
        """Places of the edges into a feature of the target, the strongest first."""
        return (self.target == feature).nonzero()[:, 0]


@dataclass(frozen=True, eq=False)
class DictionaryGraph:
    """Features of dictionaries and the edges from one to the next."""

    header: DictionaryGraphHeader
    statistics: Sequence[FeatureStatistics]
    edges: Sequence[SparseEdges]
    bases: Mapping[str, LibBasis] = field(default_factory=dict)
    """Bases of LIB, by place."""

    def __repr__(self) -> str:
        layers = " → ".join(f"{layer.place} ({layer.features})" for layer in self.header.layers)
        stored = sum(pair.stored for pair in self.header.pairs)
        return f"DictionaryGraph({layers}; {stored} edges)"

    @property
    def places(self) -> list[str]:
        """Places of the dictionaries, in the network's order."""
        return [layer.place for layer in self.header.layers]

    @property
    def provenance(self) -> Provenance:
        """Model and data that the graph was built for and on."""
        return self.header.provenance

    def save(self, folder: str | Path, *, signed: bool = False) -> str:
        """Write the graph to a folder, atomically, in place of an older one.

        Args:
            folder: Where it goes; made if it does not exist.
            signed: Sign the model, data and dictionaries that it names, since this user named them.

        Returns:
            SHA-256 of the graph's tensors, which identifies it.

        Raises:
            InterbasisError: The folder cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        entries = [Entry.from_tensor(name, tensor) for name, tensor in self._tensors().items()]
        staged = folder / "dictionary_graph.safetensors.new"
        write_atomically(staged, lambda path: write_tensors(path, entries, {"format": FORMAT}))
        digest = file_sha256(staged)
        file = staged.replace(folder / f"dictionary_graph-{digest[:12]}.safetensors")
        if signed:
            sign_names(folder, self.provenance, digest)
        stored = StoredHeader(**dict(self.header), tensors=TensorFile(file=file.name, sha256=digest))
        write_text_atomically(folder / DICTIONARY_GRAPH, stored.to_json(indent=2) + "\n")
        for old in folder.glob("dictionary_graph-*.safetensors"):
            if old != file:
                remove(old)
        clear_unfinished(folder)
        return digest

    def _tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for k, statistics in enumerate(self.statistics):
            tensors |= {f"layers.{k}.{name}": value for name, value in vars(statistics).items()}
        for k, edges in enumerate(self.edges):
            values = {name: getattr(edges, name) for name in SparseEdges.FIELDS}
            tensors |= {f"edges.{k}.{name}": value for name, value in values.items() if value is not None}
        for place, basis in self.bases.items():
            tensors |= basis.to_tensors(f"bases.{place}.")
        return tensors


def is_dictionary_graph(folder: str | Path) -> bool:
    """Whether a folder holds a graph between dictionaries."""
    return (Path(folder) / DICTIONARY_GRAPH).is_file()


def load_graph(folder: str | Path) -> DictionaryGraph:
    """Read a graph from its folder.

    Raises:
        InterbasisError: There is none, or it is damaged.
    """
    return load_identified_graph(folder)[0]


def load_identified_graph(folder: str | Path) -> tuple[DictionaryGraph, str]:
    """Read a graph and the SHA-256 of its tensors, which identifies it.

    Raises:
        InterbasisError: There is none, or it is damaged.
    """
    folder = Path(folder)
    path = inside(folder, DICTIONARY_GRAPH)
    if not path.is_file():
        raise InterbasisError(
            f"expected a graph made by 'interbasis build --dictionary', but {folder} has no "
            f"{DICTIONARY_GRAPH}"
        )
    try:
        header = StoredHeader.model_validate(parse_json(path.read_text(encoding="utf-8")))
    except (ValueError, ValidationError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else error
        raise InterbasisError(f"{path} is damaged: {reason}; build the graph again") from error
    file = inside(folder, header.tensors.file)
    try:
        if file_sha256(file) != header.tensors.sha256:
            raise InterbasisError(f"{file} is damaged: its SHA-256 differs; build the graph again")
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise InterbasisError(f"could not read {file} ({error}); build the graph again") from error
    plain = DictionaryGraphHeader(
        **{name: getattr(header, name) for name in DictionaryGraphHeader.model_fields}
    )
    try:
        statistics = [
            FeatureStatistics(*(tensors[f"layers.{k}.{name}"] for name in ("frequency", "mean", "square")))
            for k in range(len(header.layers))
        ]
        edges = []
        for k in range(len(header.pairs)):
            values = {name: tensors[f"edges.{k}.{name}"] for name in SparseEdges.FIELDS if name != "error"}
            edges.append(SparseEdges(**values, error=tensors.get(f"edges.{k}.error")))
        bases = {
            layer.place: LibBasis.from_tensors(tensors, f"bases.{layer.place}.")
            for layer in header.layers
            if layer.path == LIB
        }
    except KeyError as error:
        raise InterbasisError(f"{file} is damaged: {error} is missing; build the graph again") from error
    return DictionaryGraph(plain, statistics, edges, bases), header.tensors.sha256


def statistics_from_sums(sums: dict[str, Tensor]) -> FeatureStatistics:
    """Statistics of a dictionary from its sums over tokens."""
    count = sums["tokens"].clamp_min(1)
    return FeatureStatistics(*((sums[name] / count).float() for name in ("active", "sum", "square")))
