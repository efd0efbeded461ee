"""Sparse dictionaries of activations: more features than dimensions, few of them active at a token.

Sparse autoencoders and transcoders of SAELens, sparsify, Gemma Scope and circuit-tracer are read into one
form, `Dictionary`, that encodes and decodes as the library that trained them does.
"""

from typing import TYPE_CHECKING

from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis.dictionaries.circuit_tracer import TranscoderSet as TranscoderSet
    from interbasis.dictionaries.dictionary import Dictionary as Dictionary
    from interbasis.dictionaries.formats import load as load
    from interbasis.dictionaries.graph import DictionaryGraph as DictionaryGraph
    from interbasis.dictionaries.graph import load_graph as load_graph
    from interbasis.dictionaries.network_training import train as train
    from interbasis.dictionaries.replacement import with_transcoder as with_transcoder
    from interbasis.dictionaries.sae_lens import save as save
    from interbasis.dictionaries.scores import score as score

_HOMES = {
    "load": "formats",
    "save": "sae_lens",
    "train": "network_training",
    "score": "scores",
    "load_graph": "graph",
    "Dictionary": "dictionary",
    "DictionaryGraph": "graph",
    "TranscoderSet": "circuit_tracer",
    "with_transcoder": "replacement",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
