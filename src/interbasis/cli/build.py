"""`interbasis build`: from a model to a run."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from interbasis.choices import Basis, Dtype, Group, Method
from interbasis.cli import common


def build(
    model: Annotated[str, Parameter(help="modadd:PATH, or modadd for the one that is shipped.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder to write the run to.")],
    basis: Annotated[Basis, Parameter(help="Kind of basis.")] = "lib",
    edge_method: Annotated[
        Method | Literal["none"],
        Parameter(help="How integrated gradients are taken; none leaves the edges out."),
    ] = "gradient",
    edge_points: Annotated[int, Parameter(help="Nodes of the integration rule, where it has any.")] = 16,
    edge_group: Annotated[
        Group | None,
        Parameter(help="Tokens per group of stochastic sources, or positions; exact without it."),
    ] = None,
    edge_sources: Annotated[int, Parameter(help="Sets of random signs per group.")] = 2,
    threshold: Annotated[float, Parameter(help="Absolute noise floor of spectra.")] = 1e-15,
    relative_threshold: Annotated[
        float | None, Parameter(help="Relative noise floor; width·2.2e-16 without it, 0 is the paper's rule.")
    ] = None,
    rotate_last: Annotated[
        bool | None, Parameter(help="Rotate the last layer; the family's way without it.")
    ] = None,
    jacobian_sources: Annotated[
        int | None, Parameter(help="Stochastic sources where no closed form is known; exact without it.")
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of everything random.")] = 0,
    dtype: Annotated[
        Dtype | None, Parameter(help="What the network computes in; the family's way without it.")
    ] = None,
    overwrite: Annotated[
        bool, Parameter(help="Replace a run that is there already.", negative="", show_default=False)
    ] = False,
    as_json: common.AsJson = False,
) -> None:
    """Build the interaction graph of a model and save it as a run.

    MODEL is modadd:PATH, a modular-addition checkpoint in safetensors format, or modadd for the one that
    comes with interbasis. Example: interbasis build modadd --basis lib --out runs/lib
    """
    from interbasis.errors import InterbasisError
    from interbasis.graph import check_is_free
    from interbasis.pipeline import build as run
    from interbasis.specs import open_model
    from interbasis.summary import summarise, tables

    if out.exists() and any(out.iterdir() if out.is_dir() else [out]) and not overwrite:
        raise InterbasisError(f"{out} exists already; name a new folder or add --overwrite")
    check_is_free(out)
    opened = open_model(model)
    graph = run(
        opened.network, opened.data, basis, model=opened.spec,
        edge_method=None if edge_method == "none" else edge_method, edge_points=edge_points,
        edge_group=edge_group, edge_sources=edge_sources, threshold=threshold,
        relative_threshold=relative_threshold, rotate_last=rotate_last,
        jacobian_sources=jacobian_sources, seed=seed, dtype=dtype,
    )  # fmt: skip
    graph.save(out)
    common.show(summarise(graph) | {"run": str(out)}, as_json, tables)
