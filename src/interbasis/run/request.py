"""What a build was asked for by name: model, data and all settings, in a file that builds it again.

    model = "modadd"
    basis = "lib"
    edge_method = "exact"

is a whole request in TOML; YAML and JSON do as well, and so does a run, which remembers its own.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from interbasis.graph.settings import BuildRequest
from interbasis.graph.store import check_schema
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.files import inside


def make_request(values: dict[str, Any]) -> BuildRequest:
    """A request of these values, all others at their defaults."""
    if not values.get("model"):
        raise InterbasisError("expected a model: name one, or a config that does (model = …)")
    return BuildRequest.of(**values)


def read_request(path: Path) -> dict[str, Any]:
    """The values in a file of settings (TOML, YAML or JSON), or those a run was built with."""
    if path.is_dir():
        path = inside(path, "config.json")
    if not path.is_file():
        raise InterbasisError(
            f"expected a config in TOML, YAML or JSON, or a run, at {path}, but there is no such file"
        )
    try:
        values = _parse(path)
    except (OSError, ValueError) as error:
        if isinstance(error, InterbasisError):
            raise
        reason = str(error).splitlines()[0]
        raise InterbasisError(f"could not read {path} ({reason})") from error
    if not isinstance(values, dict):
        raise InterbasisError(f"{path}: expected settings by name, received {type(values).__name__}")
    if values.get("format") != "interbasis-graph":
        return values
    check_schema(path.parent, values.get("schema"))
    request = values.get("provenance", {}).get("request")
    if not request:
        raise InterbasisError(f"{path.parent} was built from Python and does not name its model and data")
    return {"norm_limit": 0} | request  # all tokens counted in runs that do not say


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix in (".yaml", ".yml"):
        try:
            import yaml  # type: ignore[import-untyped]
        except ImportError as error:
            raise InterbasisError(
                f"reading {path} needs PyYAML; install it, or write the config in TOML or JSON"
            ) from error
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    raise InterbasisError(f"expected a config that ends in .toml, .yaml or .json, received {path}")
