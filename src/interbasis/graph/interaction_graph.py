"""The interaction graph: the features of every node layer, the edges between neighbours, their provenance."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator
from torch import Tensor

from interbasis.base.lazy import notebook_html
from interbasis.base.messages import printable
from interbasis.base.records import Record, require
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.precision import Precision
from interbasis.graph.settings import BuildConfig, BuildRequest

MAX_LAYERS_SHOWN = 8
"""Layers up to which the text of a graph names all of them."""


class Carrier(Record):
    """A position, or a token of the vocabulary."""

    index: int
    share: float
    """Share of the variance along the layer's largest direction."""


class LargestDirection(Record):
    """The direction of largest variance at one node layer, over some of the tokens of the data."""

    share: float
    """Share of the layer's variance, over all tokens."""
    share_counted: float
    """The same over the tokens that count in the sums of the build, along their own largest direction."""
    left_out: float
    """Share of the tokens that do not count."""
    norm_limit: float | None
    """Largest norm of a token that counts; None is any."""
    median_norm: float
    largest_norm: float
    positions: tuple[Carrier, ...] = ()
    """Positions that carry most of the direction over all tokens; empty where there is one position."""
    tokens: tuple[Carrier, ...] = ()
    """Tokens of the vocabulary that do; empty where inputs are no tokens."""


class Provenance(Record):
    """Origin of a graph: model, data, versions, times."""

    family: str
    """Kind of network, for people to read."""
    predicts_next: bool = False
    """Whether it is a language model, whose outputs are about the token that follows."""
    model: str
    """Name or path of the model; empty where the graph was built in Python without one."""
    model_name: str = ""
    """Name of the model that is shown; empty where it has none but that in ``model``."""
    class_names: tuple[str, ...] = ()
    """Names of the outputs, where they are known and no tokens."""
    feature_names: tuple[str, ...] = ()
    """Names of the inputs, where they are known."""
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
    changed_choices: dict[str, float] = Field(default_factory=dict)
    """Share of the tokens that visit other experts on the way of integrated gradients than at its end, by the
    source layer of every section with experts."""
    working_folder: str = ""
    """Path from the run's folder to the folder in which model and data were named; empty in older runs."""
    precision: Precision | None = None
    """Precision asked for and reached; None in older runs."""
    request: BuildRequest | None = None
    """Request by name (model, data, settings), enough to build it again; None from Python."""

    @property
    def shown_model(self) -> str:
        """Name of the model, its path without the folders above, or its family."""
        return self.model_name or re.sub(r"(?<=:)(\.{1,2}/)+", "", self.model) or self.family

    def naming_folder(self, run: Path | None) -> Path | None:
        """Folder in which the model and data of a run in a folder were named; None where it is not known."""
        if run is None or not self.working_folder:
            return None
        return Path(os.path.normpath(run.absolute() / self.working_folder))

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
        names = [f"{layer.name} ({layer.features})" for layer in self.layers]
        if len(names) > MAX_LAYERS_SHOWN:
            names[2:-2] = [f"… {len(names) - 4} layers …"]
        layers = " → ".join(names)
        text = f"InteractionGraph({self.config.basis}: {layers}; {len(self.edges)} sections with edges)"
        return printable(text)

    def _repr_html_(self) -> str:
        """The graph as a page inside a notebook."""
        return notebook_html(self)

    def scarce_layers(self, tokens_per_coordinate: int) -> dict[str, str]:
        """Layers whose basis was found from at most so many tokens per coordinate, with both numbers."""
        counted = [layer for layer in self.layers if layer.tokens is not None and not layer.identity]
        sizes = {layer.name: (layer.tokens or 0, layer.width - layer.first_feature) for layer in counted}
        return {
            name: f"{tokens:,} token{'s' if tokens > 1 else ''} for {coordinates:,} coordinates"
            for name, (tokens, coordinates) in sizes.items()
            if tokens <= tokens_per_coordinate * coordinates
        }

    @property
    def too_few_data(self) -> str:
        """A sentence on the layers that have no more tokens than coordinates; empty where all have more."""
        layers = [f"{name} has {sizes}" for name, sizes in self.scarce_layers(1).items()]
        if not layers:
            return ""
        more = f" and {len(layers) - MAX_LAYERS_SHOWN} more layers" if len(layers) > MAX_LAYERS_SHOWN else ""
        return (
            f"too few data: {', '.join(layers[:MAX_LAYERS_SHOWN])}{more}; directions are missing there, and "
            "what is called noise may be signal; use more samples, at least ten tokens (samples × positions) "
            "per coordinate"
        )

    def centred_layers(self) -> list[LayerBasis]:
        """The layers with 0 as every feature's mean, for ablations and traces; the last one as it is.

        In the neuron basis f̂ = f, so there 0 is not the mean.
        """
        return [*(layer.centred() for layer in self.layers[:-1]), *self.layers[-1:]]

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
        """Write the graph to a folder, atomically, in place of an older run if there is one.

        Args:
            folder: Where it goes; made if it does not exist.

        Returns:
            The folder.

        Raises:
            InterbasisError: The graph holds NaN, the folder holds something else than a run, or it cannot be
                written.
        """
        from interbasis.graph.store import save

        save(self, folder)
        return Path(folder)
