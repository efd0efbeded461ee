"""The difference between two models over data.

1. Statistics: one pass of the first model for the covariance of every node layer, hence W = TᵀT.
2. Differences: passes of both models, as many sections at a time as fit in memory: E[DDᵀ], the sums behind
   E[JᵀWJ], and traces by groups of samples for the errors (`passes.py`).
3. Directions: eigenvectors of both Grams.
4. Examples: one pass for the tokens where the leading directions are active.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from interbasis.analysis.differences import passes, records
from interbasis.analysis.differences.measured_section import MeasuredSection
from interbasis.analysis.features.contexts import Occurrence, Presentation
from interbasis.analysis.features.records import Example
from interbasis.analysis.nested_states import nested
from interbasis.analysis.stored_results import DataUsed
from interbasis.base.errors import InterbasisError
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.covariance import Covariance
from interbasis.lib.statistics import StatisticsPass, Wanted
from interbasis.network.network import Network, NodeLayer
from interbasis.numerics.linalg import eigenbasis

ADDED_VARIANCE = 0.01
"""Variance added to all directions before the covariance is inverted, as a share of the layer's mean: without
it, directions that the first model hardly uses would outweigh all others."""
MAX_DENSE_WIDTH = 8192
"""Widest node layer whose covariance is inverted."""
DEFAULT_SUM_BYTES = 2**30
"""Bytes that the sums of the sections measured together may take, where memory is not limited."""
MIN_SHARE = 1e-12
"""Smallest eigenvalue of a direction, relative to the largest: less is rounding."""
FEATURES_NAMED = 3
"""Features named for a direction."""


@dataclass(frozen=True)
class DifferenceSettings:
    """Settings of a comparison."""

    along: records.Along = "first"
    directions: int = 4
    """Leading directions of every section."""
    examples: int = 5
    """Tokens shown for each of them."""
    queries: int | None = None
    """Query positions sampled per sequence in attention's Jacobians; None is all."""
    sum_bytes: int = DEFAULT_SUM_BYTES


def measure(
    networks: tuple[Network, Network],
    models: tuple[records.ComparedModel, records.ComparedModel],
    data: Data,
    executor: Executor,
    settings: DifferenceSettings,
    graph: InteractionGraph | None = None,
) -> records.MeasuredDifference:
    """Measure what two models compute differently.

    Args:
        networks: The two models, in the dtype they compute in.
        models: Names and fingerprints to remember them by.
        data: Inputs of both.
        executor: Runs passes; its network is the first model.
        settings: What is measured.
        graph: Graph of the first model, whose features are the metric of the outputs.

    Returns:
        The difference with its directions.

    Raises:
        InterbasisError: The two models cannot be compared.
    """
    first, second = networks
    require_comparable(first, second)
    batches = Batches(data)
    statistics_pass = StatisticsPass(first, Wanted(cores=False), "data")
    with executor.clock("statistics"):
        statistics = statistics_pass.check(executor.run(statistics_pass, batches))
    transforms = [
        output_transform(node, covariance, None if graph is None else graph.layers[k])
        for k, (node, covariance) in enumerate(zip(first.nodes, statistics.layers, strict=True))
    ]
    sections = [
        MeasuredSection(F, G, T)
        for F, G, T in zip(first.sections, second.sections, transforms[1:], strict=True)
    ]
    described: dict[int, records.SectionChange] = {}
    tensors: dict[str, Tensor] = {}
    rows: dict[int, Tensor] = {}
    readers: dict[int, passes.Readers] = {}
    for start, stop in section_windows(sections, settings.sum_bytes):
        pass_ = passes.DifferencePass(
            networks, sections[start:stop], start, settings.along, transforms[0], settings.queries
        )
        with executor.clock("differences"):
            sums = executor.run(pass_, batches)
        rows |= {k: sums.groups[k] for k in sums.groups if k == passes.PREFIX}
        for k in range(start, stop):
            rows[k] = sums.groups[k]
            described[k], directions = _describe(sections[k], k, sums, settings)
            if directions is not None:
                name = first.layers[k]
                tensors |= nested({name: directions})
                readers[k] = _readers(sections[k], directions, statistics.layers[k].mean)
            sections[k] = replace(sections[k])  # without the matrices that its sums required
        del pass_, sums  # before those of the next sections are made
    with executor.clock("examples"):
        changed = {k: sections[k] for k in readers}
        places = executor.run(
            passes.PlacesPass(networks, changed, readers, settings.examples, settings.along), batches
        )
    show = partial(_examples, batches, Presentation.from_data(first, data, batches), places)
    named = {
        first.layers[k]: _with_examples(change, k, show, graph, tensors, first.layers[k])
        for k, change in described.items()
    }
    layers = {
        name: _depth(rows[k - 1], transforms[k], statistics.layers[k]) for k, name in enumerate(first.layers)
    }
    record = records.Difference(
        first=models[0], second=models[1],
        data=DataUsed.from_data(data), along=settings.along,
        metric="inverse covariance" if graph is None else "lib", sections=named, layers=layers,
    )  # fmt: skip
    return records.MeasuredDifference(record, tensors)


def require_comparable(first: Network, second: Network) -> None:
    """Refuse two models whose sections do not correspond, in one sentence that names the difference."""
    pairs: list[tuple[str, object, object]] = [
        ("of one family", first.family, second.family),
        ("with the same number of node layers", len(first.layers), len(second.layers)),
        ("with the same node layers", ", ".join(first.layers), ", ".join(second.layers)),
    ]
    pairs += [
        (f"of one width at {node.name}", node.width, other.width)
        for node, other in zip(first.nodes, second.nodes, strict=False)
    ]
    shapes = [[list(t.shape) for t in network.prefix.tensors()] for network in (first, second)]
    pairs.append(("with embeddings of one shape", shapes[0], shapes[1]))
    pairs.append(("with the same tokens", first.token_names, second.token_names))
    for words, wanted, other in pairs:
        if wanted != other:
            received = "" if words.endswith("tokens") else f", received {wanted} and {other}"
            raise InterbasisError(f"expected two models {words}{received}")
    widest = max(node.width for node in first.nodes)
    if widest > MAX_DENSE_WIDTH:
        raise InterbasisError(
            f"expected node layers of at most {MAX_DENSE_WIDTH} coordinates, received {widest}; leave out "
            "layers that are wider (the output of a language model) with --layers"
        )


def output_transform(
    node: NodeLayer, covariance: Covariance, basis: LayerBasis | None
) -> Tensor:  # [r, width]
    """T with W = TᵀT: LIB's C without the constant, or (Λ + λ)^-½ U of the covariance UᵀΛU."""
    first = node.first_coordinate
    if basis is not None:
        identity = torch.eye(node.width, dtype=torch.float64)
        C = identity if basis.identity else basis.transform.double().cpu()
        T = C[basis.first_feature :].clone()
        T[:, :first] = 0
        return T
    values, vectors = eigenbasis(covariance.gram)
    values = values.clamp_min(0)
    values = values + ADDED_VARIANCE * values.mean()
    kept = values > 0
    T = torch.zeros(int(kept.sum()), node.width, dtype=torch.float64)
    T[:, first:] = vectors[kept] / values[kept].sqrt()[:, None]
    return T


def section_windows(sections: Sequence[MeasuredSection], limit: int) -> list[tuple[int, int]]:
    """Runs of neighbouring sections (first, last) whose sums take at most so many bytes, or one section."""
    windows, start, size = [], 0, 0
    for k, section in enumerate(sections):
        reads, outputs = 2 * section.first.shapes.read[0], section.first.shapes.skip[0]
        section_bytes = 8 * (3 * reads**2 + outputs**2)
        if k > start and size + section_bytes > limit:
            windows.append((start, k))
            start, size = k, 0
        size += section_bytes
    return [*windows, (start, len(sections))]


def _describe(
    measured: MeasuredSection, k: int, sums: passes.DifferenceSums, settings: DifferenceSettings
) -> tuple[records.SectionChange, dict[str, Tensor] | None]:
    """Shares, heads and directions of one section; no directions where nothing changed."""
    name = f"{measured.first.source.name} → {measured.first.target.name}"
    none = records.Share(value=0.0, error=0.0)
    if not measured.changed:
        return records.SectionChange(name=name, changed=False, outputs=none, jacobian=none), None
    rows, outputs = sums.groups[k], sums.section(k, "outputs")
    total = dict(zip(passes.COLUMNS, rows.sum(0).tolist(), strict=True))
    by_name = dict(zip(passes.COLUMNS, rows.T, strict=True))
    variance = float(outputs["own_square"] - outputs["own"].square().sum() / total["outputs"])
    core = sums.section(k, "core")
    gram = measured.jacobian.gram_from_sums(
        core, measured.metric, int(total["outputs"]), int(total["inputs"])
    ).matrix
    T = measured.transform
    output_gram = T @ outputs["gram"].cpu() @ T.T / total["outputs"]
    reading = measured.reading_gram(core, int(total["inputs"]))
    grams = {"outputs": output_gram, "inputs": gram, "reading": reading}
    first, directions, shares = measured.first.source.first_coordinate, {}, {}
    for side, matrix in grams.items():
        if matrix is None:
            continue
        values, vectors = eigenbasis(matrix)
        kept = min(settings.directions, int((values > MIN_SHARE * values[0]).sum()))
        values, vectors = values[:kept], vectors[:kept]
        if side == "outputs":
            directions["output_readers"] = vectors @ T
            vectors = torch.nn.functional.normalize(vectors @ torch.linalg.pinv(T).T, dim=1)
        else:
            vectors = torch.nn.functional.pad(vectors, (first, 0))
        directions |= {side: vectors, f"{side.removesuffix('s')}_values": values}
        trace = float(matrix.trace())
        shares[side] = tuple(records.ChangedDirection(share=_ratio(v, trace)) for v in values.tolist())
    first_jacobian = total["own_jacobian"]
    heads = [
        records.HeadChange(head=head, **{path: value / first_jacobian for path, value in paths.items()})
        for head, paths in measured.head_changes(core).items()
    ]
    change = records.SectionChange(
        name=name,
        changed=True,
        outputs=_share(by_name["arising"], by_name["outputs"] * variance / total["outputs"]),
        jacobian=_share(by_name["jacobian"], by_name["own_jacobian"]),
        output_directions=shares["outputs"],
        input_directions=shares["inputs"],
        reading_directions=shares.get("reading", ()),
        heads=tuple(sorted(heads, key=lambda head: -head.total)),
    )
    if change.heads:
        leading = change.heads[0].head
        directions |= {f"head.{path}": rows for path, rows in measured.path_directions(core, leading).items()}
    return change, directions


def _share(part: Tensor, whole: Tensor) -> records.Share:  # [groups] each
    """Ratio of two sums, with the standard error of a ratio estimator over groups."""
    ratio = _ratio(float(part.sum()), float(whole.sum()))
    groups = len(part)
    if groups < 2 or not whole.sum() > 0:
        return records.Share(value=ratio, error=float("nan"))
    scatter = (part - ratio * whole).square().sum() * groups / (groups - 1)
    return records.Share(value=ratio, error=float(scatter.sqrt() / whole.sum()))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")


def _readers(measured: MeasuredSection, directions: dict[str, Tensor], mean: Tensor) -> passes.Readers:
    """Rows that read the leading directions off D and off f, the latter about its mean."""
    readers = {"outputs": directions.pop("output_readers")}
    first = measured.first.source.first_coordinate
    for side in ("inputs", "reading"):
        if side in directions:
            readers[side] = directions[side].clone()
            if first:
                readers[side][:, 0] = -(readers[side][:, first:] @ mean.cpu())
    return readers


def _depth(rows: Tensor, T: Tensor, covariance: Covariance) -> records.DepthChange:
    """Differences at a layer as shares of the first model's variance there."""
    sums = dict(zip(passes.COLUMNS, rows.sum(0).tolist(), strict=True))
    inner = T[:, T.shape[1] - len(covariance.mean) :]
    variance = float(((inner @ covariance.gram.cpu()) * inner).sum())
    shares = {
        name: sums[name] / sums["outputs"] / variance if variance else float("nan")
        for name in ("total", "arising", "passed_on")
    }
    return records.DepthChange(**shares)


def _examples(
    batches: Batches, presentation: Presentation, places: passes.Places, name: str, direction: int
) -> tuple[Example, ...]:
    """Tokens where a direction is most active."""
    shown = []
    for value, sample, position in places[name][:, direction].T.tolist():
        inputs = batches.between(int(sample), int(sample) + 1)[0]
        at = int(position) if inputs.ndim == 1 and position < len(inputs) else 0
        around = torch.tensor([value], dtype=torch.float64)
        occurrence = Occurrence(value, int(sample), at, inputs, None, (at, around))
        shown.append(presentation.rendering.show(occurrence))
    return tuple(shown)


def _with_examples(
    change: records.SectionChange,
    k: int,
    show: "partial[tuple[Example, ...]]",
    graph: InteractionGraph | None,
    tensors: dict[str, Tensor],
    name: str,
) -> records.SectionChange:
    """The section with examples of its directions, and features of the graph that they overlap with."""
    if not change.changed:
        return change
    sides = {}
    for side, index in (("outputs", k + 1), ("inputs", k), ("reading", k)):
        field = f"{side.removesuffix('s')}_directions"
        sides[field] = tuple(
            direction.model_copy(
                update={
                    "examples": show(f"{k}.{side}", number),
                    "features": {}
                    if graph is None
                    else _features(graph.layers[index], tensors[f"{name}.{side}"][number]),
                }
            )
            for number, direction in enumerate(getattr(change, field))
        )
    return change.model_copy(update=sides)


def _features(basis: LayerBasis, direction: Tensor) -> dict[int, float]:
    """Features with the largest shares of C v for a direction v; they add up to 1 over all features."""
    squares = basis.to_features(direction).square().clone()
    squares[: basis.first_feature] = 0
    total = squares.sum().clamp_min(torch.finfo(torch.float64).tiny)
    best = squares.topk(min(FEATURES_NAMED, len(squares)))
    return {int(j): float(v / total) for v, j in zip(best.values, best.indices, strict=True)}
