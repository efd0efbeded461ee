"""JSON after Neuronpedia's schema of attribution graphs, as far as a graph of a whole dataset can follow it.
circuit-tracer reads it, too.

An attribution graph is about one prompt: its nodes stand at tokens and have activations, its links are
signed. An interaction graph is about a dataset. So

- the prompt is a sentence that says so, its only token stands for all positions, every `ctx_idx` is 0;
- a link's weight is Ê, a root mean square over the data, and has no sign;
- `activation`, `influence`, token probabilities, error nodes and embedding nodes are left out;
- features are in a basis that Neuronpedia does not host, so there are no feature details to fetch; they have
  the type "cross layer transcoder", since pages draw features by that name, and outputs the type "logit";
- `layer` counts node layers, of which a transformer block has several;
- modules, where they were found, are supernodes of their members among the first features of each layer.

The file says all this itself, in `metadata.info.description` and `metadata.left_out`.
"""

import json
import re
from pathlib import Path
from typing import Any

from interbasis.base.files import write_text_atomically
from interbasis.show.export.plain import NodeRow, PlainGraph

MAX_PINNED_PER_LAYER = 10
"""Features of each layer that are pinned as members of their module."""
LEFT_OUT = [
    "prompt and tokens: the graph is about a dataset, its one token stands for all positions",
    "signs of links: a weight is Ê, a root mean square over the data",
    "activation and influence of nodes, token probabilities",
    "error nodes and embedding nodes",
    "feature details: the features are not hosted anywhere",
]


def neuronpedia_graph(graph: PlainGraph, slug: str = "interbasis") -> dict[str, Any]:
    """The graph as Neuronpedia's schema has it; see the head of this module for what is left out."""
    about = graph.about
    name = about.model or about.family
    samples = about.samples["data"]
    last = max(node.layer_index for node in graph.nodes)
    outputs = not any(node.constant for node in graph.nodes if node.layer_index == last)
    nodes = [node for node in graph.nodes if not node.constant]
    description = (
        f"Interaction graph ({about.basis} basis) of {name} over {samples:,} samples: a graph of a "
        f"dataset, not the attribution graph of a prompt. {graph.left_out} Left out of the schema: "
        f"{'; '.join(LEFT_OUT)}."
    )
    pinned, supernodes = _modules(nodes)
    return {
        "metadata": {
            "slug": re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") or "interbasis",
            "scan": name,
            "transcoder_list": [],
            "prompt_tokens": ["(all positions)"],
            "prompt": f"(a dataset of {samples:,} samples)",
            "info": {
                "description": description,
                "generator": {"name": "interbasis", "version": about.versions.get("interbasis", "")},
            },
            "generation_settings": about.settings.model_dump(mode="json"),
            "pruning_settings": {"written": [section.written for section in graph.sections]},
            "left_out": LEFT_OUT,
            "layers": list(dict.fromkeys(node.layer for node in graph.nodes)),
        },
        "qParams": {"pinnedIds": pinned, "supernodes": supernodes, "linkType": "both", "clickedId": "",
                    "sg_pos": ""},
        "nodes": [_node(node, "logit" if outputs and node.layer_index == last else None) for node in nodes],
        "links": [
            {"source": f"{edge.source}_0", "target": f"{edge.target}_0", "weight": edge.strength}
            for edge in graph.edges
        ],
    }  # fmt: skip


def write_neuronpedia(graph: PlainGraph, file: str | Path, slug: str | None = None) -> Path:
    """Write the JSON; the slug is the file's name unless another is given."""
    path = Path(file)
    text = json.dumps(neuronpedia_graph(graph, slug or path.stem), allow_nan=False)
    write_text_atomically(path, text + "\n")
    return path


def _node(node: NodeRow, kind: str | None) -> dict[str, str | int]:
    return {
        "node_id": f"{node.id}_0",
        "feature": node.feature,
        "layer": str(node.layer_index),
        "ctx_idx": 0,
        "feature_type": kind or "cross layer transcoder",
        "jsNodeId": f"{node.id}-0",
        "clerp": f"{node.layer} {node.feature}" + (f": {node.label}" if node.label else ""),
    }


def _modules(nodes: list[NodeRow]) -> tuple[list[str], list[list[str]]]:
    """Pinned nodes, and a list per module: its name and the pinned members."""
    members: dict[int, list[str]] = {}
    for node in nodes:
        if node.module is not None and node.module >= 0 and node.feature <= MAX_PINNED_PER_LAYER:
            members.setdefault(node.module, []).append(f"{node.id}_0")
    groups = [[f"module {module}", *ids] for module, ids in sorted(members.items())]
    return [node for _, *ids in groups for node in ids], groups
