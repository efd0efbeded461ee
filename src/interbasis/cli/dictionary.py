"""`interbasis dictionary`: train and score sparse dictionaries, and look into graphs between them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

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
Graph = Annotated[Path, Parameter(help="Folder of a graph, made by interbasis build --dictionary.")]
GraphModel = Annotated[str, Parameter(help="The model that the graph is of, by name.")]
DataName = Annotated[str | None, Parameter(help="Data by name; default: those the model was trained on.")]


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
def describe(
    graph: Graph,
    model: GraphModel,
    /,
    *,
    data: Annotated[str | None, Parameter(help="Data by name; default: those of the build.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Find examples and tested descriptions of the features of a graph between dictionaries.

    A description is chosen on half of the samples; its precision and recall are those on the other half.

    Example: interbasis dictionary describe runs/sparse hf:gpt2
    """
    from interbasis.run.dictionary_run import DictionaryRun
    from interbasis.show.dictionaries.tables import description_tables

    run = DictionaryRun.open(graph, model)
    result = run.describe(data)
    common.show(result, as_json, lambda found: description_tables(found, run.graph, run.names), graph)


@dictionary.command
def trace(
    graph: Graph,
    model: GraphModel,
    /,
    *,
    prompt: Annotated[str, Parameter(help="Text whose next token is explained.")],
    target: Annotated[
        str | None, Parameter(help="The token to explain; default: the most likely one.")
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Trace the next token of a prompt in the features of dictionaries.

    Example: interbasis dictionary trace runs/sparse hf:gpt2 --prompt "Once upon a time"
    """
    from interbasis.run.dictionary_run import DictionaryRun, stored_descriptions
    from interbasis.show.dictionaries.tables import trace_tables

    run = DictionaryRun.open(graph, model)
    result = run.trace(prompt, target)
    known = stored_descriptions(graph)
    common.show(result, as_json, lambda trace: trace_tables(trace, known, run.names), graph)


@dictionary.command
def check(
    graph: Graph,
    model: GraphModel,
    /,
    *,
    data: Annotated[str, Parameter(help="Data by name that the edges were not measured on.")],
    edges: Annotated[int, Parameter(help="Strongest edges of every pair of dictionaries to check.")] = 200,
    as_json: common.AsJson = False,
) -> None:
    """Check that edges predict: set a source to 0 at one token and measure the target.

    Example: interbasis dictionary check runs/sparse hf:gpt2 --data text:other.txt
    """
    from interbasis.run.dictionary_run import DictionaryRun
    from interbasis.show.dictionaries.tables import check_tables

    common.show(DictionaryRun.open(graph, model).check(data, edges), as_json, check_tables, graph)


@dictionary.command
def page(
    graph: Graph,
    model: Annotated[str | None, Parameter(help="The model, for the texts of its tokens.")] = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="File to write; default: page.html in the folder.")] = None,
) -> None:
    """Write a graph between dictionaries as a page: search, one feature with its neighbours, traces.

    Example: interbasis dictionary page runs/sparse hf:gpt2
    """
    from interbasis.base.files import write_text_atomically
    from interbasis.dictionaries.graph import load_graph
    from interbasis.run.dictionary_run import DictionaryRun, stored_descriptions, stored_traces
    from interbasis.show.dictionaries.page import dictionary_page

    names = None if model is None else DictionaryRun.open(graph, model).names
    found = stored_descriptions(graph)
    layers = () if found is None else found.layers
    descriptions = {layer.place: layer.features for layer in layers}
    target = out or graph / "page.html"
    write_text_atomically(
        target, dictionary_page(load_graph(graph), descriptions, stored_traces(graph), names)
    )
    common.print_text(f"Wrote {target}.")
