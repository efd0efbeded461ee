"""The share of the mean in LIB's Jacobians.

LIB ranks directions by E‖J v‖². If a section did the same thing to every token, J would be constant and ‖E
J‖² would be all of it. For J = ∂f̂_next/∂f̃ from whitened activations f̃, E‖J‖² = tr M = ΣΛ, and with Ĵ in
features, J = Ĵ Λ^½ up to a rotation, so the share is

    ‖E[Ĵ] Λ^½‖² / ΣΛ.

Where positions mix, E‖J‖² sums over all pairs of positions and E[Ĵ] is the mean at the output's own
position, so that the share is a lower bound.
"""

from collections.abc import Sequence

import torch

from interbasis.analysis.yardstick.records import MeanJacobianShare
from interbasis.base.errors import InterbasisError
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.slices import SlicedSection, SlicesPass
from interbasis.network.network import Network


@torch.no_grad()
def mean_jacobians(network: Network, layers: Sequence[LayerBasis], data: Batches) -> list[MeanJacobianShare]:
    """Shares of all sections, over data, with all tokens counted.

    Raises:
        InterbasisError: A section is a convolution.
    """
    if not all(section.reads_per_position for section in network.sections):
        raise InterbasisError(
            "the row mean-jacobian is unsupported for convolutions; leave it out of the rows"
        )
    everything = SlicesPass(network, layers, seed=0, planes=0)
    sums = Executor(network).run(everything, data)
    return [
        _share(section.core.mixes_positions, layers[k : k + 2], everything.jacobians(k, sums))
        for k, section in enumerate(network.sections)
    ]


def _share(mixes: bool, layers: Sequence[LayerBasis], jacobian: SlicedSection) -> MeanJacobianShare:
    source, target = layers
    assert source.eigenvalues is not None
    Λ = source.eigenvalues[source.first_feature :]
    total = jacobian.grams[0].diagonal() @ Λ
    return MeanJacobianShare(
        source=source.name,
        target=target.name,
        mixes_positions=mixes,
        share=((jacobian.means[0].square() @ Λ).sum() / total).item(),
    )
