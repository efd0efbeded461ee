"""Measures of a language model's run for the claims L1 to L5.

Edges Ê are [features out, features in]; feature 0 is the constant, and 1 the variance where a layer holds it.
"""

import torch
from torch import Tensor

from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.features.records import Band, TokenExample
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.features import ExamplesResult, FeaturesResult
from interbasis.analysis.summary import summarise
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.cores import Attention, Core, Elementwise, Gated, Normalize, Variance
from interbasis.network.network import Network
from interbasis.run.run import Run
from interbasis_studies.paper.jobs import JobClock
from interbasis_studies.paper.tasks.language import records
from interbasis_studies.paper.tasks.language.records import CENTRAL_KINDS, Kind

KIND_OF_CORE: tuple[tuple[type[Core], Kind], ...] = (
    (Attention, "attention"), (Elementwise, "MLP"), (Gated, "MLP"), (Variance, "norm in"),
    (Normalize, "norm out"),
)  # fmt: skip
PROFILED_FEATURES = 4
"""Directions that the paper found to be positional."""
LISTED_FEATURES = 8
"""Features of a layer whose share of variance by position is listed."""
PICTURED_OUTPUTS = 50
"""Features of a layer in the paper's picture of a block, which its words on layer norms are about."""
MIN_REACHING_EDGE = 0.01
"""An edge reaches an output if it is at least this part of the largest one that the output has."""
CYCLES = tuple(k / 2 for k in range(1, 17))
"""Cycles over the context that a sinusoid is looked for with."""
EXAMPLE_FEATURES = (1, 5, 6, 7, 8, 12)
"""Features at the start of the middle block of which examples are shown."""
TOKENS_BEFORE = 8
"""Tokens before the one that an example is about; half as many behind it."""


def kinds(network: Network) -> dict[str, Kind]:
    """Kind of every section, by its source layer."""
    return {
        name: next((kind for core, kind in KIND_OF_CORE if isinstance(section.core, core)), "other")
        for name, section in zip(network.layers, network.sections, strict=False)
    }


def middle_block(network: Network) -> int:
    """The block in the middle: the paper's 6 of 12."""
    numbers = {name.rpartition(".")[2] for name in network.layers[:-1]}  # ln1.3 is of block 3
    blocks = sorted(int(number) for number in numbers if number.isdecimal())
    if not blocks:
        raise InterbasisError("the network has no blocks; expected a language model's node layers")
    return blocks[len(blocks) // 2]


def combined_ablations(
    opened: Run, kinds: dict[str, Kind], ablation: AblationResult, clock: JobClock
) -> tuple[records.CombinedAblation, ...]:
    """The cross-entropy with the masks of several sections in force at once, unless it is stored."""
    fingerprint = ablation.data.fingerprint
    stored = opened.stored(records.CombinedAblations)
    if stored is not None and (stored.data, stored.counts) == (fingerprint, ablation.counts):
        return stored.groups
    tensors = opened.stored_tensors(AblationResult)
    masks = {source: tensors[f"edge_mask.{source}"] for source in ablation.sections}
    index = {name: k for k, name in enumerate(opened.graph.section_names)}
    evaluation = Evaluation(opened.network, opened.graph, opened.data(), "cross_entropy")
    groups = {f"every {kind} section": [s for s in masks if kinds[s] == kind] for kind in CENTRAL_KINDS}
    groups["all of these"] = [source for source in masks if kinds[source] in CENTRAL_KINDS]
    if len(masks) > len(groups["all of these"]):
        groups["layer norms, too"] = list(masks)
    rows = tuple(
        records.CombinedAblation(
            sections=name,
            number=len(sources),
            edges=sum(int(masks[source][:, 1:].sum()) for source in sources),
            value=evaluation.edges({index[source]: masks[source] for source in sources}).value,
            baseline=evaluation.baseline.value,
        )
        for name, sources in groups.items()
        if sources
    )
    opened.store(records.CombinedAblations(data=fingerprint, counts=ablation.counts, groups=rows))
    clock.stop("sections together")
    return rows


def node_layers(opened: Run) -> dict[str, records.MeasuredLayer]:
    """Widths, variances, and how positional the first features are."""
    features, summaries = opened.stored(FeaturesResult), summarise(opened.graph).layers
    assert features is not None
    rows = {}
    for layer in opened.graph.layers:
        variances = layer.variances[1 if layer.constant else 0 :] if layer.variances is not None else None
        described = features.layers[layer.name].by_index()
        first = range(1 + layer.isolated, 1 + layer.isolated + LISTED_FEATURES)
        rows[layer.name] = records.MeasuredLayer(
            summary=summaries[layer.name],
            variance=None if variances is None else variances.sum().item(),
            positional=tuple(
                positions.share for j in first if j in described and (positions := described[j].positions)
            ),
        )
    return rows


def layer_norms(graph: InteractionGraph, kinds: dict[str, Kind]) -> dict[str, records.NormEdges]:
    """The edges of every layer norm."""
    rows = {}
    for k, (name, kind) in enumerate(kinds.items()):
        if not kind.startswith("norm"):
            continue
        source, target = graph.layers[k], graph.layers[k + 1]
        edges = graph.edges[k].double()
        squares = edges.square()
        inner = squares[1 + target.isolated :, 1 + source.isolated :]
        first = share = reaches = None
        if kind == "norm in" and target.isolated:
            into_variance = squares[1, 1:]
            first = int(into_variance.argmax()) + 1
            share = _largest_share(into_variance[None]).item()
        if kind == "norm out" and source.isolated:
            outputs = edges[1:, 1:]
            reaches = (outputs[:, 0] >= MIN_REACHING_EDGE * outputs.amax(1)).double().mean().item()
        rows[name] = records.NormEdges(
            source=name,
            target=target.name,
            own=_largest_share(inner[:PICTURED_OUTPUTS]).median().item(),
            own_of_all=_largest_share(inner).median().item(),
            first=first,
            share=share,
            reaches=reaches,
        )
    return rows


def reach(opened: Run, kinds: dict[str, Kind]) -> dict[str, records.Reach]:
    """Reach of the first two inputs, and of a median one, of every ablated attention."""
    tensors, targets, rows = opened.stored_tensors(AblationResult), opened.graph.layer_names[1:], {}
    for (name, kind), target in zip(kinds.items(), targets, strict=True):
        mask = tensors.get(f"edge_mask.{name}")
        if kind != "attention" or mask is None:
            continue
        shares = mask[1:, 1:].double().mean(0)  # [inputs]
        rows[name] = records.Reach(
            source=name,
            target=target,
            first=tuple(round(value, 4) for value in shares[:2].tolist()),
            ranks=tuple(int((shares > value).sum()) + 1 for value in shares[:2]),
            median=shares.median().item(),
            inputs=len(shares),
        )
    return rows


def profiles(opened: Run, layer: str) -> records.Profiles | None:
    """The first directions of a layer along the sequence; None where the layer is not there."""
    features = opened.stored(FeaturesResult)
    described = features.layers.get(layer) if features else None
    rows = [
        records.Profile(
            feature=feature.index,
            share=feature.positions.share,
            shape=shape(torch.tensor(feature.positions.means, dtype=torch.float64)),
            means=feature.positions.means,
        )
        for feature in (described.features if described else ())
        if feature.positions
    ][:PROFILED_FEATURES]
    if not rows:
        return None
    pooled = sum(row.share for row in rows) / len(rows)
    return records.Profiles(layer=layer, pooled=pooled, features=tuple(rows))


def shape(means: Tensor) -> records.ProfileShape:  # [positions]
    """Shape of a profile along the sequence: R² of a step at position 0, a line, and a sinusoid.

    The sinusoid, of the best among `CYCLES`, has an offset; position 0 is left out for line and sinusoid,
    since it stands apart in many models.
    """
    place = torch.arange(len(means), dtype=torch.float64)
    values, inner = means[1:], place[1:]
    ones = torch.ones_like(inner)
    waves = {}
    for cycles in CYCLES:
        angle = 2 * torch.pi * cycles * inner / max(len(means) - 1, 1)
        waves[cycles] = _explained(values, torch.stack([ones, angle.sin(), angle.cos()], 1))
    best = max(waves, key=lambda cycles: waves[cycles])
    return records.ProfileShape(
        step=_explained(means, torch.stack([torch.ones_like(place), (place == 0).double()], 1)),
        line=_explained(values, torch.stack([ones, inner], 1)),
        sinusoid=waves[best],
        cycles=best,
    )


def _explained(values: Tensor, design: Tensor) -> float:
    """R² of a least-squares fit; 0 for what does not vary."""
    total = (values - values.mean()).square().sum()
    if len(values) <= design.shape[1] or total <= 0:
        return 0.0
    fit = design @ torch.linalg.lstsq(design, values[:, None]).solution
    return 1 - ((values - fit[:, 0]).square().sum() / total).item()


def _largest_share(squares: Tensor) -> Tensor:  # [rows, columns] -> [rows]
    """The largest entry's part of each row's sum; rows of zeros are left out."""
    squares = squares[squares.sum(1) > 0]
    return squares.amax(1) / squares.sum(1) if len(squares) else torch.zeros(1, dtype=squares.dtype)


def examples(opened: Run, layer: str) -> tuple[records.ShownExamples, ...]:
    """Text around the most positive and most negative values of some features of a layer."""
    examples, features = opened.stored(ExamplesResult), opened.stored(FeaturesResult)
    if examples is None or features is None or examples.kind != "tokens" or layer not in examples.layers:
        return ()
    described = features.layers[layer].by_index()
    return tuple(
        records.ShownExamples(
            layer=layer,
            feature=feature.index,
            label=described[feature.index].label,
            most_positive=_texts(feature.bands[0]),
            most_negative=_texts(feature.bands[-1]),
        )
        for feature in examples.layers[layer]
        if feature.index in EXAMPLE_FEATURES and feature.bands
    )


def _texts(band: Band) -> str:
    return " · ".join(_text(example) for example in band.examples[:2] if isinstance(example, TokenExample))


def _text(example: TokenExample) -> str:
    """A token with those around it, on one line of a table."""
    start = max(0, example.active - TOKENS_BEFORE)
    parts = [
        f"»{token}«" if place == example.active else token
        for place, token in enumerate(example.tokens[start : example.active + 1 + TOKENS_BEFORE // 2], start)
    ]
    plain = " ".join("".join(parts).split()).replace("`", "'")
    return f"`{plain}` ({example.value:.3g})"
