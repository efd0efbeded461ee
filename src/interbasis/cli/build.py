"""`interbasis build`: from a model to a run."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from interbasis.base.errors import InterbasisError
from interbasis.base.records import Method, Record
from interbasis.cli import common
from interbasis.compute.team import Resources
from interbasis.graph.settings import SAMPLING, BuildRequest, parse_fraction, parse_seconds


class BuildOptions(BuildRequest):
    """Everything that decides the graph, except the model, which is the command's argument."""

    model: Annotated[str, Parameter(parse=False)] = ""
    edge_method: Literal[Method, "none"] | None = "gradient"  # type: ignore[assignment]
    """How integrated gradients are computed; none builds no edges."""
    exact: Annotated[bool, common.flag("Sample nothing.")] = False


class OutputOptions(Resources):
    """Folder and resources of a build, which do not change the graph."""

    out: Path
    """Folder to write the run to."""
    config: Path | None = None
    """TOML, YAML or JSON with any of these settings, or a run; options take precedence over it."""
    overwrite: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Replace an existing run."""
    shard: str | None = None
    """NUMBER/SHARDS: compute one part of the current round of this build, and write it to OUT/shards
    for interbasis merge."""


TOPICS: dict[str, tuple[str, ...]] = {
    "Sampling, which --error and --time decide": SAMPLING,
    "Dictionaries": ("dictionary", "only_dictionaries"),
    "Bases": (
        "rotate_last", "threshold", "relative_threshold", "isolate", "isolate_largest", "skip_positions",
        "norm_limit",
    ),
    "Edges": ("edge_method", "edge_points"),
    "Other data and names": ("jacobian_data", "edge_data", "model_name"),
    "Numbers": ("seed", "dtype", "threads"),
    "Resources": ("cache_gigabytes", "memory", "device", "shard"),
}  # fmt: skip
"""Groups of the help beside the first."""
PARSERS = {"error": parse_fraction, "time": parse_seconds}
"""Functions that read the texts of options whose values are not written as Python writes them."""


def _described(options: type[Record]) -> None:
    """Put options into their groups of the help, and let their values be read as settings are."""
    for name, field in options.model_fields.items():
        group = next((topic for topic, names in TOPICS.items() if name in names), None)
        if group is not None:
            field.metadata.append(Parameter(group=group))
        if name in PARSERS:
            read = PARSERS[name]
            field.metadata.append(Parameter(converter=lambda _, tokens, read=read: read(tokens[0].value)))


_described(BuildOptions)
_described(OutputOptions)


def chosen_settings(model: str | None, options: BuildOptions | None) -> dict[str, object]:
    """Settings of a build that the command line names."""
    settings = {} if options is None else options.model_dump(include=options.model_fields_set)
    return settings if model is None else settings | {"model": model}


def build(
    model: Annotated[
        str | None,
        Parameter(
            help="modadd[:PATH], cifar10-conv[:PATH], mlp:PATH, hf:FOLDER-OR-HUB-ID, python:MODULE:FUNCTION."
        ),
    ] = None,
    /,
    *,
    output: Annotated[OutputOptions, common.Flat],
    options: Annotated[BuildOptions | None, common.Flat] = None,
    trust: common.Trust = False,
    as_json: common.AsJson = False,
) -> None:
    """Build the interaction graph of a model and save it as a run.

    MODEL is modadd for the modular-addition transformer that comes with interbasis, modadd:PATH or mlp:PATH
    for a checkpoint, hf:… for a language model, python:MODULE:FUNCTION for anything that returns a module.
    Data are modadd, cifar10[:PATH], mnist[:PATH], images:FOLDER, tokens:PATH, text:PATH,tokenizer=FOLDER,
    hf:DATASET or npz:PATH. An interrupted build resumes when the same command is run again.

    Example: interbasis build modadd --basis lib --out runs/lib

    The same run again, bit for bit: interbasis build --config runs/lib --out runs/again
    """
    from interbasis.run.named_build import build_by_name
    from interbasis.run.request import requested
    from interbasis.show.result_tables import summary_tables

    settings = chosen_settings(model, options)
    request = requested(settings, output.config, trusted=trust, same_data=True)
    between = bool(request.dictionary) or not request.only_dictionaries
    if between:
        from interbasis.run.dictionary_run import check_request

        check_request(request)
    if output.shard is not None:
        _build_shard(request, output, output.shard, as_json)
        return
    if between:
        _build_between(request, output, as_json)
        return
    run = build_by_name(request, output.out, overwrite=output.overwrite, resources=output)
    said = {"too_few_data": ""}  # as a warning, by the build
    tables = lambda summary: summary_tables(summary.model_copy(update=said), str(output.out))  # noqa: E731
    common.show(run.summary(), as_json, tables, output.out)


def _build_shard(request: BuildRequest, output: OutputOptions, shard: str, as_json: bool) -> None:
    """Compute one part of the current round of a build."""
    from interbasis.compute.shards import read_shard_number
    from interbasis.run.shards import compute
    from interbasis.show.result_tables import shard_lines

    if output.memory is not None or output.device is not None:
        raise InterbasisError("--shard cannot be combined with --memory or --device; leave these out")
    written = compute(request, output.out, read_shard_number(shard))
    common.show(written, as_json, shard_lines, output.out)


def _build_between(request: BuildRequest, output: OutputOptions, as_json: bool) -> None:
    """Build the graph between the features of dictionaries."""
    from interbasis.run.dictionary_run import build_dictionaries_by_name
    from interbasis.show.dictionaries.tables import graph_tables

    run = build_dictionaries_by_name(request, output.out, overwrite=output.overwrite, resources=output)
    common.show(run.graph.header, as_json, graph_tables, output.out)
