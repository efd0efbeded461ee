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

from interbasis.choices import Basis
from interbasis.errors import InterbasisError
from interbasis.jacobian import JacobianGram
from interbasis.linalg import Cut, Floor, eigenbasis, fix_signs, haar_rotation
from interbasis.network import NodeLayer
from interbasis.statistics import Covariance


@dataclass(frozen=True, eq=False)
class LayerBasis:
    """The features of one node layer, in float64. Somebody else's basis needs C and C⁺ only."""

    name: str
    transform: Tensor
    """C [features, width]: f̂ = C f. Feature 0 is the constant where the layer has one."""
    inverse: Tensor
    """C⁺ [width, features]: back to the network's coordinates, dropped directions at their mean."""
    mean: Tensor | None = None
    """E[f] [width], 1 for the constant."""
    eigenvalues: Tensor | None = None
    """What the features are ranked by, [features]: Λ for lib, gib and random; the variance for pca and
    neuron, and for the last layer. Entry 0, the constant's, is 1 by convention."""
    variances: Tensor | None = None
    """D [directions]: variances of the principal directions kept, in descending order; entry 0, the
    constant's, is 1 by convention. For neuron, the neurons' own."""
    constant: bool = True
    """Whether feature 0 is the constant."""
    variance_cut: Cut | None = None
    """What the noise floor did to D."""
    jacobian_cut: Cut | None = None
    """What the noise floor did to Λ."""

    def __post_init__(self) -> None:
        if self.transform.ndim != 2 or self.inverse.shape != self.transform.T.shape:
            raise InterbasisError(
                f"layer {self.name!r}: a transform of shape [features, width] wants an inverse of shape "
                f"[width, features], received {list(self.transform.shape)} and {list(self.inverse.shape)}"
            )

    def __repr__(self) -> str:
        return f"LayerBasis({self.name}: {self.features} features of {self.width} coordinates)"

    @property
    def features(self) -> int:
        return len(self.transform)

    @property
    def width(self) -> int:
        return self.transform.shape[1]


@dataclass(frozen=True)
class Principal:
    """A layer's centred Gram, decomposed: G = Uᵀ D U without what lies at the noise floor."""

    node: NodeLayer
    mean: Tensor  # [w], the constant left out, w = width − 1
    D: Tensor  # [r]
    U: Tensor  # [r, w]
    cut: Cut | None

    @property
    def spread(self) -> Tensor:  # [r, w]
        """D^½ U: its rows are what one unit of each whitened direction is in the layer's coordinates."""
        return self.D.sqrt()[:, None] * self.U

    @classmethod
    def of(cls, node: NodeLayer, covariance: Covariance, floor: Floor | None) -> "Principal":
        """``floor=None`` keeps every direction."""
        D, U = eigenbasis(covariance.gram)
        D = D.clamp_min(0)
        cut = floor.cut(D, node.width) if floor else None
        kept = cut.kept if cut else len(D)
        return cls(node, covariance.mean.cpu(), D[:kept], U[:kept], cut)

    def whitened(self, V: Tensor, Λ: Tensor, jacobian_cut: Cut | None) -> LayerBasis:
        """f̂ = Λ^½ V D^-½ U H f, for V [features, r] and Λ [features]."""
        forward = Λ.sqrt()[:, None] * V @ (self.U / self.D.sqrt()[:, None])
        back = (self.U.T * self.D.sqrt()) @ (V.T / Λ.sqrt())
        return self._layer(forward, back, Λ, jacobian_cut)

    def rotated(self) -> LayerBasis:
        """f̂ = U H f."""
        return self._layer(self.U, self.U.T, self.D, None)

    def _layer(self, forward: Tensor, back: Tensor, ranking: Tensor, jacobian_cut: Cut | None) -> LayerBasis:
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
            self.cut, jacobian_cut,
        )  # fmt: skip


def unrotated(node: NodeLayer, covariance: Covariance) -> LayerBasis:
    """f̂ = f: the neuron basis, and a last layer that is not to be rotated."""
    identity = torch.eye(node.width, dtype=torch.float64)
    mean, variances = covariance.mean.cpu(), covariance.variances.cpu()
    if node.constant:
        one = torch.ones(1, dtype=torch.float64)
        mean, variances = torch.cat([one, mean]), torch.cat([one, variances])
    return LayerBasis(node.name, identity, identity, mean, variances, variances, node.constant)


def interacting(principal: Principal, gram: JacobianGram, floor: Floor) -> LayerBasis:
    """The features of LIB and GIB: eigenvectors of the Jacobian Gram M in whitened coordinates."""
    Λ, V = gram.eigenbasis(principal.spread)
    cut = floor.cut(Λ, principal.node.width)
    # directions that the decomposition's small side never saw have Λ = 0 and count as dropped
    cut = replace(cut, dropped=len(principal.D) - cut.kept)
    return principal.whitened(V[: cut.kept], Λ[: cut.kept], cut)


def randomly_rotated(
    principal: Principal, gram: JacobianGram, floor: Floor, key: tuple[int, int]
) -> LayerBasis:
    """The control: a random rotation of the whitened space, each feature scaled by its own (V M Vᵀ)_jj."""
    V = haar_rotation(len(principal.D), key)
    Λ = gram.along(V @ principal.spread)
    order = Λ.argsort(descending=True, stable=True)
    Λ, V = Λ[order], fix_signs(V[order])
    cut = floor.cut(Λ, principal.node.width)
    return principal.whitened(V[: cut.kept], Λ[: cut.kept], cut)


@dataclass(frozen=True)
class JacobianSource:
    """Where the Grams of Jacobians come from."""

    to_next: Callable[[int, Tensor], JacobianGram]
    """to_next(k, C): from node layer k to the features C of the one after it."""
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


def fit(
    nodes: Sequence[NodeLayer], layers: Sequence[Covariance], jacobians: JacobianSource, settings: Settings
) -> list[LayerBasis]:
    """The bases of all node layers, from the last to the first.

    ``layers`` are the covariances of the node layers. The last layer is rotated without cutting anything
    off, or left as it is.
    """
    if settings.basis == "neuron":
        return [unrotated(node, covariance) for node, covariance in zip(nodes, layers, strict=True)]
    if settings.rotate_last:
        last = Principal.of(nodes[-1], layers[-1], floor=None).rotated()
    else:
        last = unrotated(nodes[-1], layers[-1])
    bases = [last]
    to_end = jacobians.to_end(last.transform) if settings.basis == "gib" else []
    for index in reversed(range(len(nodes) - 1)):
        principal = Principal.of(nodes[index], layers[index], settings.variance_floor)
        if settings.basis == "pca":
            basis = principal.rotated()
        elif settings.basis == "gib":
            basis = interacting(principal, to_end[index], settings.jacobian_floor)
        else:
            gram = jacobians.to_next(index, bases[0].transform)
            if settings.basis == "lib":
                basis = interacting(principal, gram, settings.jacobian_floor)
            else:
                basis = randomly_rotated(principal, gram, settings.jacobian_floor, (settings.seed, index))
        bases.insert(0, basis)
    return bases
