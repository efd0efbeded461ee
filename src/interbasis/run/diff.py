"""`interbasis.diff`: what two models compute differently."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import torch

from interbasis.analysis.differences.measure import DifferenceSettings, measure
from interbasis.analysis.differences.records import Along, ComparedModel, MeasuredDifference
from interbasis.analysis.differences.store import save_difference
from interbasis.base.devices import require_dtype, torch_device
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Dtype
from interbasis.compute.checkpoints import environment
from interbasis.compute.executor import Executor, most_blocks
from interbasis.compute.locks import building
from interbasis.compute.team import ALONE, Resources, Team, team_checkpoints
from interbasis.data.batches import Batches, Data
from interbasis.network.network import Network
from interbasis.run.run import Run

SHARE_OF_MEMORY = 8
"""Sums of the sections that are measured together take this part of the memory: chunks, both models and
states that are merged take the others."""

QUERIES_SHARE = 4
"""One query position in so many is sampled by default: all of them take about four times as long."""
MIN_QUERIES = 16
"""Query positions sampled by default, at least."""


def diff(
    first: Network,
    second: Network,
    data: Data,
    *,
    run: Run | None = None,
    along: Along = "first",
    directions: int = 4,
    examples: int = 5,
    queries: int | Literal["all"] | None = None,
    dtype: Dtype = "float64",
    names: tuple[str, str] = ("first", "second"),
    folder: str | Path | None = None,
    restart: bool = False,
    memory: int | str | None = None,
    device: str | None = None,
    progress: Progress | bool | None = None,
    team: Team = ALONE,
) -> MeasuredDifference:
    """Measure what two models with the same sections compute differently, over data, without backward passes.

    Args:
        first: The first model; shares are relative to what it computes.
        second: The second model, with the same node layers: another checkpoint, a fine-tune, a pruned model,
            or the first with a transcoder in place of an MLP (`interbasis.dictionaries.with_transcoder`).
        data: Inputs of both: whatever `interbasis.build` takes.
        run: Run of the first model; its CᵀC is then the metric W of the outputs. Default: the inverse
            covariance of the first model's outputs.
        along: Model whose activations are the input of both sections.
        directions: Leading directions of every section.
        examples: Tokens shown for each direction.
        queries: Query positions sampled per sequence in attention's Jacobians, or "all"; default: a quarter
            of them, at least 16. Errors over samples include what sampling adds.
        dtype: Dtype to compute in; in float32, shares are off by about 5e-6 where weights differ by 1e-3 of
            their size, and by more where they differ by less.
        names: Names to remember the models by.
        folder: Folder that the difference is stored in, with unfinished work while it lasts.
        restart: Discard unfinished work that was begun with other settings instead of refusing it.
        memory: Memory that the process may hold, in bytes or such as "8GB"; default: no limit.
        device: Where the models compute; default: where the first one's weights are.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.
        team: The processes that share the work.

    Returns:
        The difference: ``record``, and the leading directions as ``tensors``.

    Raises:
        InterbasisError: The models cannot be compared, or the data do not fit them.
    """
    for network in (first, second):
        if not isinstance(network, Network):
            raise InterbasisError(
                f"expected an interbasis Network, received {type(network).__name__}; make one with "
                "interbasis.from_torch(module)"
            )
    limit = Resources.validated(memory=memory, device=device).bytes
    graph = None
    if run is not None:
        graph, built_for = run.graph, run.graph.provenance.model_fingerprint
        if first.layers != graph.layer_names:
            first, second = first.between(graph.layer_names), second.between(graph.layer_names)
        if first.fingerprint() != built_for:
            raise InterbasisError("expected a run of the first model, received one of other weights")
    target = first.device if device is None else torch_device(device)
    kind = torch.float64 if dtype == "float64" else torch.float32
    require_dtype(target, kind)
    pair = first.to(target, kind), second.to(target, kind)
    batches = Batches(data)
    settings = DifferenceSettings(along, directions, examples, _query_count(pair[0], batches, queries))
    if limit is not None:
        settings = replace(settings, sum_bytes=limit // SHARE_OF_MEMORY)
    models = (
        ComparedModel(name=names[0], fingerprint=first.fingerprint()),
        ComparedModel(name=names[1], fingerprint=second.fingerprint()),
    )
    decisive = asdict(settings) | environment() | {
        "dtype": dtype, "metric": None if graph is None else graph.config.model_dump(mode="json"),
        "first": models[0].fingerprint, "second": models[1].fingerprint, "data": batches.fingerprint(),
    }  # fmt: skip
    place = None if folder is None else Path(folder)
    with (
        building(place, "diff", team),
        progress_bar(progress if team.is_first else False) as advance,
    ):
        executor = Executor(
            pair[0], team, team_checkpoints(place, "diff", decisive, team, restart=restart), advance,
            blocks=most_blocks(first) if limit is None else 0,
            chunk_bytes=None if limit is None else limit // SHARE_OF_MEMORY,
        )  # fmt: skip
        result = measure(pair, models, data, executor, settings, graph)
        if place is not None:
            if team.is_first:
                save_difference(place, result)
            team.wait_for_all()
            executor.checkpoints.finish("diff")
    return result


def _query_count(network: Network, batches: Batches, queries: int | Literal["all"] | None) -> int | None:
    """Query positions sampled per sequence; None is all."""
    if queries == "all":
        return None
    if isinstance(queries, int) and queries < 1:
        raise InterbasisError(f"expected queries of at least 1, or all, received {queries}")
    positions = network.prefix(batches.first().to(network.device)).shape[1]
    return max(MIN_QUERIES, positions // QUERIES_SHARE) if queries is None else queries
