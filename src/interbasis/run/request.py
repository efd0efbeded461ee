"""Requests of builds by name: model, data and all settings, in a file that builds the run again.

    model = "modadd"
    basis = "lib"
    edge_method = "exact"

is a whole request in TOML; YAML and JSON do as well, and so does a run, which remembers its own.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interbasis.base.errors import Explained, InterbasisError
from interbasis.graph.interaction_graph import Provenance
from interbasis.graph.named_models import open_data
from interbasis.graph.named_sources import DATA, NamedSources, find_path, located
from interbasis.graph.settings import SAMPLING, BuildRequest, BuildTarget
from interbasis.graph.store import CONFIG, FORMAT, read_origin
from interbasis.graph.trust import require_same_data, require_trust, trust


def make_request(values: dict[str, Any]) -> BuildRequest:
    """Make a request of these values, all others at their defaults."""
    if not values.get("model"):
        raise InterbasisError("expected a model: name one, or a config that does (model = …)")
    return BuildRequest.validated(**values)


def requested(
    settings: Mapping[str, object],
    config: Path | None = None,
    *,
    trusted: bool = False,
    same_data: bool = False,
) -> BuildRequest:
    """Make a request of settings, completed by those of a config or a run.

    Args:
        settings: Settings by name.
        config: A file of settings, or a run.
        trusted: Trust whoever built the run, from now on.
        same_data: Open the data that the run names, and compare them with those that it was built on.

    Raises:
        InterbasisError: No model is named, a value is out of range, or a run of somebody else names sources
            that were not given, or its data have changed since.
    """
    read = {} if config is None else _read(config)
    if isinstance(read, dict):
        if trusted:
            raise InterbasisError("--trust is for the names that a run holds; add --config RUN")
        return make_request({**read, **settings})
    assert config is not None
    provenance, digest = read
    if provenance.request is None:
        raise InterbasisError(f"{config} was built from Python and does not name its model and data")
    # all tokens counted, and nothing was sampled, in runs that do not say
    values: dict[str, Any] = {"norm_limit": 0, "exact": not provenance.request.settings.sampled}
    values |= provenance.request.model_dump(include=provenance.request.model_fields_set)
    run = config if config.is_dir() else config.parent
    if trusted:
        trust(run)
    sources = NamedSources.from_provenance(provenance, digest, run)
    dictionaries = (
        [] if "dictionary" in settings else [n for n in sources.names if n.startswith("dictionary ")]
    )
    open_by_name = [name for name in DATA if name not in settings and values.get(name)]
    models = [] if "model" in settings else ["request.model"]
    require_trust(run, sources, [*open_by_name, *models, *dictionaries])
    for name in [*open_by_name, *([] if "model" in settings else ["model"])]:
        values[name] = located(values[name], sources.folder)
    if dictionaries:
        entries = (entry.partition("=") for entry in values["dictionary"])
        values["dictionary"] = [
            f"{place}={find_path(path, sources.folder) or path}" for place, _, path in entries
        ]
    for name in open_by_name if same_data else ():
        require_same_data(open_data(values[name]), provenance, run, kind=name)
    if any(settings.get(name) is not None for name in BuildTarget.model_fields):  # it decides what is sampled
        values = {name: value for name, value in values.items() if name not in (*SAMPLING, "exact")}
    return make_request({**values, **settings})


def _read(path: Path) -> dict[str, Any] | tuple[Provenance, str]:
    """Values of a file of settings, or the origin of a run, named by its folder or its config.json."""
    if path.is_dir():
        return read_origin(path)
    if not path.is_file():
        raise InterbasisError(
            f"expected a config in TOML, YAML or JSON, or a run, at {path}, but there is no such file"
        )
    with Explained(f"could not read {path}", OSError, ValueError, RecursionError):
        values = _parse(path)
    if not isinstance(values, dict):
        raise InterbasisError(f"{path}: expected settings by name, received {type(values).__name__}")
    if values.get("format") != FORMAT:
        return values
    if path.name != CONFIG:
        raise InterbasisError(f"{path} is the {CONFIG} of a run; name the run's folder")
    return read_origin(path.parent)


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError as error:
            raise InterbasisError(
                f"reading {path} needs PyYAML; install it, or write the config in TOML or JSON"
            ) from error
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    raise InterbasisError(f"expected a config that ends in .toml, .yaml or .json, received {path}")
