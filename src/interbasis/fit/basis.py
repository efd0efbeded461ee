"""The basis of every node layer: neuron, PCA, LIB, GIB, random.

Walking from the last node layer to the first, the Local Interaction Basis is

    G = E[(Hf)(Hf)ᵀ] = Uᵀ D U              centred Gram of the layer           (H takes the mean away)
    f̃ = D^-½ U H f                          whitened, noise dropped
    M = (1/nT) Σ JᵀJ = Vᵀ Λ V               Gram of J = ∂f̂_next/∂f̃             (from closed forms)
    f̂ = C f,   C = Λ^½ V D^-½ U H,   C⁺ = H⁻¹ Uᵀ D^½ Vᵀ Λ^-½

with the constant kept out of both decompositions. C⁺ puts dropped directions at their mean; it is not the
pseudo-inverse of C. The other bases differ in one step each:

    pca      f̂ = U H f, no whitening, no Jacobian
    gib      J runs to the last node layer instead of the next one
    random   V is a random rotation and Λ_j = (V M Vᵀ)_jj
    neuron   f̂ = f
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from interbasis.fit.jacobian import JacobianGram
from interbasis.fit.statistics import Covariance
from interbasis.graph.layer_basis import IdentityBasis, LayerBasis
from interbasis.network.network import NodeLayer
from interbasis.numerics.linalg import (
    EPSILON,
    Cut,
    Floor,
    eigenbasis,
    fix_signs,
    haar_rotation,
    right_singular_basis,
)
from interbasis.runtime.literals import Basis


@dataclass(frozen=True)
class Principal:
    """A layer's centred Gram, decomposed: G = Uᵀ D U without what lies at the noise floor.

    The first ``isolated`` rows are coordinates that stand alone; the others are free of them.
    """

    node: NodeLayer
    mean: Tensor  # [w], the constant left out, w = width − 1
    D: Tensor  # [r]
    U: Tensor  # [r, w]
    cut: Cut | None
    isolated: int = 0

    @property
    def spread(self) -> Tensor:  # [r, w]
        """D^½ U: its rows are what one unit of each whitened direction is in the layer's coordinates."""
        return self.D.sqrt()[:, None] * self.U

    @classmethod
    def of(
        cls, node: NodeLayer, covariance: Covariance, floor: Floor | None, divides: bool = True
    ) -> "Principal":
        """``floor=None`` keeps every direction.

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
        own, units = gram.diagonal()[:alone], torch.eye(alone, len(gram), dtype=torch.float64)
        cut = None
        if floor:
            squares = covariance.squares.cpu()
            resolution = node.width * EPSILON if divides or covariance.root is None else EPSILON**2
            floors = floor.levels(D, resolution, U.square() @ squares)
            cut, kept = Cut.of(D, floors), floors < D
            varies = own > floor.levels(own, EPSILON, squares[:alone], largest=squares[:alone])
            D, U, own, units = D[kept], U[kept], own[varies], units[varies]
        return cls(node, covariance.mean.cpu(), torch.cat([own, D]), torch.cat([units, U]), cut, len(units))

    def whitened(
        self, V: Tensor, Λ: Tensor, jacobian_cut: Cut, gram: JacobianGram, floor: Floor
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
        self, forward: Tensor, back: Tensor, ranking: Tensor, jacobian_cut: Cut | None, isolated: int
    ) -> LayerBasis:
        transform, inverse, mean = forward, back, self.mean
        variances = self.D
        if self.node.constant:  # centre by taking mean · constant away; the constant stays 1
            one = torch.ones(1, dtype=torch.float64)
            transform = torch.cat([-(forward @ mean)[:, None], forward], dim=1)
            transform = torch.cat([torch.eye(1, transform.shape[1], dtype=torch.float64), transform])
            inverse = torch.cat([torch.zeros(1, back.shape[1], dtype=torch.float64), back])
            mean = torch.cat([one, mean])
            inverse = torch.cat([mean[:, None], inverse], dim=1)
            ranking, variances = torch.cat([one, ranking]), torch.cat([one, variances])
        return LayerBasis(
            self.node.name, transform, inverse, mean, ranking, variances, self.node.constant,
            self.cut, jacobian_cut, isolated,
        )  # fmt: skip


def unrotated(node: NodeLayer, covariance: Covariance) -> LayerBasis:
    """f̂ = f: the neuron basis, and a last layer that is not to be rotated."""
    mean, variances = covariance.mean.cpu(), covariance.variances.cpu()
    if node.constant:
        one = torch.ones(1, dtype=torch.float64)
        mean, variances = torch.cat([one, mean]), torch.cat([one, variances])
    return IdentityBasis(node.name, node.width, mean, variances, node.constant)


def interacting(principal: Principal, gram: JacobianGram, floor: Floor) -> LayerBasis:
    """The features of LIB and GIB: eigenvectors of the Jacobian Gram M in whitened coordinates."""
    spread = principal.spread[principal.isolated :]
    Λ, V = gram.eigenbasis(spread)
    floors = floor.levels(Λ, principal.node.width * EPSILON, gram.magnitudes_along(V @ spread))
    cut, kept = Cut.of(Λ, floors), floors < Λ
    # directions that the decomposition's small side never saw have Λ = 0 and count as dropped
    cut = replace(cut, dropped=len(spread) - cut.kept)
    return principal.whitened(V[kept], Λ[kept], cut, gram, floor)


def randomly_rotated(
    principal: Principal, gram: JacobianGram, floor: Floor, key: tuple[int, int]
) -> LayerBasis:
    """The control: a random rotation of the whitened space, each feature scaled by its own (V M Vᵀ)_jj."""
    spread = principal.spread[principal.isolated :]
    V = haar_rotation(len(spread), key)
    Λ = gram.along(V @ spread)
    order = Λ.argsort(descending=True, stable=True)
    Λ, V = Λ[order], fix_signs(V[order])
    floors = floor.levels(Λ, principal.node.width * EPSILON, gram.magnitudes_along(V @ spread))
    kept = floors < Λ
    return principal.whitened(V[kept], Λ[kept], Cut.of(Λ, floors), gram, floor)


def with_errors(
    basis: LayerBasis, gram: JacobianGram, rotated: bool = True
) -> tuple[LayerBasis, Tensor | None]:
    """The basis with standard errors of Λ, and E [features, features]: CᵀC may be off by CᵀEC.

    In features M is the identity and E_jj = δΛ_j/Λ_j. Only what was decomposed depends on M as a matrix: an
    isolated coordinate, or a feature that was not ``rotated`` by M, depends on its own entry alone.
    """
    first = 1 if basis.constant else 0
    E = gram.deviations(basis.inverse[first:, first:].T)
    if E is None or basis.eigenvalues is None:
        return basis, None
    own, alone = torch.diag(E.diagonal()), basis.isolated
    E = torch.block_diag(own[:alone, :alone], E[alone:, alone:]) if rotated else own
    E = torch.nn.functional.pad(E, (first, 0, first, 0))
    return replace(basis, eigenvalue_errors=E.diagonal().abs() * basis.eigenvalues), E


@dataclass(frozen=True)
class JacobianSource:
    """Where the Grams of Jacobians come from."""

    to_next: Callable[[int, Tensor | None, Tensor | None], JacobianGram]
    """to_next(k, C, E): from node layer k to the features C of the one after it, whose Gram CᵀC may be off by
    CᵀEC. C may be None, the identity, and E None, not off at all."""
    to_end: Callable[[Tensor], list[JacobianGram]]
    """to_end(C): from every node layer to the features C of the last one."""


@dataclass(frozen=True)
class Settings:
    """Which basis, and where spectra are cut."""

    basis: Basis = "lib"
    variance_floor: Floor = field(default_factory=Floor)
    jacobian_floor: Floor = field(default_factory=Floor)
    rotate_last: bool = True
    seed: int = 0
    isolate: bool = True
    """Whether coordinates that node layers name as isolated are kept out of the decompositions."""


def fit(
    nodes: Sequence[NodeLayer], layers: Sequence[Covariance], jacobians: JacobianSource, settings: Settings
) -> list[LayerBasis]:
    """The bases of all node layers, from the last to the first.

    ``layers`` are the covariances of the node layers. The last layer is rotated without cutting anything
    off, or left as it is.
    """
    if not settings.isolate:
        nodes = [replace(node, isolated=0) for node in nodes]
    if settings.basis == "neuron":
        return [unrotated(node, covariance) for node, covariance in zip(nodes, layers, strict=True)]
    if settings.rotate_last:
        last = Principal.of(nodes[-1], layers[-1], floor=None).rotated()
    else:
        last = unrotated(nodes[-1], layers[-1])
    bases = [last]
    to_end = jacobians.to_end(last.transform) if settings.basis == "gib" else []
    deviation: Tensor | None = None
    for index in reversed(range(len(nodes) - 1)):
        divides = settings.basis != "pca"
        principal = Principal.of(nodes[index], layers[index], settings.variance_floor, divides)
        if not divides:
            bases.insert(0, principal.rotated())
            continue
        if settings.basis == "gib":
            gram = to_end[index]
        else:
            transform = None if bases[0].identity else bases[0].transform
            gram = jacobians.to_next(index, transform, deviation)
        if settings.basis == "random":
            basis = randomly_rotated(principal, gram, settings.jacobian_floor, (settings.seed, index))
        else:
            basis = interacting(principal, gram, settings.jacobian_floor)
        basis, deviation = with_errors(basis, gram, rotated=settings.basis != "random")
        bases.insert(0, basis)
    return bases
