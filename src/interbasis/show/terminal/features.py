"""Features and their labels, for a terminal."""

from rich.console import RenderableType

from interbasis.analysis.features.records import LayerFeatures, Push
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.show.terminal.tables import Column, ResultTable, make_table

FEATURES_SHOWN = 10
"""Of each layer."""
OUTPUTS_SHOWN = 3
"""That a feature pushes up, and down."""


def feature_tables(result: FeaturesResult) -> list[RenderableType]:
    """The first features of every layer, and those that nothing uses."""
    parts: list[RenderableType] = [_layer_table(layer) for layer in result.layers.values()]
    for idle in (one for one in result.idle if one.count):
        parts.append(
            f"{idle.layer}: {idle.count} of the first {idle.considered} features have incoming but no "
            f"outgoing edges above the threshold (Ê over {idle.incoming:.3g}, {idle.outgoing:.3g})"
        )
    return parts


def _layer_table(layer: LayerFeatures) -> ResultTable:
    features = layer.features[:FEATURES_SHOWN]
    pushing = any(feature.effects for feature in features)  # on outputs, where they were computed
    names = ("what it is", "pushes up", "pushes down") if pushing else ("what it is",)
    table = make_table(layer.name, "feature", *(Column(name, text=True) for name in names))
    for feature in features:
        effects = feature.effects
        pushed = (_outputs(effects.up), _outputs(effects.down)) if effects else ("", "")
        table.add_row(str(feature.index), feature.label, *(pushed if pushing else ()))
    if counts := layer.monosemantic:
        table.caption = (
            f"{counts.without_constant} of the first {counts.top} are over 90 % one term "
            f"({counts.paper} in the paper's way, the constant included)."
        )
    return table


def _outputs(pushes: tuple[Push, ...]) -> str:
    return ", ".join(repr(push.name)[1:-1] for push in pushes[:OUTPUTS_SHOWN])
