"""Attribution graphs against the schemas of Neuronpedia and circuit-tracer, in tests/show/export/schemas."""

import json
from pathlib import Path

import jsonschema

SCHEMAS = Path(__file__).parent / "show" / "export" / "schemas"


def complaints(file: Path) -> list[str]:
    """What either schema says against a file, and links whose ends are missing."""
    graph = json.loads(file.read_text(encoding="utf-8"))
    found = [
        f"{name.stem}: {'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for name in sorted(SCHEMAS.glob("*.json"))
        for error in validator(name.stem).iter_errors(graph)
    ]
    ids = [node["node_id"] for node in graph["nodes"]]
    if len(set(ids)) < len(ids):
        found.append("two nodes have one node_id")
    known = set(ids)
    found += [
        f"a link joins {link['source']} and {link['target']}, which are not both nodes"
        for link in graph["links"]
        if not {link["source"], link["target"]} <= known
    ]
    return found


def validator(name: str) -> jsonschema.Draft7Validator:
    """The validator of one of the schemas, itself checked."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)
