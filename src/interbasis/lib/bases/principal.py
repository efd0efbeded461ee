"""The principal directions of a layer, what whitening makes of them, and layers that are left as they are."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.graph.layer_basis import IdentityBasis, LayerBasis
from interbasis.lib.covariance import Covariance
from interbasis.network.jacobian_gram import JacobianGram
from interbasis.network.network import NodeLayer
from interbasis.numerics.linalg import EPSILON, Floor, SpectrumCut, eigenbasis, right_singular_basis

DOMINANCE = 1000
"""Ratio of a layer's largest variance to the next one from which it dominates the layer."""


@dataclass(frozen=True)
class Principal:
    """A layer's centred Gram, decomposed: G = Uᵀ D U without what lies at the noise floor.

    The first ``isolated`` rows are coordinates that stand alone; the others are free of them.
    """

    node: NodeLayer
    mean: Tensor  # [w], the constant left out, w = width − 1
    D: Tensor  # [r]
    U: Tensor  # [r, w]
    cut: SpectrumCut | None
    isolated: int = 0

    @property
    def spread(self) -> Tensor:  # [r, w]
        """D^½ U: its rows are what one unit of each whitened direction is in the layer's coordinates."""
        return self.D.sqrt()[:, None] * self.U

    @classmethod
    def from_covariance(
        cls, node: NodeLayer, covariance: Covariance, floor: Floor | None, divides: bool = True
    ) -> "Principal":
        """Decompose a layer's centred Gram; ``floor=None`` keeps every direction.

        ``divides`` says that D will be divided by; where it is not and D comes from a triangular root, which
        knows it to ε² of the largest, smaller directions are kept.
        """
        gram, alone = covariance.gram.cpu(), node.isolated
        if covariance.root is None:
            D, U = eigenbasis(gram[alone:, alone:])
        else:
            missing = max(0, len(gram) - len(covariance.root))
            root = torch.nn.functional.pad(covariance.root[:, alone:], (0, 0, 0, missing))
            D, U = right_singular_basis(root / covariance.count**0.5)
        D, U = D.clamp_min(0), torch.nn.functional.pad(U, (alone, 0))
        variances, units = gram.diagonal()[:alone], torch.eye(alone, len(gram), dtype=torch.float64)
        cut = None
        if floor:
            squares = covariance.squares.cpu()
            resolution = node.width * EPSILON if divides or covariance.root is None else EPSILON**2
            floors = floor.levels(D, resolution, U.square() @ squares)
            cut, above = SpectrumCut.from_floors(D, floors), floors < D
            varies = variances > floor.levels(variances, EPSILON, squares[:alone], largest=squares[:alone])
            D, U, variances, units = D[above], U[above], variances[varies], units[varies]
        return cls(
            node, covariance.mean.cpu(), torch.cat([variances, D]), torch.cat([units, U]), cut, len(units)
        )

    @property
    def one_direction_dominates(self) -> bool:
        """Whether one of the directions that do not stand alone has far more variance than all others."""
        D = self.D[self.isolated :]
        return len(D) > 1 and bool(D[0] > DOMINANCE * D[1])

    def with_largest_alone(self) -> "Principal":
        """Isolate the first direction after those that stand alone."""
        return replace(self, isolated=min(self.isolated + 1, len(self.U)))

    def whitened(
        self, V: Tensor, Λ: Tensor, jacobian_cut: SpectrumCut, gram: JacobianGram, floor: Floor
    ) -> LayerBasis:
        """f̂ = Λ^½ V D^-½ U H f, for V and Λ of the directions that are not isolated.

        An isolated coordinate is divided by its standard deviation and multiplied by √M_vv.
        """
        apart = self.spread[: self.isolated]
        alone = gram.along(apart)
        largest = torch.cat([alone, Λ, torch.zeros(1)]).max()
        used = alone > floor.levels(alone, EPSILON, gram.magnitudes_along(apart), largest)
        units = torch.eye(self.isolated, dtype=torch.float64)[used]
        V, Λ = torch.block_diag(units, V), torch.cat([alone[used], Λ])
        forward = Λ.sqrt()[:, None] * V @ (self.U / self.D.sqrt()[:, None])
        back = (self.U.T * self.D.sqrt()) @ (V.T / Λ.sqrt())
        return self._layer(forward, back, Λ, jacobian_cut, len(units))

    def rotated(self) -> LayerBasis:
        """f̂ = U H f."""
        return self._layer(self.U, self.U.T, self.D, None, self.isolated)

    def _layer(
        self, forward: Tensor, back: Tensor, ranking: Tensor, jacobian_cut: SpectrumCut | None, isolated: int
    ) -> LayerBasis:
        transform, inverse, mean = forward, back, self.mean
        variances = self.D
        if self.node.constant:  # centre by taking mean · constant away; the constant stays 1
            unit = torch.ones(1, dtype=torch.float64)
            transform = torch.cat([-(forward @ mean)[:, None], forward], dim=1)
            transform = torch.cat([torch.eye(1, transform.shape[1], dtype=torch.float64), transform])
            inverse = torch.cat([torch.zeros(1, back.shape[1], dtype=torch.float64), back])
            mean = torch.cat([unit, mean])
            inverse = torch.cat([mean[:, None], inverse], dim=1)
            ranking, variances = torch.cat([unit, ranking]), torch.cat([unit, variances])
        return LayerBasis(
            self.node.name, transform, inverse, mean, ranking, variances, self.node.constant,
            self.cut, jacobian_cut, isolated,
        )  # fmt: skip


def unrotated(node: NodeLayer, covariance: Covariance) -> LayerBasis:
    """f̂ = f: the neuron basis, and a last layer that is not to be rotated."""
    mean, variances = covariance.mean.cpu(), covariance.variances.cpu()
    if node.constant:
        unit = torch.ones(1, dtype=torch.float64)
        mean, variances = torch.cat([unit, mean]), torch.cat([unit, variances])
    return IdentityBasis(node.name, node.width, mean, variances, node.constant)


def last_layer(node: NodeLayer, covariance: Covariance, rotate: bool) -> LayerBasis:
    """The last layer, rotated (PCA) with nothing cut off, or left as it is."""
    if not rotate:
        return unrotated(node, covariance)
    return Principal.from_covariance(node, covariance, floor=None).rotated()
