"""Features of two runs of one model, matched layer by layer.

With f̂_a = C_a f uncorrelated, Cov(f̂_a) = diag(λ_a), the features of the other run are f̂_b = C_b C_a⁺ f̂_a
up to what run a dropped, so that

    Cov(f̂_b, f̂_a) = C_b C_a⁺ diag(λ_a),        corr = |Cov| / (σ_b λ_a^½):

what run a dropped is uncorrelated with what it kept. Nothing is measured: λ and the bases are in the graphs.
All bases but the neurons' own have uncorrelated features.
"""

from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.show.viewer.schema import PageMatch


def matches(a: InteractionGraph, b: InteractionGraph) -> tuple[PageMatch, ...]:
    """For every layer that both graphs rotate, each feature's best match; none for different models."""
    if a.provenance.model_fingerprint != b.provenance.model_fingerprint:
        return ()
    layers = {layer.name: layer for layer in b.layers}
    matched = []
    for layer in a.layers:
        twin = layers.get(layer.name)
        if twin is None or layer.width != twin.width:
            continue
        overlap = _overlap(layer, twin, a.config.basis != "neuron", b.config.basis != "neuron")
        if overlap is None:
            continue
        first, second = overlap.max(1), overlap.max(0)
        matched.append(
            PageMatch(
                layer=layer.name,
                first=first.indices,
                first_overlap=first.values,
                second=second.indices,
                second_overlap=second.values,
            )
        )
    return tuple(matched)


def _overlap(a: LayerBasis, b: LayerBasis, a_free: bool, b_free: bool) -> Tensor | None:
    """|corr| [features of a, features of b]; the constants match each other. None where it is not known."""
    spreads = [  # λ where features are uncorrelated, else variances of the neurons
        layer.eigenvalues if free and not layer.identity else layer.variances
        for layer, free in ((a, a_free), (b, b_free))
    ]
    if spreads[0] is None or spreads[1] is None:
        return None
    if a_free and not a.identity:
        return correlations(a, b, spreads[1])
    return correlations(b, a, spreads[0]).T if b_free and not b.identity else None


def correlations(a: LayerBasis, b: LayerBasis, variances: Tensor) -> Tensor:  # [features of a, features of b]
    """|corr| of the features of a, which are uncorrelated, with those of b, whose variances are given."""
    assert a.eigenvalues is not None
    scales = a.eigenvalues.double().clamp_min(0).sqrt()
    scaled = b.to_features(a.inverse.double().T) * scales[:, None]  # Cov(f̂_a, f̂_b) / λ_a^½
    deviations = variances.double().clamp_min(0).sqrt().clamp_min(1e-300)
    result = (scaled.abs() / deviations).clamp_max(1)
    result[: a.first_feature], result[:, : b.first_feature] = 0, 0
    if a.constant and b.constant:
        result[0, 0] = 1
    return result
