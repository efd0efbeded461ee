"""The interaction graph: the features of every node layer, the edges between neighbours, their provenance."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator, model_validator
from torch import Tensor

from interbasis.base.printable import printable
from interbasis.base.records import Record, require
from interbasis.graph.largest_direction import LargestDirection
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import BuildConfig, BuildRequest

if TYPE_CHECKING:
    from interbasis.analysis.stages.ablate import AblationResult
    from interbasis.analysis.stages.features import FeaturesResult
    from interbasis.analysis.traces.records import Trace


class Provenance(Record):
    """Where a graph comes from."""

    family: str
    """Kind of network, for people to read."""
    predicts_next: bool = False
    """Whether it is a language model, whose outputs are about the token that follows."""
    model: str
    """Name or path of the model; empty where the graph was built in Python without one."""
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
    processor_timings: dict[str, float] = Field(default_factory=dict)
    """Seconds of the processor per phase, all threads together; empty in older runs."""
    largest_directions: dict[str, LargestDirection] = Field(default_factory=dict)
    """By node layer, over the first tokens of the data; empty in runs of version 0.1."""
    request: BuildRequest | None = None
    """What was asked for by name (model, data, settings), enough to build it again; None from Python."""

    @model_validator(mode="before")
    @classmethod
    def _language_models_by_family(cls, values: Any) -> Any:
        """Runs of version 0.1 have the family alone; language models are all but two of them."""
        if isinstance(values, dict) and "predicts_next" not in values:
            return values | {"predicts_next": values.get("family") not in ("mlp", "modadd")}
        return values

    @field_validator("samples")
    @classmethod
    def _data_are_counted(cls, samples: dict[str, int]) -> dict[str, int]:
        require("data" in samples, "the number of samples of data is missing")
        return samples

    @field_validator("request", mode="before")
    @classmethod
    def _empty_is_none(cls, request: object) -> object:
        """Runs of version 0.1 store an empty request where there was none."""
        return request or None


@dataclass(frozen=True, eq=False)
class InteractionGraph:
    """Features of every node layer and the edges between neighbours."""

    layers: list[LayerBasis]
    edges: Sequence[Tensor]
    """Ê per section, [features_out, features_in]; empty where a build left them out."""
    config: BuildConfig
    provenance: Provenance
    edge_errors: Sequence[Tensor] = field(default_factory=list)
    """Standard errors of Ê where it was estimated with stochastic sources."""

    def __post_init__(self) -> None:
        directions, skipped = self.provenance.largest_directions, self.config.skip_positions
        limits = {name: direction.norm_limit for name, direction in directions.items()}
        layers = [layer.counting(skipped, limits.get(layer.name)) for layer in self.layers]
        object.__setattr__(self, "layers", layers)

    def __repr__(self) -> str:
        layers = " → ".join(f"{layer.name} ({layer.features})" for layer in self.layers)
        text = f"InteractionGraph({self.config.basis}: {layers}; {len(self.edges)} sections with edges)"
        return printable(text)

    def centred_layers(self) -> list[LayerBasis]:
        """The layers with 0 as every feature's mean, for ablations and traces; the last one as it is.

        In the neuron basis f̂ = f, so there 0 is not the mean.
        """
        return [*(layer.centred() for layer in self.layers[:-1]), *self.layers[-1:]]

    def _repr_html_(self) -> str:
        """The graph as a page inside a notebook."""
        from interbasis.show.viewer import graph_html

        return graph_html(self)

    def to_html(self, file: str | Path) -> Path:
        """Write the graph as one HTML file that works from disk, with all results of its run.

        Args:
            file: The file; an older one is replaced.

        Returns:
            The file.

        Raises:
            InterbasisError: It cannot be written.
        """
        from interbasis.show.viewer import write_graph

        return write_graph(self, file)

    def label(self, **settings: Any) -> "FeaturesResult":
        """Find out what the features respond to and do; from then on the graph shows their labels.

        Args:
            **settings: Fields of `FeaturesRequest`: ``top``, ``ends``, ``data``, …

        Returns:
            Labels, statistics and effects, by layer; stored in the run, if the graph was saved.

        Raises:
            InterbasisError: The graph was loaded from a run that does not name its model.
        """
        from interbasis.analysis.workspace import open_graph

        return open_graph(self).features(**settings)

    def ablate(self, **settings: Any) -> "AblationResult":
        """Find the fewest edges that keep the metric; from then on the graph shows them.

        Args:
            **settings: Fields of `AblateRequest`: ``sections``, ``tolerance``, ``data``, …

        Returns:
            Edges and nodes required, by section and layer; stored in the run, if the graph was saved.

        Raises:
            InterbasisError: The graph was loaded from a run that does not name its model.
        """
        from interbasis.analysis.workspace import open_graph

        return open_graph(self).ablate(**settings)

    def trace(self, prompt: str | None = None, **settings: Any) -> "Trace":
        """Trace one computation; from then on it is among the graph's prompts.

        Args:
            prompt: A text, for a model with a tokenizer; else ``sample=``, a sample of the data.
            **settings: Fields of `TraceRequest`: ``output``, ``minus``, ``feature``, ``position``, …

        Returns:
            The graph of that computation; stored in the run, if the graph was saved.

        Raises:
            InterbasisError: There is no tokenizer, output, feature or sample of that name.
        """
        from interbasis.analysis.workspace import open_graph

        return open_graph(self).trace(prompt, **settings).trace

    @property
    def layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    @property
    def section_names(self) -> list[str]:
        """Sections by the name of their source layer, in the network's order."""
        return self.layer_names[:-1]

    def inner_edges(self, k: int) -> Tensor:  # [features_out, features_in]
        """The edges of section k without those of the constant."""
        source, target = self.layers[k : k + 2]
        return self.edges[k][target.first_feature :, source.first_feature :]

    def save(self, folder: str | Path) -> Path:
        """Write the run to a folder, atomically, in place of an older run if there is one.

        Args:
            folder: Where it goes; made if it does not exist.

        Returns:
            The folder.

        Raises:
            InterbasisError: The graph holds NaN, the folder holds something else than a run, or it cannot be
                written.
        """
        from interbasis.graph.store import save

        return save(self, folder)
