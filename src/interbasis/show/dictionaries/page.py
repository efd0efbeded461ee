"""A graph between dictionaries as one HTML file: search, one feature with its neighbours, traces.

Of every feature the strongest neighbours on either side travel with the page, so that it stays small however
many features there are.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from interbasis.base.version import VERSION
from interbasis.dictionaries.graph import DictionaryGraph, SparseEdges
from interbasis.dictionaries.labels import DescribedFeature
from interbasis.dictionaries.trace import DictionaryTrace
from interbasis.show.html import encodable, escaped

NEIGHBOURS = 10
"""Neighbours of a feature on either side that the page holds."""


def dictionary_page(
    graph: DictionaryGraph,
    descriptions: Mapping[str, Sequence[DescribedFeature]],
    traces: Mapping[str, DictionaryTrace],
    names: Sequence[str] | None,
) -> str:
    """Make the page.

    Args:
        graph: The graph.
        descriptions: Described features by place; empty where they were not made.
        traces: Traces by name.
        names: Texts of tokens; None where there is no tokenizer.
    """
    header = graph.header
    shown = {
        token for features in descriptions.values() for feature in features for token in _tokens(feature)
    }
    shown |= {token for trace in traces.values() for token in (*trace.tokens, trace.target)}
    values: dict[str, object] = {
        "layers": [
            {
                "place": layer.place,
                "frequency": _encoded(statistics.frequency),
                "variance": _encoded(statistics.square - statistics.mean.square()),
                "described": [
                    feature.model_dump(mode="json") for feature in descriptions.get(layer.place, ())
                ],
            }
            for layer, statistics in zip(header.layers, graph.statistics, strict=True)
        ],
        "pairs": [_neighbours(edges) for edges in graph.edges],
        "traces": [{"name": name, **trace.model_dump(mode="json")} for name, trace in traces.items()],
        "tokens": {} if names is None else {str(k): names[k] for k in sorted(shown) if 0 <= k < len(names)},
        "about": _about(graph),
    }
    folder = files("interbasis.show.dictionaries")
    page = folder.joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "title": escaped(f"{_short_name(header.model)}: features of {len(header.layers)} dictionaries"),
        "css": folder.joinpath("page.css").read_text(encoding="utf-8"),
        "data": encodable(json.dumps(values, ensure_ascii=False)).replace("<", "\\u003c"),
        "script": folder.joinpath("page.js").read_text(encoding="utf-8"),
    }
    for name, text in parts.items():
        page = page.replace("{{ " + name + " }}", text)
    return page


def _short_name(model: str) -> str:
    """A model's name without its kind and folder."""
    return model.partition(":")[2].rstrip("/").rpartition("/")[2].partition(",")[0] or model or "Model"


def _tokens(feature: DescribedFeature) -> list[int]:
    described = feature.description.tokens if feature.description else ()
    return [*described, *(token for example in feature.examples for token in example.tokens)]


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


def _about(graph: DictionaryGraph) -> list[str]:
    header = graph.header
    lines = [
        f"Edges are attributions of a feature's pre-activation to the features of the dictionary before "
        f"(rule: {header.config.edge_method}), over {header.samples:,} samples, interbasis {VERSION}."
    ]
    for pair in header.pairs:
        lines.append(
            f"{pair.source} → {pair.target}: {pair.nonzero:,} pairs of features were active together; the "
            f"{pair.stored:,} strongest are stored and hold {pair.stored_share:.1%} of Σ Ê². Features hold "
            f"{pair.feature_share:.1%} of Σ Ê² over all sources; the rest is the dictionary's error, what "
            "is carried past it, and the constant."
        )
    lines.append(
        "An edge says what one feature does to another on average, not that it matters to the output."
    )
    return lines
