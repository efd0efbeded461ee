"""A run in other programs' forms: GraphML, parquet, and the JSON of Neuronpedia's attribution graphs."""

from interbasis.export.graphml import write_graphml
from interbasis.export.neuronpedia import neuronpedia_graph, write_neuronpedia
from interbasis.export.parquet import write_parquet
from interbasis.export.plain import PlainGraph, plain_graph

__all__ = [
    "PlainGraph",
    "neuronpedia_graph",
    "plain_graph",
    "write_graphml",
    "write_neuronpedia",
    "write_parquet",
]
