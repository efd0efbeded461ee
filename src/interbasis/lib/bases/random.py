"""The control: whitened directions in a random rotation, scaled as LIB scales its own."""

from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import RANDOM
from interbasis.lib.bases.principal import Principal
from interbasis.lib.bases.whitened import WhitenedBasis
from interbasis.network.jacobian_gram import JacobianGram
from interbasis.numerics.linalg import EPSILON, Floor, SpectrumCut, fix_signs, haar_rotation


class RandomBasis(WhitenedBasis):
    """V is a Haar-random rotation, the same for the same seed and layer, and Λ_j = (V M Vᵀ)_jj."""

    kind = RANDOM
    turned_by_jacobians = False

    def turn(
        self, principal: Principal, gram: JacobianGram, floor: Floor, key: tuple[int, int]
    ) -> LayerBasis:
        spread = principal.spread[principal.isolated :]
        V = haar_rotation(len(spread), key)
        Λ = gram.along(V @ spread)
        order = Λ.argsort(descending=True, stable=True)
        Λ, V = Λ[order], fix_signs(V[order])
        floors = floor.levels(Λ, principal.node.width * EPSILON, gram.magnitudes_along(V @ spread))
        above = floors < Λ
        return principal.whitened(V[above], Λ[above], SpectrumCut.from_floors(Λ, floors), gram, floor)
