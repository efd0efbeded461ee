"""`interbasis build`: from a model to a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from interbasis.cli import common
from interbasis.runtime.literals import Basis, Dtype, Group, Method

if TYPE_CHECKING:
    from interbasis.graph.interaction_graph import InteractionGraph
    from interbasis.run.request import BuildRequest


def build(
    model: Annotated[
        str | None,
        Parameter(help="modadd[:PATH], mlp:PATH, hf:FOLDER-OR-HUB-ID or python:MODULE:FUNCTION."),
    ] = None,
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder to write the run to.")],
    config: Annotated[
        Path | None,
        Parameter(help="TOML, YAML or JSON with any of these settings, or a run; options go before it."),
    ] = None,
    data: Annotated[
        str | None, Parameter(help="Data of the basis; those the model was trained on without it.")
    ] = None,
    jacobian_data: Annotated[str | None, Parameter(help="Data of the Jacobians; --data without it.")] = None,
    edge_data: Annotated[str | None, Parameter(help="Data of the edges; --data without it.")] = None,
    layers: Annotated[str | None, Parameter(help="Node layers, neighbours: A,B,C; all without it.")] = None,
    basis: Annotated[Basis | None, Parameter(help="Kind of basis; lib without it.")] = None,
    edge_method: Annotated[
        Method | Literal["none"] | None,
        Parameter(help="How integrated gradients are taken; gradient without it, none for no edges."),
    ] = None,
    edge_points: Annotated[
        int | None, Parameter(help="Nodes of the integration rule, where it has any; 16 without it.")
    ] = None,
    edge_group: Annotated[
        Group | None,
        Parameter(help="Tokens per group of stochastic sources, or positions; exact without it."),
    ] = None,
    edge_sources: Annotated[
        int | None, Parameter(help="Sets of random signs per group; 2 without it.")
    ] = None,
    edge_positions: Annotated[
        int | None, Parameter(help="Positions sampled per sequence, with --edge-group; all without it.")
    ] = None,
    threshold: Annotated[
        float | None, Parameter(help="Absolute noise floor of spectra; 1e-15 without it.")
    ] = None,
    relative_threshold: Annotated[
        float | None, Parameter(help="Relative noise floor; width·2.2e-16 without it, 0 is the paper's rule.")
    ] = None,
    rotate_last: Annotated[
        bool | None, Parameter(help="Rotate the last layer; the family's way without it.")
    ] = None,
    jacobian_sources: Annotated[
        int | None, Parameter(help="Stochastic sources where no closed form is known; exact without it.")
    ] = None,
    jacobian_queries: Annotated[
        int | None, Parameter(help="Query positions sampled per sequence in attention; all without it.")
    ] = None,
    isolate: Annotated[
        bool | None, Parameter(help="Keep a layer norm's variance as a feature of its own; yes without it.")
    ] = None,
    seed: Annotated[int | None, Parameter(help="Seed of everything random; 0 without it.")] = None,
    dtype: Annotated[
        Dtype | None, Parameter(help="What the network computes in; the family's way without it.")
    ] = None,
    threads: Annotated[
        int | None, Parameter(help="Threads to compute with; the same number gives the same bits.")
    ] = None,
    cache_gigabytes: Annotated[
        float, Parameter(help="Disk that activations between blocks may take while it is built; 0 for none.")
    ] = 4.0,
    overwrite: Annotated[
        bool, Parameter(help="Replace a run that is there already.", negative="", show_default=False)
    ] = False,
    as_json: common.AsJson = False,
) -> None:
    """Build the interaction graph of a model and save it as a run.

    MODEL is modadd for the modular-addition transformer that comes with interbasis, modadd:PATH or mlp:PATH
    for a checkpoint, hf:… for a language model, python:MODULE:FUNCTION for anything that returns a module.
    Data are modadd, cifar10[:PATH], mnist[:PATH], tokens:PATH, text:PATH,tokenizer=FOLDER, hf:DATASET or
    npz:PATH. A build that was killed goes on where it was when the same command is given again.

    Example: interbasis build modadd --basis lib --out runs/lib
    Again, bit for bit: interbasis build --config runs/lib --out runs/again
    """
    from interbasis.run.request import make_request, read_request

    given: dict[str, Any] = {
        "model": model, "data": data, "jacobian_data": jacobian_data, "edge_data": edge_data,
        "layers": layers.split(",") if layers else None, "basis": basis, "edge_points": edge_points,
        "edge_group": edge_group, "edge_sources": edge_sources, "edge_positions": edge_positions,
        "threshold": threshold,
        "relative_threshold": relative_threshold, "rotate_last": rotate_last,
        "jacobian_sources": jacobian_sources,
        "jacobian_queries": jacobian_queries, "isolate": isolate, "seed": seed, "dtype": dtype,
        "threads": threads,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if edge_method is not None:
        given["edge_method"] = None if edge_method == "none" else edge_method
    request = make_request((read_request(config) if config else {}) | given)
    graph = _run(request, out, overwrite, cache_gigabytes)
    from interbasis.run.summary import summarise, tables

    common.show(summarise(graph) | {"run": str(out)}, as_json, tables)


def _run(request: "BuildRequest", out: Path, overwrite: bool, cache_gigabytes: float) -> "InteractionGraph":
    """The graph that was asked for, in its folder: built, or finished, or there already."""
    import torch

    from interbasis.fit.build import build
    from interbasis.graph.store import check_is_free
    from interbasis.run.specs import open_model
    from interbasis.runtime.files import check_writable

    check_is_free(out)
    check_writable(out)
    if request.threads and request.threads != torch.get_num_threads():
        torch.set_num_threads(request.threads)
    opened = open_model(request.model)
    data = opened.open_data(request.data)
    others = {
        name: opened.open_data(spec) if (spec := getattr(request, name)) else None
        for name in ("jacobian_data", "edge_data")
    }
    specs = {"data": data.spec} | {name: other.spec for name, other in others.items() if other is not None}
    resolved = request.model_copy(update=specs | {"threads": torch.get_num_threads()})
    network = opened.network.between(request.layers) if request.layers else opened.network
    if not overwrite and (there := _built_already(out, resolved, network.fingerprint())):
        return there
    graph = build(
        network, data, jacobian_data=others["jacobian_data"], edge_data=others["edge_data"],
        model=request.model, resume=out, restart=overwrite, cache_gigabytes=cache_gigabytes,
        request=resolved, **request.settings.model_dump(),
    )  # fmt: skip
    graph.save(out)
    return graph


def _built_already(out: Path, request: "BuildRequest", model: str) -> "InteractionGraph | None":
    """The run that is there, where it is what was asked for; another one is in the way."""
    from interbasis.graph.store import clear_older, load
    from interbasis.runtime.errors import InterbasisError

    if not (out / "config.json").is_file():
        return None
    run = load(out)
    if run.provenance.request != request or run.provenance.model_fingerprint != model:
        raise InterbasisError(f"{out} exists already; name a new folder or add --overwrite")
    clear_older(out)  # as after a kill at the very end
    return run
