"""Features of two runs, matched one to one, layer by layer.

The overlap of feature i of run a with feature j of run b, 0 to 1, is one of three.

1. Runs of one model: |correlation|. With f̂_a = C_a f uncorrelated, Cov(f̂_a) = diag(λ_a), and
   f̂_b = C_b C_a⁺ f̂_a up to what run a dropped, which is uncorrelated with what it kept,

       Cov(f̂_b, f̂_a) = C_b C_a⁺ diag(λ_a).

   Nothing is measured: λ and the bases are in the graphs. All bases but the neurons' own qualify.
2. Different weights: |cosine| between the directions v = C⁺[:, i] of both features in the metric CᵀC of
   either run, where v_i has the features C v_i = e_i:

       cos_a = |C_a v_j|_i / ‖C_a v_j‖,    cos_b = |C_b v_i|_j / ‖C_b v_i‖,    overlap = (cos_a cos_b)^½.

   It compares coordinates, so that it says something about models that share an ancestor: a base and its
   fine-tune, checkpoints of one training.
3. Both models on the same data: |correlation| of f̂_a and f̂_b, measured. It compares what features do, so
   that it serves models with nothing in common but the data: two seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import MAX_DENSE_IDENTITY, LayerBasis

CHANCE_SEED = 0
"""Seed of the rotation that overlaps by chance are found with."""


@dataclass(frozen=True, eq=False)
class MatchedFeatures:
    """Features of one layer in two runs, matched one to one so that the sum of overlaps is largest."""

    first: Tensor
    """[pairs] of the first run, without the constant."""
    second: Tensor
    """[pairs] of the second run."""
    overlaps: Tensor
    """[pairs]."""
    chance: float | None
    """Mean overlap after the features of the second run are rotated at random; None where bases are fixed."""

    @classmethod
    def from_overlaps(cls, overlaps: "Overlaps", a: LayerBasis, b: LayerBasis) -> "MatchedFeatures":
        """Match the features of two bases."""
        first, second, values = _assign(overlaps(None)[a.first_feature :, b.first_feature :])
        size = b.features - b.first_feature
        generator = torch.Generator().manual_seed(CHANCE_SEED)
        rotation = torch.eye(b.features, dtype=torch.float64)
        rotation[b.first_feature :, b.first_feature :] = torch.linalg.qr(
            torch.randn(size, size, dtype=torch.float64, generator=generator)
        ).Q
        _, _, by_chance = _assign(overlaps(rotation)[a.first_feature :, b.first_feature :])
        return cls(
            first + a.first_feature, second + b.first_feature, values,
            float(by_chance.mean()) if len(by_chance) else None,
        )  # fmt: skip


Overlaps = Callable[[Tensor | None], Tensor]
"""Overlaps [features of a, features of b], those of b rotated before, or as they are."""


def _assign(overlaps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from scipy.optimize import linear_sum_assignment

    rows, columns = map(torch.as_tensor, linear_sum_assignment(overlaps.numpy(), maximize=True))
    return rows, columns, overlaps[rows, columns]


def match(
    a: InteractionGraph, b: InteractionGraph, measured: Sequence[Tensor] | None = None
) -> dict[str, MatchedFeatures]:
    """Match the features of two graphs with the same node layers, by the name of the layer.

    Args:
        a: The first graph.
        b: The second graph.
        measured: Correlations of features by layer (`feature_correlations.py`); default: overlaps that follow
            from the graphs.

    Returns:
        Matches; layers whose overlap is not known, such as the neurons of one model with themselves where no
        variances are stored, are left out.
    """
    matched = {}
    for k, (one, other) in enumerate(zip(a.layers, b.layers, strict=True)):
        if one.identity and other.identity:  # the same coordinates, at a vocabulary's width too
            indices = torch.arange(one.first_feature, one.features)
            matched[one.name] = MatchedFeatures(indices, indices, torch.ones(len(indices)), None)
        elif measured is not None:
            matched[one.name] = MatchedFeatures.from_overlaps(_rotating(measured[k]), one, other)
        elif (overlaps := layer_overlaps(a, b, one, other)) is not None:
            matched[one.name] = MatchedFeatures.from_overlaps(overlaps, one, other)
    return matched


def layer_overlaps(
    a: InteractionGraph, b: InteractionGraph, one: LayerBasis, other: LayerBasis
) -> Overlaps | None:
    """Overlaps of the features of one layer in two graphs; None where they are not known."""
    if max(one.width if one.identity else 0, other.width if other.identity else 0) > MAX_DENSE_IDENTITY:
        return None
    if a.provenance.model_fingerprint != b.provenance.model_fingerprint:
        return _cosines(one, other)
    free = [graph.config.basis != "neuron" and not basis.identity for graph, basis in ((a, one), (b, other))]
    spreads = [
        basis.eigenvalues if is_free else basis.variances
        for basis, is_free in zip((one, other), free, strict=True)
    ]
    if spreads[0] is None or spreads[1] is None or not any(free):
        return None
    if free[0]:
        return _rotating(correlations(one, other, spreads[1]))
    return _rotating(correlations(other, one, spreads[0]).T)


def _rotating(signed: Tensor) -> Overlaps:
    """Overlaps |K| of correlations K [features of a, features of b]."""
    return lambda rotation: (signed if rotation is None else signed @ rotation.T).abs().clamp_max(1)


def _cosines(a: LayerBasis, b: LayerBasis) -> Overlaps:
    """Overlaps of directions in the metric of either run."""
    of_b = a.to_features(b.inverse.double().T).T  # C_a v_j, [features of a, features of b]
    of_a = b.to_features(a.inverse.double().T).T  # C_b v_i, [features of b, features of a]
    of_b[: a.first_feature], of_a[: b.first_feature] = 0, 0

    def overlaps(rotation: Tensor | None) -> Tensor:
        forward, backward = (of_b, of_a) if rotation is None else (of_b @ rotation.T, rotation @ of_a)
        cos_a, cos_b = (torch.nn.functional.normalize(x, dim=0).abs() for x in (forward, backward))
        return (cos_a * cos_b.T).sqrt().clamp_max(1)

    return overlaps


def correlations(a: LayerBasis, b: LayerBasis, variances: Tensor) -> Tensor:  # [features of a, features of b]
    """Correlations of the features of a, which are uncorrelated, with those of b, from the variances of b."""
    assert a.eigenvalues is not None
    scales = a.eigenvalues.double().clamp_min(0).sqrt()
    scaled = b.to_features(a.inverse.double().T) * scales[:, None]  # Cov(f̂_a, f̂_b) / λ_a^½
    result = scaled / variances.double().clamp_min(0).sqrt().clamp_min(1e-300)
    result[: a.first_feature], result[:, : b.first_feature] = 0, 0
    if a.constant and b.constant:
        result[0, 0] = 1
    return result
