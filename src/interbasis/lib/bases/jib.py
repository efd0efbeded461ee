"""The Joint Interaction Basis: LIB's metric, turned by the covariance and by Jacobians on slices of the data.

LIB's features are one of many bases with C⁺ᵀM′C⁺ = 1, which all have the same CᵀC, and so the same metric for
the layer before; they differ by a rotation R. LIB takes the R that makes features uncorrelated. If the
network is made of parts and the parts' activations are correlated, or the covariance is known from few
samples, uncorrelated features mix the parts. Jacobians do not: between parts they are 0 for every sample. So
this basis takes the R that makes the covariance and, over slices s of the data,

    M̂_s − M̂ of the section after the layer,    M̂_s = E_s[ĴᵀĴ],
    J̄_sJ̄_sᵀ − J̄J̄ᵀ of the section before it,    J̄_s = E_s[Ĵ]

as diagonal as possible, all at once. Where a section is linear all slices are alike, and the section before
decides; where nothing does, R is the identity, and the features are LIB's. Without the covariance parts that
do not touch are found exactly, but features of trained networks spread over everything (docs/evidence.md).
Features are ordered by their variance, which is LIB's Λ when R is the identity.
"""

from dataclasses import replace

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import JIB
from interbasis.lib.bases.basis import FitInputs
from interbasis.lib.bases.lib import LocalInteractionBasis
from interbasis.lib.slices import SlicedSection, jacobians_on_slices
from interbasis.network.network import Network
from interbasis.numerics.joint_diagonalisation import joint_rotation
from interbasis.numerics.linalg import fix_signs

ROUNDING = 1e-10
"""Off-diagonal parts below this, relative to the matrices they are part of, are rounding and turn nothing."""


class JointInteractionBasis(LocalInteractionBasis):
    """LIB with R of all slices in place of the eigenvectors of the covariance."""

    kind = JIB
    needs_all_tokens = True
    needs_slices = True

    def require(self, network: Network, all_tokens: bool) -> None:
        for step in network.sections:
            if not step.reads_per_position:
                raise InterbasisError(
                    f"the basis jib is unsupported for convolutions, and {step.source.name!r} → "
                    f"{step.target.name!r} is one; choose lib"
                )
        if not all_tokens:
            raise InterbasisError(
                "the basis jib counts every token; build it with norm_limit=0 and skip_positions=0, "
                "or choose lib"
            )

    def fit(self, inputs: FitInputs) -> list[LayerBasis]:
        layers = super().fit(inputs)
        sections = jacobians_on_slices(inputs.jacobians, layers)
        before: list[SlicedSection | None] = [None, *sections[:-1]]
        turned = [
            _turned(layer, _matrices(layer, following, previous))
            for layer, following, previous in zip(layers, sections, before, strict=False)
        ]
        return [*turned, layers[-1]]


def _matrices(layer: LayerBasis, after: SlicedSection, before: SlicedSection | None) -> Tensor:
    """Matrices to diagonalise, [k, r, r]: differences of slices from all data, and the features' covariance.

    The groups of both sections weigh the same, and the covariance as much as all slices together.
    """
    groups = [after.grams] if before is None else [after.grams, before.means @ before.means.mT]
    alone, first = layer.isolated, layer.first_feature + layer.isolated
    result = []
    for group in groups:
        inner = group[:, alone:, alone:]
        deviations = inner[1:] - inner[:1]
        size, whole = deviations.square().mean().sqrt(), inner.square().mean().sqrt()
        if size > ROUNDING * whole:
            result.append(deviations / size)
    assert layer.eigenvalues is not None
    Λ = layer.eigenvalues[first:]
    covariance = torch.diag(Λ - Λ.mean())[None]  # of LIB's features; a multiple of 1 is diagonal anyway
    if not result or not covariance.any():
        return torch.cat([covariance, *result])
    weight = sum(len(group) for group in result) ** 0.5
    return torch.cat([weight * covariance / covariance.square().mean().sqrt(), *result])


def _turned(layer: LayerBasis, matrices: Tensor) -> LayerBasis:
    first = layer.first_feature + layer.isolated
    assert layer.eigenvalues is not None
    R = joint_rotation(matrices)
    variances = R.square() @ layer.eigenvalues[first:]
    order = variances.argsort(descending=True, stable=True)
    whole = torch.block_diag(torch.eye(first, dtype=torch.float64), fix_signs(R[order]))
    return replace(
        layer,
        transform=whole @ layer.transform,
        inverse=layer.inverse @ whole.T,
        eigenvalues=torch.cat([layer.eigenvalues[:first], variances[order]]),
        eigenvalue_errors=None,
    )
