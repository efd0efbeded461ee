"""The Global Interaction Basis: LIB with Jacobians to the last layer in place of the next one."""

from interbasis.fit.bases.basis import JacobianSource
from interbasis.fit.bases.lib import LocalInteractionBasis
from interbasis.fit.bases.whitened import GramOfLayer
from interbasis.graph.basis_kinds import GIB
from interbasis.graph.layer_basis import LayerBasis


class GlobalInteractionBasis(LocalInteractionBasis):
    """V of the Gram of J = ∂f̂_last/∂f̃."""

    kind = GIB

    def grams(self, jacobians: JacobianSource, last: LayerBasis) -> GramOfLayer:
        to_end = jacobians.to_end(last.transform)
        return lambda index, following, deviation: to_end[index]
