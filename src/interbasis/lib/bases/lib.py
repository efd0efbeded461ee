"""The Local Interaction Basis: eigenvectors of the Gram of Jacobians to the next layer's features."""

from dataclasses import replace

import torch

from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import LIB
from interbasis.lib.bases.principal import Principal
from interbasis.lib.bases.whitened import WhitenedBasis
from interbasis.network.jacobian_gram import JacobianGram
from interbasis.numerics.linalg import EPSILON, Floor, SpectrumCut


class LocalInteractionBasis(WhitenedBasis):
    """V of M = VᵀΛV, the Gram of J = ∂f̂_next/∂f̃ in whitened coordinates f̃."""

    kind = LIB

    def turn(
        self, principal: Principal, gram: JacobianGram, floor: Floor, key: tuple[int, int]
    ) -> LayerBasis:
        spread, dominated = principal.spread[principal.isolated :], principal.one_direction_dominates
        Λ, V = gram.eigenbasis(spread, factored=dominated)
        resolution = principal.node.width * EPSILON
        if dominated and floor.relative is None:
            floors = floor.levels(Λ, resolution**2, gram.magnitudes_along(V @ spread))
            floors = torch.maximum(floors, resolution * gram.products_along(V @ spread))
        else:
            floors = floor.levels(Λ, resolution, gram.magnitudes_along(V @ spread))
        cut, above = SpectrumCut.from_floors(Λ, floors), floors < Λ
        # directions that the decomposition's small side never saw have Λ = 0 and count as dropped
        cut = replace(cut, dropped=len(spread) - cut.kept)
        return principal.whitened(V[above], Λ[above], cut, gram, floor)
