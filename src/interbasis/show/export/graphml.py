"""GraphML, for Gephi, Cytoscape, igraph and networkx."""

import re
from dataclasses import asdict
from pathlib import Path

import networkx as nx

from interbasis.base.files import write_atomically
from interbasis.show.export.plain import PlainGraph

Value = str | int | float | bool
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""


def write_graphml(graph: PlainGraph, file: str | Path) -> Path:
    """A directed graph; an edge's weight is Ê. What was left out stands in the graph's own attributes."""
    drawn = nx.DiGraph(
        name=_text(f"{graph.about.basis} of {graph.about.model or graph.about.family}"),
        left_out=_text(graph.left_out),
        interbasis=_text(graph.notes().to_json()),
    )
    for node in graph.nodes:
        attributes = asdict(node)
        drawn.add_node(attributes.pop("id"), **_known(attributes))
    for edge in graph.edges:
        attributes = asdict(edge)
        source, target, weight = (attributes.pop(key) for key in ("source", "target", "strength"))
        drawn.add_edge(source, target, weight=weight, **_known(attributes))
    path = Path(file)
    write_atomically(path, lambda temporary: nx.write_graphml_xml(drawn, temporary))
    return path


def _known(attributes: dict[str, Value | None]) -> dict[str, Value]:
    """GraphML has no null: what is not known is left out."""
    return {
        key: _text(value) if isinstance(value, str) else value
        for key, value in attributes.items()
        if value is not None
    }


def _text(value: str) -> str:
    return NOT_XML.sub("\ufffd", value)
