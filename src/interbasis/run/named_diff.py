"""Differences of models by name, as the command line asks for them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import Field

from interbasis.analysis.differences.records import Along, MeasuredDifference
from interbasis.analysis.differences.store import FOLDER
from interbasis.base.errors import InterbasisError
from interbasis.base.files import inside
from interbasis.base.progress import Progress
from interbasis.base.records import Dtype, Record
from interbasis.compute.team import Resources, torchrun_team
from interbasis.data.samples import Samples
from interbasis.dictionaries import load, with_transcoder
from interbasis.graph.named_models import Model, at_one_commit, open_model
from interbasis.graph.store import CONFIG
from interbasis.network.network import Network
from interbasis.run.diff import diff
from interbasis.run.run import Run, open_run


class DiffRequest(Record):
    """Settings and data of a comparison."""

    data: str | None = None
    """Data to compare on; default: those that the first model was trained on."""
    along: Along = "first"
    """Model whose activations are the input of both sections: first or second."""
    directions: int = Field(4, ge=1)
    """Leading directions of every section."""
    examples: int = Field(5, ge=1)
    """Tokens shown for each direction."""
    queries: int | Literal["all"] | None = None
    """Query positions sampled per sequence in attention's Jacobians, or all; default: a quarter of them."""
    dtype: Dtype = "float64"
    """float64, or float32: shares are off by about 5e-6 where weights differ by 1e-3 of their size."""
    against: Literal["previous", "first", "last"] = "previous"
    """In a series of more than two models, the one that each is compared with."""
    transcoder: str | None = None
    """Folder or file of a transcoder: the second model is the first with it in place of an MLP."""
    layer: str | None = None
    """Node layer that this MLP reads, such as mlp_in.3; default: where the transcoder was trained."""


@dataclass(frozen=True, eq=False)
class NamedNetwork:
    """A model or run that was named, opened."""

    name: str
    network: Network
    model: Model | None
    run: Run | None = None


def diff_by_name(
    models: Sequence[str],
    request: DiffRequest,
    folder: Path | None = None,
    *,
    restart: bool = False,
    resources: Resources | None = None,
    progress: Progress | bool | None = None,
) -> list[MeasuredDifference]:
    """Compare models or runs by name: two of them, or a series.

    Args:
        models: Models as `build` takes them, or folders of runs.
        request: What is compared.
        folder: Where the difference is stored; those of a series in folders of their own, 01, 02, …
        restart: Discard unfinished work that was begun with other settings instead of refusing it.
        resources: Limits on memory, and the device.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.

    Returns:
        The differences, in the order of the series.

    Raises:
        InterbasisError: A model or the data cannot be opened, or the models cannot be compared.
    """
    resources, team = resources or Resources(), torchrun_team()
    if len(models) + (request.transcoder is not None) < 2:
        raise InterbasisError(
            f"expected at least two models, or one and --transcoder, received {', '.join(models) or 'none'}"
        )
    if request.transcoder is not None and len(models) > 1:
        raise InterbasisError(f"--transcoder stands for the second model, but {models[1]} was named, too")
    opened: dict[str, NamedNetwork] = {}
    results = []
    pairs = _pairs(models, request)
    for number, (one, other) in enumerate(pairs, 1):
        kept = {name: opened[name] for name in (one, other) if name in opened}
        opened = kept | {name: _open(name, resources) for name in (one, other) if name not in kept}
        first, second = opened[one], opened[other]
        data = _data(first, request.data)
        second_network = second.network
        if request.transcoder is not None:
            second_network = with_transcoder(first.network, load(request.transcoder), request.layer or "")
        elif one != other:
            _require_same_tokenizer(first, second)
        network = first.network
        if network.layers != second_network.layers and set(network.layers) <= set(second_network.layers):
            second_network = second_network.between(network.layers)
        place = folder if folder is None or len(pairs) == 1 else folder / f"{number:02d}"
        result = diff(
            network, second_network, at_one_commit(data, team, partial(_data, first)),
            run=first.run, names=(one, request.transcoder or other), folder=place, restart=restart,
            memory=resources.memory, device=resources.device, progress=progress, team=team,
            **request.model_dump(include={"along", "directions", "examples", "queries", "dtype"}),
        )  # fmt: skip
        results.append(result)
    return results


def folder_in_run(models: Sequence[str], request: DiffRequest) -> Path | None:
    """RUN/diffs/NAME, where the difference between a run's model and one other belongs; None for others."""
    if not models or not _is_run(models[0]) or len(models) + (request.transcoder is not None) != 2:
        return None
    second = request.transcoder or models[1]
    name = re.sub(r"[^\w.-]+", "-", Path(second.partition(":")[2] or second).name).strip("-.")
    return inside(Path(models[0]), f"{FOLDER}/{name or 'other'}")


def _is_run(name: str) -> bool:
    return ":" not in name and (Path(name) / CONFIG).is_file()


def _pairs(models: Sequence[str], request: DiffRequest) -> list[tuple[str, str]]:
    if request.transcoder is not None:
        return [(models[0], models[0])]
    if request.against == "first":
        return [(models[0], other) for other in models[1:]]
    if request.against == "last":
        return [(models[-1], other) for other in models[:-1]]
    return list(pairwise(models))


def _open(name: str, resources: Resources) -> NamedNetwork:
    """A model by name, or the model of a run."""
    if _is_run(name):
        run = open_run(name, memory=resources.memory)
        return NamedNetwork(name, run.network, run.model, run)
    model = open_model(name, resources.bytes)
    return NamedNetwork(name, model.network, model)


def _data(opened: NamedNetwork, spec: str | None) -> Samples:
    """Data by name, or those that the first model or run goes with."""
    if spec is None and opened.run is not None:
        data = opened.run.data(None, "train")
        assert isinstance(data, Samples)
        return data
    if opened.model is None:
        raise InterbasisError(f"{opened.name} does not name its model; use interbasis.diff in Python")
    return opened.model.open_data(spec)


def _require_same_tokenizer(first: NamedNetwork, second: NamedNetwork) -> None:
    """Refuse models whose tokenizers are files of different content."""
    files = [
        Path(opened.model.tokenizer) / "tokenizer.json"
        for opened in (first, second)
        if opened.model is not None and opened.model.tokenizer
    ]
    if len(files) == 2 and all(file.is_file() for file in files):
        one, other = (file.read_bytes() for file in files)
        if one != other:
            raise InterbasisError(
                f"expected two models with one tokenizer, but {files[0]} and {files[1]} differ"
            )
