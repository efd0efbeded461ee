"""The bases of node layers, one small file each.

To add one: a subclass of `FeatureBasis` in a file of its own and in the tuple below, its record in
`graph/basis_kinds.py`, and the word for it in `runtime/literals.py`.
"""

from interbasis.fit.bases.basis import FeatureBasis, FitSettings, JacobianSource
from interbasis.fit.bases.gib import GlobalInteractionBasis
from interbasis.fit.bases.jib import JointInteractionBasis
from interbasis.fit.bases.lib import LocalInteractionBasis
from interbasis.fit.bases.neuron import NeuronBasis
from interbasis.fit.bases.pca import PrincipalBasis
from interbasis.fit.bases.random import RandomBasis
from interbasis.runtime.literals import Basis

BASES: dict[Basis, FeatureBasis] = {
    basis.kind.name: basis
    for basis in (
        LocalInteractionBasis(),
        GlobalInteractionBasis(),
        JointInteractionBasis(),
        PrincipalBasis(),
        NeuronBasis(),
        RandomBasis(),
    )
}
"""All bases by name."""

__all__ = ["BASES", "FeatureBasis", "FitSettings", "JacobianSource"]
