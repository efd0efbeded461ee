"""`interbasis build`: from a model to a run."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import Field

from interbasis.cli import common
from interbasis.graph.settings import BuildRequest
from interbasis.runtime.records import Record


class BuildOptions(BuildRequest):
    """Everything that decides the graph, except the model, which is the command's argument."""

    model: Annotated[str, Parameter(parse=False)] = ""


class OutputOptions(Record):
    """Where the run goes, and what does not change it."""

    out: Path
    """Folder to write the run to."""
    config: Path | None = None
    """TOML, YAML or JSON with any of these settings, or a run; options take precedence over it."""
    cache_gigabytes: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    """Disk space for activations between blocks while it is built; 0 for none."""
    overwrite: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Replace a run that is there already."""


def build(
    model: Annotated[
        str | None,
        Parameter(help="modadd[:PATH], mlp:PATH, hf:FOLDER-OR-HUB-ID or python:MODULE:FUNCTION."),
    ] = None,
    /,
    *,
    output: Annotated[OutputOptions, common.Flat],
    options: Annotated[BuildOptions | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Build the interaction graph of a model and save it as a run.

    MODEL is modadd for the modular-addition transformer that comes with interbasis, modadd:PATH or mlp:PATH
    for a checkpoint, hf:… for a language model, python:MODULE:FUNCTION for anything that returns a module.
    Data are modadd, cifar10[:PATH], mnist[:PATH], images:FOLDER, tokens:PATH, text:PATH,tokenizer=FOLDER,
    hf:DATASET or npz:PATH. An interrupted build resumes when the same command is given again.

    Example: interbasis build modadd --basis lib --out runs/lib

    Again, bit for bit: interbasis build --config runs/lib --out runs/again
    """
    from interbasis.run.request import make_request, read_request
    from interbasis.run.stages import build as stage
    from interbasis.run.summary import summarise
    from interbasis.terminal import summary_tables

    given = {} if options is None else options.model_dump(include=options.model_fields_set)
    if model is not None:
        given["model"] = model
    request = make_request((read_request(output.config) if output.config else {}) | given)
    opened = stage.run(
        request, output.out, overwrite=output.overwrite, cache_gigabytes=output.cache_gigabytes
    )
    tables = lambda summary: summary_tables(summary, str(output.out))  # noqa: E731
    common.show(summarise(opened.graph), as_json, tables, output.out)
