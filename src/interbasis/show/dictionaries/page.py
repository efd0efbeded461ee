"""A graph between dictionaries as one HTML file: search, one feature with its neighbours, traces.

Of every feature the strongest neighbours on either side travel with the page, so that it stays small however
many features there are.
"""

import base64
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jinja2.utils import htmlsafe_json_dumps
from torch import Tensor

from interbasis.analysis.dictionaries.descriptions import DescribedFeature, DescriptionsResult
from interbasis.analysis.dictionaries.trace import DictionaryTrace
from interbasis.analysis.stored_results import load_named, load_result
from interbasis.base.version import VERSION
from interbasis.dictionaries.graph import (
    DictionaryGraph,
    FeatureStatistics,
    SparseEdges,
    load_identified_graph,
)
from interbasis.show.html import render
from interbasis.show.sentences import read_texts
from interbasis.show.viewer.page import PageFiles

HERE = Path(__file__).parent
TEXTS: dict[str, str] = read_texts("dictionaries/claims.toml")["about"]
NEIGHBOURS = 10
"""Neighbours of a feature on either side that the page holds."""
FULLY_SHOWN, FEW_EXAMPLES = 2000, 2
"""Strongest features of a layer that have all their examples on the page, and examples of the others."""


def read_files() -> PageFiles:
    """The page's script and style."""
    return PageFiles(
        (HERE / "page.js").read_text(encoding="utf-8"), (HERE / "page.css").read_text(encoding="utf-8")
    )


def folder_html(folder: str | Path, files: PageFiles | None = None) -> str:
    """The page of a graph in its folder, with the results beside it."""
    graph, digest = load_identified_graph(folder)
    described = load_result(folder, DescriptionsResult, digest=digest)
    traces = load_named(folder, DictionaryTrace, digest=digest)
    return graph_html(graph, described, list(traces.values()), files)


def graph_html(
    graph: DictionaryGraph,
    described: DescriptionsResult | None,
    traces: Sequence[DictionaryTrace],
    files: PageFiles | None = None,
) -> str:
    """Make the page.

    Args:
        graph: The graph.
        described: Descriptions of its features; None where they were not made.
        traces: Its traces.
        files: The page's script and style, where they were read already.
    """
    header, files = graph.header, files or read_files()
    words = {} if described is None else dict(described.words)
    features = {} if described is None else {layer.place: layer.features for layer in described.layers}
    for trace in traces:
        words |= trace.words
    values: dict[str, object] = {
        "layers": [
            {
                "place": layer.place,
                "frequency": _encoded(statistics.frequency),
                "variance": _encoded(statistics.square - statistics.mean.square()),
                "described": _described(features.get(layer.place, ()), statistics),
            }
            for layer, statistics in zip(header.layers, graph.statistics, strict=True)
        ],
        "pairs": [_neighbours(edges) for edges in graph.edges],
        "traces": [trace.model_dump(mode="json") for trace in traces],
        "tokens": {str(token): text for token, text in words.items()},
        "about": [
            TEXTS["edges"].format(
                rule=header.config.edge_method, samples=graph.provenance.samples["data"], version=VERSION
            ),
            *(TEXTS["pair"].format(pair=pair) for pair in header.pairs),
            TEXTS["caution"],
        ],
    }
    return render(
        (HERE / "page.html").read_text(encoding="utf-8"),
        title=f"{_short_name(graph.provenance.model)}: features of {len(header.layers)} dictionaries",
        policy=files.policy("'none'"),
        files=files,
        json=htmlsafe_json_dumps(values),
    )


def _described(features: Sequence[DescribedFeature], statistics: FeatureStatistics) -> list[object]:
    """Described features as [number, [relation, tokens, size, precision, recall], [[value, place, tokens]]].

    All examples of the strongest features are held, and a few of the others.
    """
    variance = statistics.square - statistics.mean.square()
    strongest = set(variance.topk(min(FULLY_SHOWN, len(variance))).indices.tolist())
    rows: list[object] = []
    for feature in features:
        known = feature.description
        words = known and [known.relation, known.tokens, known.size, known.precision, known.recall]
        shown = feature.examples[: None if feature.feature in strongest else FEW_EXAMPLES]
        examples = [[float(f"{one.value:.4g}"), one.place, one.tokens] for one in shown]
        rows.append([feature.feature, words, examples])
    return rows


def _short_name(model: str) -> str:
    """A model's name without its kind and folder."""
    return model.partition(":")[2].rstrip("/").rpartition("/")[2].partition(",")[0] or model or "Model"


def _neighbours(edges: SparseEdges) -> dict[str, str]:
    """The strongest edges into and out of every feature, in descending order."""
    kept = _first_of_each(edges.target) | _first_of_each(edges.source)
    return {
        "sources": _encoded(edges.source[kept]),
        "targets": _encoded(edges.target[kept]),
        "rms": _encoded(edges.rms[kept]),
        "mean": _encoded(edges.mean[kept]),
    }


def _first_of_each(features: Tensor) -> Tensor:  # [E] -> [E], bool
    """Whether an edge is among the first NEIGHBOURS of its feature."""
    order = features.argsort(stable=True)
    ordered = features[order]
    starts = torch.searchsorted(ordered, ordered)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - starts
    return rank < NEIGHBOURS


def _encoded(numbers: Tensor) -> str:
    array = numbers.numpy()
    kind = np.uint32 if np.issubdtype(array.dtype, np.integer) else np.float32
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()
