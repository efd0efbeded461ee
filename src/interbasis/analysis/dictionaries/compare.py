"""Two graphs between dictionaries of one model: dictionaries that they share, and how alike edges are."""

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.records import Measured, Record
from interbasis.dictionaries.graph import DictionaryGraph, PairRecord, SparseEdges

STRONGEST = 1000
"""Edges of a pair whose overlap is counted."""


class ComparedDictionary(Record):
    """A place where at least one of the graphs has a dictionary."""

    features: tuple[int | None, int | None]
    """Features in either graph; None where it has no dictionary there."""
    same: bool
    """Whether both have the same dictionary, so that features can be compared by number."""


class ComparedPair(Record):
    """Edges between two places that both graphs have."""

    source: str
    target: str
    summaries: tuple[PairRecord, PairRecord]
    strongest: int | None
    """Edges whose overlap is counted; None where the dictionaries differ."""
    shared: Measured | None
    """Share of the strongest edges of one graph that are among those of the other."""
    correlation: Measured | None
    """Spearman's correlation of Ê over the edges that both store."""
    same_sign: Measured | None
    """Share of these whose mean has the same sign."""


class DictionaryComparison(Record):
    """Two graphs between dictionaries of one model."""

    model: str
    same_data: bool
    places: dict[str, ComparedDictionary]
    pairs: dict[str, ComparedPair]
    """By the place of the source."""


def compare_graphs(one: DictionaryGraph, other: DictionaryGraph) -> DictionaryComparison:
    """Compare two graphs between dictionaries.

    Raises:
        InterbasisError: They are of different models, or have no place in common.
    """
    a, b = one.provenance, other.provenance
    if a.model_fingerprint != b.model_fingerprint:
        raise InterbasisError(
            f"these are graphs of different models ({a.model or a.family} and {b.model or b.family}, whose "
            "weights differ); compare two graphs of one model"
        )
    layers = [{layer.place: layer for layer in graph.header.layers} for graph in (one, other)]
    if not layers[0].keys() & layers[1].keys():
        raise InterbasisError(
            f"the graphs have no place in common ({', '.join(layers[0])} and {', '.join(layers[1])}); build "
            "them with dictionaries at the same places"
        )
    places = {}
    for place in dict.fromkeys([*layers[0], *layers[1]]):
        found = [graph.get(place) for graph in layers]
        features = tuple(None if layer is None else layer.features for layer in found)
        digests = [layer.digest if layer is not None else "" for layer in found]
        places[place] = ComparedDictionary(
            features=(features[0], features[1]), same=bool(digests[0]) and digests[0] == digests[1]
        )
    pairs = {}
    for k, pair in enumerate(one.header.pairs):
        for m, twin in enumerate(other.header.pairs):
            if (pair.source, pair.target) == (twin.source, twin.target):
                same = places[pair.source].same and places[pair.target].same
                measured = _compare_edges(one.edges[k], other.edges[m]) if same else {}
                empty = dict.fromkeys(("strongest", "shared", "correlation", "same_sign"))
                pairs[pair.source] = ComparedPair(
                    source=pair.source, target=pair.target, summaries=(pair, twin), **(empty | measured)
                )
    return DictionaryComparison(
        model=a.model, same_data=a.data_fingerprints == b.data_fingerprints, places=places, pairs=pairs
    )


def _compare_edges(a: SparseEdges, b: SparseEdges) -> dict[str, float | int]:
    from scipy.stats import spearmanr

    strongest = min(STRONGEST, len(a.rms), len(b.rms))
    shared = torch.isin(_codes(a)[:strongest], _codes(b)[:strongest]).double().mean().item()
    codes, order = _codes(b).sort()
    found = torch.searchsorted(codes, _codes(a)).clamp_max(len(codes) - 1)
    both = codes[found] == _codes(a)
    twins = order[found[both]]
    ranks = spearmanr(a.rms[both], b.rms[twins]).statistic if both.sum() > 2 else float("nan")
    signs = (a.mean[both].sign() == b.mean[twins].sign()).double().mean().item()
    return {"strongest": strongest, "shared": shared, "correlation": float(ranks), "same_sign": signs}


def _codes(edges: SparseEdges) -> Tensor:
    return edges.target.long() * 2**31 + edges.source.long()
