"""A run in other programs' forms: GraphML, parquet, and the JSON of Neuronpedia's attribution graphs."""

from interbasis.show.export.graphml import write_graphml
from interbasis.show.export.neuronpedia import neuronpedia_graph, write_neuronpedia
from interbasis.show.export.parquet import write_parquet
from interbasis.show.export.plain import PlainGraph, plain_graph

__all__ = [
    "PlainGraph",
    "neuronpedia_graph",
    "plain_graph",
    "write_graphml",
    "write_neuronpedia",
    "write_parquet",
]
