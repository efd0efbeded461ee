"""Features: what they respond to and what they do. Stored as `features.json`, examples as `examples.json`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from interbasis.analysis.features.records import ExampleKind, FeatureExamples, Idle, LayerFeatures
from interbasis.analysis.stored_results import DataUsed, Result, unknown_features
from interbasis.base.progress import progress_bar
from interbasis.base.records import Record

if TYPE_CHECKING:
    from interbasis.analysis.workspace import Workspace
    from interbasis.compute.checkpoints import State
    from interbasis.graph.interaction_graph import InteractionGraph


class FeaturesRequest(Record):
    """Request for descriptions of features: their number, and examples of each."""

    data: str | None = None
    """Data to use; default: what the run was built on."""
    top: int = Field(32, ge=1)
    """Number of features to describe in each layer, not counting the constant."""
    ends: int = Field(8, ge=1)
    """Number of most positive, and of most negative, examples of each feature."""
    bands: int = Field(4, ge=0)
    """Number of quantile bands between them, from which more examples are drawn."""
    per_band: int = Field(4, ge=1)
    """Number of examples from each band."""
    mean_effect_samples: int = Field(64, ge=0)
    """Samples over which effects on a language model's outputs through all blocks above are averaged; 0 for
    none."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the examples drawn from the bands."""


class FeaturesResult(Result):
    """Labels, statistics and direct effects of features, by layer."""

    file: ClassVar[str] = "features"
    command: ClassVar[str] = "features"

    data: DataUsed
    layers: dict[str, LayerFeatures]
    idle: tuple[Idle, ...] = ()

    def misfit(self, graph: "InteractionGraph") -> str:
        return unknown_features({name: layer.by_index() for name, layer in self.layers.items()}, graph)


class ExamplesResult(Result):
    """Dataset examples of features, by layer."""

    file: ClassVar[str] = "examples"
    command: ClassVar[str] = "features"

    kind: ExampleKind
    layers: dict[str, tuple[FeatureExamples, ...]]

    def misfit(self, graph: "InteractionGraph") -> str:
        indices = {name: [row.index for row in examples] for name, examples in self.layers.items()}
        return unknown_features(indices, graph)


def run(workspace: "Workspace", request: FeaturesRequest) -> FeaturesResult:
    """Find out what the features of a run respond to and what they do.

    Args:
        workspace: A run with its network and data.
        request: How many features and examples.

    Returns:
        The result, which is stored in the run's folder, if it has one, with the examples beside it.

    Raises:
        InterbasisError: The data do not fit the network.
    """
    from interbasis.analysis.features.analysis import Analysis
    from interbasis.analysis.features.contexts import Presentation
    from interbasis.analysis.features.dataset_examples import ExamplePlan
    from interbasis.data.batches import Batches

    plan = ExamplePlan(ends=request.ends, bands=request.bands, per_band=request.per_band, seed=request.seed)
    with workspace.working("features"), progress_bar(workspace.progress) as advance:
        data, team, graph = workspace.data(request.data, "train"), workspace.team, workspace.graph
        used = DataUsed.from_data(data)
        batches = data if isinstance(data, Batches) else Batches(data)
        presentation = Presentation.from_data(workspace.network, data, batches)
        chosen = {
            layer.name: range(layer.first_feature, layer.features)[: request.top] for layer in graph.layers
        }
        analysis = Analysis(graph, workspace.network, chosen, plan, presentation, request.mean_effect_samples)
        unfinished = workspace.unfinished(
            FeaturesResult, ExamplesResult, request=request, fingerprint=used.fingerprint
        )
        with unfinished as checkpoints:
            if team.size > 1:
                checkpoints = checkpoints.within(f"{team.rank}.of.{team.size}")

            def describe_layers(numbers: Sequence[int]) -> "State":
                described = analysis.run(batches, advance, checkpoints, numbers)
                shown = analysis.examples(numbers)
                return {}, {
                    name: _Described(features=features, examples=shown[name]).model_dump(mode="json")
                    for name, features in described.items()
                }

            _, values = team.share("features", len(graph.layers), describe_layers)
            layers = {name: _Described.model_validate(values[name]) for name in graph.layer_names}
            features = {name: layer.features for name, layer in layers.items()}
            examples = {name: layer.examples for name, layer in layers.items()}
            result = workspace.store(FeaturesResult(data=used, layers=features, idle=analysis.idle()))
            workspace.store(ExamplesResult(kind=presentation.rendering.kind, layers=examples))
            return result


class _Described(Record):
    """One layer, as a process sends it to the others."""

    features: LayerFeatures
    examples: tuple[FeatureExamples, ...]
