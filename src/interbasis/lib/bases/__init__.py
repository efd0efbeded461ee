"""The bases of node layers, one small file each.

To add one: a subclass of `FeatureBasis` in a file of its own and in the tuple below, its record in
`graph/settings.py`, and the word for it in `base/records.py`.
"""

from interbasis.base.records import Basis
from interbasis.lib.bases.basis import FeatureBasis, FitInputs
from interbasis.lib.bases.gib import GlobalInteractionBasis
from interbasis.lib.bases.jib import JointInteractionBasis
from interbasis.lib.bases.lib import LocalInteractionBasis
from interbasis.lib.bases.neuron import NeuronBasis
from interbasis.lib.bases.pca import PrincipalBasis
from interbasis.lib.bases.random import RandomBasis

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

__all__ = ["BASES", "FeatureBasis", "FitInputs"]
