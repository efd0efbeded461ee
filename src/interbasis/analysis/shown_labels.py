"""Descriptions of features that are about to be shown, made when they are needed and kept in the run.

`features` describes the first features of every layer. A trace, a steered prompt or the page show others as
well: those are described from the first samples of the run's data, and stored as `labels.json`.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from interbasis.analysis.features.records import ExampleKind, Feature, FeatureExamples, LayerFeatures
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stored_results import DataUsed, Result, unknown_features
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import progress_bar

if TYPE_CHECKING:
    from interbasis.analysis.workspace import Workspace
    from interbasis.data.batches import Data
    from interbasis.graph.interaction_graph import InteractionGraph

MAX_TOKENS = 2**15
"""Tokens that descriptions are made from where samples are texts."""
MAX_SAMPLES = 2048
"""Samples that they are made from elsewhere."""
MEAN_EFFECT_SAMPLES = 32
"""Samples over which effects on a language model's outputs are averaged."""


class LabelsResult(Result):
    """Descriptions of features that were shown and not described before, by layer."""

    file: ClassVar[str] = "labels"
    command: ClassVar[str] = "features"

    data: DataUsed
    layers: dict[str, LayerFeatures]
    kind: ExampleKind | None = None
    """Kind of the examples."""
    examples: dict[str, tuple[FeatureExamples, ...]]

    def misfit(self, graph: "InteractionGraph") -> str:
        return unknown_features({name: layer.by_index() for name, layer in self.layers.items()}, graph)


def shown_labels(
    workspace: "Workspace", wanted: Mapping[str, Iterable[int]]
) -> dict[tuple[str, int], Feature]:
    """Descriptions of features by (layer, number); those that the run lacks are made and stored.

    Where the model or the data of the build cannot be opened, only what is stored comes back.

    Args:
        workspace: A run.
        wanted: Numbers of features, by layer.

    Returns:
        The descriptions of the features wanted; the constant has none.
    """
    stored = workspace.stored(LabelsResult)
    known: dict[tuple[str, int], Feature] = {}
    for result in (stored, workspace.stored(FeaturesResult)):
        for name, layer in result.layers.items() if result else ():
            known |= {(name, feature.index): feature for feature in layer.features}
    first = {layer.name: layer.first_feature for layer in workspace.graph.layers}
    places = {(name, j) for name, numbers in wanted.items() for j in numbers if j >= first[name]}
    missing = {name: sorted(j for layer, j in places - known.keys() if layer == name) for name in first}
    if any(missing.values()):
        try:
            data, _ = workspace.data(None, "train"), workspace.network
        except InterbasisError:  # a trace and a page are worth having without labels
            return {place: known[place] for place in places & known.keys()}
        made = _described(workspace, data, missing)
        for name, layer in made.layers.items():
            known |= {(name, feature.index): feature for feature in layer.features}
        workspace.store(_merged(stored, made))
    return {place: known[place] for place in places}


def _described(workspace: "Workspace", data: "Data", missing: Mapping[str, list[int]]) -> LabelsResult:
    """Describe features from the first of the data."""
    from interbasis.analysis.features.analysis import Analysis
    from interbasis.analysis.features.contexts import Presentation
    from interbasis.analysis.features.dataset_examples import ExamplePlan
    from interbasis.compute.checkpoints import NO_CHECKPOINTS
    from interbasis.data.batches import Batches

    batches = data if isinstance(data, Batches) else Batches(data)
    presentation = Presentation.from_data(workspace.network, data, batches)
    positions = batches.first().shape[1] if presentation.rendering.kind == "tokens" else 1
    batches = batches.head(min(len(batches), MAX_SAMPLES, max(1, MAX_TOKENS // positions)))
    plan, graph, network = ExamplePlan(ends=4, bands=0), workspace.graph, workspace.network
    analysis = Analysis(graph, network, missing, plan, presentation, MEAN_EFFECT_SAMPLES)
    numbers = [k for k, layer in enumerate(workspace.graph.layers) if missing[layer.name]]
    with progress_bar(workspace.progress) as advance:
        layers = analysis.run(batches, advance, NO_CHECKPOINTS, numbers)
    used = DataUsed(spec=getattr(data, "spec", ""), samples=len(batches), fingerprint=batches.fingerprint())
    kind, examples = presentation.rendering.kind, analysis.examples(numbers)
    return LabelsResult(data=used, layers=layers, kind=kind, examples=examples)


def _merged(earlier: LabelsResult | None, later: LabelsResult) -> LabelsResult:
    """All descriptions made so far, from the same data."""
    if earlier is None or earlier.data != later.data:
        return later
    layers, examples = dict(earlier.layers), dict(earlier.examples)
    for name, layer in later.layers.items():
        features = layers[name].features if name in layers else ()
        layers[name] = layer.model_copy(update={"features": (*features, *layer.features)})
        examples[name] = (*examples.get(name, ()), *later.examples[name])
    return LabelsResult(data=later.data, layers=layers, kind=later.kind, examples=examples)
