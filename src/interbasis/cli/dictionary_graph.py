"""Commands on a graph between dictionaries, of `interbasis dictionary`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common

Graph = Annotated[Path, Parameter(help="Folder of a graph, made by interbasis build --dictionary.")]
GraphModel = Annotated[str, Parameter(help="The model that the graph is of, by name.")]


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
