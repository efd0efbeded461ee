"""A graph in a few numbers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from interbasis.base.records import Basis, Method, Record
from interbasis.graph.interaction_graph import InteractionGraph, LargestDirection
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.named_sources import split_options
from interbasis.graph.precision import Precision, edge_error, eigenvalue_error
from interbasis.network.hooks import hook_names


class LayerSummary(Record):
    """One node layer."""

    name: str
    hook: str | None
    """TransformerLens' name of the place; None where it has none."""
    width: int
    """Coordinates before any were dropped, the constant among them."""
    features: int
    dropped_as_noise: int
    """Directions whose variance is rounding."""
    dropped_as_unused: int
    """Directions without effect on the next layer."""
    last_kept_over_floor: float | None
    """The last kept value in multiples of the noise floor; near 1, the cut runs through a continuum."""
    effective_features: float
    """Participation ratio of what ranks the features, (Σλ)² / Σλ²."""
    largest: float | None
    eigenvalue_error: float | None
    """Median relative standard error of the Λ that carry 90 % of ΣΛ; None where nothing was sampled."""
    largest_direction: LargestDirection | None
    """Share of the variance along the largest direction, and what carries it; None in runs of version 0.1."""


class SectionSummary(Record):
    """The edges of one section, the constant's left out."""

    source: str
    target: str
    edges: int
    largest: float | None
    edges_for_90_percent: int
    """Number of the largest edges that carry 90 % of Ê²."""
    edges_for_99_percent: int
    median_relative_error: float | None
    """Median relative standard error of the edges that carry 90 % of ΣÊ²; None where edges are exact."""
    changed_choices: float | None = None
    """Share of the tokens that visit other experts on the way of integrated gradients than at its end; None
    where there are no experts."""

    @property
    def name(self) -> str:
        return f"{self.source} → {self.target}"


class RunSummary(Record):
    """Contents of a run in a few numbers; layers by name, sections by the name of their source layer."""

    model: str
    """Its name, or its path; empty where it has neither."""
    family: str
    basis: Basis
    edge_method: Method | None
    samples: dict[str, int]
    """Number of samples of data, jacobian_data and edge_data."""
    skip_positions: int
    """First positions that do not count in sums over the data."""
    norm_limit: float | None
    """Tokens with more than so many times the median norm do not count; 0 is no limit."""
    isolate_largest: bool
    """Whether the largest direction of every layer is a feature of its own."""
    token_texts: dict[int, str]
    """Texts of the tokens that carry largest directions, where there is a tokenizer."""
    precision: Precision | None
    """Errors asked for and reached; None in older runs."""
    seconds: dict[str, float]
    """Per phase of the build."""
    versions: dict[str, str]
    too_few_data: str = ""
    """A sentence on layers with no more tokens than coordinates; empty where all have more."""
    unfinished: bool = False
    """Whether the build goes on, or was interrupted: the graph is that of its last round."""
    outdated: tuple[str, ...] = ()
    """Commands whose results in the run's folder were measured on an older graph."""
    layers: dict[str, LayerSummary]
    sections: dict[str, SectionSummary]


def summarise(graph: InteractionGraph, tokenizer: str = "") -> RunSummary:
    """Summarise a graph in a few numbers; ``tokenizer`` is a folder, for a run that names none."""
    widths, directions = graph.provenance.widths, graph.provenance.largest_directions
    hooks, degrees = hook_names(graph.layer_names), graph.config.eigenvalue_degrees
    changed = graph.provenance.changed_choices
    errors: Sequence[Tensor | None] = graph.edge_errors or [None] * len(graph.edges)
    sections = [
        _section(edges, error, *graph.layers[k : k + 2])
        for k, (edges, error) in enumerate(zip(graph.edges, errors, strict=True))
    ]
    return RunSummary(
        model=graph.provenance.shown_model if graph.provenance.model else graph.provenance.model_name,
        **graph.config.model_dump(
            include={"basis", "edge_method", "skip_positions", "norm_limit", "isolate_largest"}
        ),
        **graph.provenance.model_dump(include={"family", "samples", "versions", "precision"}),
        token_texts=_token_texts(graph, tokenizer),
        seconds={phase: round(t, 3) for phase, t in graph.provenance.timings.items()},
        too_few_data=graph.too_few_data,
        layers={
            layer.name: _layer(layer, width, hooks.get(layer.name), directions.get(layer.name), degrees)
            for layer, width in zip(graph.layers, widths, strict=True)
        },
        sections={
            section.source: section.model_copy(update={"changed_choices": changed.get(section.source)})
            for section in sections
        },
    )


def _token_texts(graph: InteractionGraph, tokenizer: str) -> dict[int, str]:
    """Texts of tokens that carry largest directions: by the tokenizer given, the data's or the model's."""
    directions, request = graph.provenance.largest_directions.values(), graph.provenance.request
    tokens = sorted({carrier.index for direction in directions for carrier in direction.tokens})
    named = () if request is None else ((request.data or "", "tokenizer"), (request.model, ""))
    given = ((f"hf:{tokenizer}", ""),) if tokenizer else ()
    for spec, option in (*given, *named) if tokens else ():
        family, _, value = spec.partition(":")
        name, options = split_options(value)
        folder = Path(options.get(option, name if family == "hf" else ""))
        if (folder / "tokenizer.json").is_file():
            from interbasis.analysis.features.contexts import vocabulary

            texts = vocabulary(folder)
            return {token: texts[token] for token in tokens if token < len(texts)}
    return {}


def _layer(
    layer: LayerBasis, width: int, hook: str | None, largest: LargestDirection | None, degrees: int
) -> LayerSummary:
    ranking = torch.zeros(0) if layer.eigenvalues is None else layer.eigenvalues[layer.first_feature :]
    positive = ranking.clamp_min(0)
    noise, unused = layer.variance_cut, layer.jacobian_cut
    cut = unused or noise
    margin = cut.smallest_kept / cut.floor if cut and cut.smallest_kept and cut.floor else None
    return LayerSummary(
        name=layer.name,
        hook=hook,
        width=width,
        features=layer.features,
        dropped_as_noise=noise.dropped if noise else 0,
        dropped_as_unused=unused.dropped if unused else 0,
        last_kept_over_floor=margin,
        effective_features=(positive.sum().square() / positive.square().sum().clamp_min(1e-300)).item(),
        largest=ranking.max().item() if len(ranking) else None,
        eigenvalue_error=eigenvalue_error(layer, degrees),
        largest_direction=largest,
    )


def _section(edges: Tensor, error: Tensor | None, source: LayerBasis, target: LayerBasis) -> SectionSummary:
    inner = edges[target.first_feature :, source.first_feature :]
    squares = inner.square().flatten().sort(descending=True).values
    shares = squares.cumsum(0) / squares.sum()

    def carrying(share: float) -> int:
        """Number of the largest edges that carry the share; 0 where all are 0."""
        return int((shares < share).sum()) + 1 if squares.numel() and squares[0] > 0 else 0

    return SectionSummary(
        source=source.name,
        target=target.name,
        edges=inner.numel(),
        largest=inner.max().item() if inner.numel() else None,
        edges_for_90_percent=carrying(0.9),
        edges_for_99_percent=carrying(0.99),
        median_relative_error=None if error is None else edge_error(edges, error, source, target),
    )
