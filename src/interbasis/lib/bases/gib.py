"""The Global Interaction Basis: LIB with Jacobians to the last layer in place of the next one."""

from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import GIB
from interbasis.lib.bases.lib import LocalInteractionBasis
from interbasis.lib.bases.whitened import LayerGram
from interbasis.lib.jacobians import Jacobians


class GlobalInteractionBasis(LocalInteractionBasis):
    """V of the Gram of J = ∂f̂_last/∂f̃."""

    kind = GIB
    jacobians_to_end = True

    def grams(self, jacobians: Jacobians, last: LayerBasis) -> LayerGram:
        to_end = jacobians.to_end(last.transform)
        return lambda index, following, deviation: to_end[index]
