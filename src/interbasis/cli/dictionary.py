"""`interbasis dictionary`: train and score sparse dictionaries, and look into graphs between them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from pydantic import Field

from interbasis.analysis.dictionaries.paths import PathsRequest
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Record
from interbasis.cli import common
from interbasis.dictionaries.settings import DictionarySettings

if TYPE_CHECKING:
    from interbasis.graph.named_models import Model

dictionary = App(
    name="dictionary", help="Train and score sparse dictionaries, and look into graphs between them."
)
DictionaryModel = Annotated[
    str, Parameter(help="modadd[:PATH], mlp:PATH, hf:FOLDER-OR-HUB-ID or python:MODULE:FUNCTION.")
]
DataName = Annotated[str | None, Parameter(help="Data by name; default: those the model was trained on.")]


class CheckRequest(Record):
    """Request to check the edges of a graph between dictionaries."""

    data: str
    """Data by name that the edges were not measured on."""
    count: int = Field(200, ge=1)
    """Strongest edges of every pair of dictionaries to check."""


@dictionary.command
def train(
    model: DictionaryModel,
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder to write the dictionaries to, a folder per layer.")],
    data: DataName = None,
    settings: Annotated[DictionarySettings, common.Flat],
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Train a sparse dictionary of every node layer that is named.

    The dictionaries are written in SAELens' format. Interrupted training resumes when the same command is run
    again; under torchrun, the layers are divided among the processes.

    Example: interbasis dictionary train modadd --layers mlp_in.0 --features 256 --active 8 --out runs/sparse
    """
    from interbasis.compute.team import torchrun_team
    from interbasis.dictionaries.network_training import train_dictionaries
    from interbasis.graph.named_models import at_one_commit
    from interbasis.show.result_tables import training_tables

    team = torchrun_team()
    opened = _open(model, device)
    samples = at_one_commit(opened.open_data(data), team, opened.open_data)
    _, record = train_dictionaries(
        opened.network, samples, settings, out, model=model, data_name=samples.spec, team=team,
        progress=None if team.is_first else False,
    )  # fmt: skip
    common.show(record, as_json, lambda record: training_tables(record, str(out)), out)


@dictionary.command
def score(
    folder: Annotated[Path, Parameter(help="Folder of dictionaries, or of one, of any format that is read.")],
    model: DictionaryModel,
    /,
    *,
    data: DataName = None,
    layer: Annotated[
        str, Parameter(help="Node layer of a single dictionary; default: the one that its files name.")
    ] = "",
    norm_limit: Annotated[
        float | None,
        Parameter(
            help="Tokens whose norm exceeds this many times the median of their layer stay as they are; "
            "default: 3 for language models, else 0."
        ),
    ] = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Score dictionaries: each layer in turn is replaced by its reconstruction, and the model runs on.

    Example: interbasis dictionary score runs/sparse modadd
    """
    from interbasis.base.progress import progress_bar
    from interbasis.dictionaries.scores import score_folder
    from interbasis.show.result_tables import score_tables

    opened = _open(model, device)
    samples = opened.open_data(data, "test")
    with progress_bar() as progress:
        scores = score_folder(
            opened.network, folder, samples, layer=layer, norm_limit=norm_limit, progress=progress
        )
    common.show(scores, as_json, score_tables)


def _open(model: str, device: str | None) -> "Model":
    """The model by name, on a device."""
    from dataclasses import replace

    from interbasis.base.devices import torch_device
    from interbasis.graph.named_models import open_model

    opened = open_model(model)
    return opened if device is None else replace(opened, network=opened.network.to(torch_device(device)))


@dictionary.command
def check(
    run: common.Run,
    /,
    *,
    request: Annotated[CheckRequest, common.Flat],
    model: common.ModelName = None,
    trust: common.Trust = False,
    as_json: common.AsJson = False,
) -> None:
    """Check that edges predict: set a source to 0 at one token and measure the target.

    Example: interbasis dictionary check runs/sparse --data text:other.txt
    """
    _between(run, "check", as_json, request, model, trust)


@dictionary.command
def paths(
    run: common.Run,
    /,
    *,
    request: Annotated[PathsRequest, common.Flat],
    model: common.ModelName = None,
    trust: common.Trust = False,
    as_json: common.AsJson = False,
) -> None:
    """Split an edge across attention by head and path: what is moved, why it is attended to, why it attends.

    Example: interbasis dictionary paths runs/sparse --source ln1.3:17 --target ln1.4:5
    """
    _between(run, "paths", as_json, request, model, trust)


def _between(run: Path, stage: str, as_json: bool, request: Record, model: str | None, trust: bool) -> None:
    """Call a stage that only graphs between dictionaries have."""
    if not common.shown_between(run, stage, request, as_json, common.RunOptions(model=model, trust=trust)):
        raise InterbasisError(
            f"expected a graph made by 'interbasis build --dictionary', but {run} is none; name one"
        )
