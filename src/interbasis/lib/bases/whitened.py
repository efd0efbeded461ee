"""Bases that turn whitened activations: LIB, GIB and the random control.

Walking from the last node layer to the first, the Local Interaction Basis is

    G = E[(Hf)(Hf)ᵀ] = Uᵀ D U              centred Gram of the layer           (H takes the mean away)
    f̃ = D^-½ U H f                          whitened, noise dropped
    M = (1/nT) Σ JᵀJ = Vᵀ Λ V               Gram of J = ∂f̂_next/∂f̃             (from closed forms)
    f̂ = C f,   C = Λ^½ V D^-½ U H,   C⁺ = H⁻¹ Uᵀ D^½ Vᵀ Λ^-½

with the constant kept out of both decompositions. C⁺ puts dropped directions at their mean; it is not the
pseudo-inverse of C. GIB differs in J, which runs to the last node layer, and the random control in V.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from interbasis.compute.checkpoints import State
from interbasis.graph.layer_basis import LayerBasis, dump_layers, load_layers
from interbasis.lib.bases.basis import FeatureBasis, FitInputs
from interbasis.lib.bases.principal import Principal, last_layer
from interbasis.lib.jacobians import Jacobians
from interbasis.network.jacobian_gram import JacobianGram
from interbasis.numerics.linalg import Floor

LayerGram = Callable[[int, LayerBasis, Tensor | None], JacobianGram]
"""Function of a node layer's index, the features of the next one and their error that returns M′."""


class WhitenedBasis(FeatureBasis):
    """f̂ = Λ^½ V D^-½ U H f, for one V or another."""

    needs_jacobians = True
    turned_by_jacobians: bool = True
    """Whether V depends on M as a matrix, so that an error of M turns the features too."""

    @abstractmethod
    def turn(
        self, principal: Principal, gram: JacobianGram, floor: Floor, key: tuple[int, int]
    ) -> LayerBasis:
        """The features of one layer; ``key`` (seed, layer) is for whatever is random."""

    def grams(self, jacobians: Jacobians, last: LayerBasis) -> LayerGram:
        """Return the function that computes M′, here of Jacobians to the features of the next layer."""
        return lambda index, following, deviation: jacobians.to_next(
            index, None if following.identity else following.transform, deviation
        )

    def fit(self, inputs: FitInputs) -> list[LayerBasis]:
        decide = inputs.jacobians.executor.decide
        if inputs.end is None:
            end = partial(self._last_layer, inputs)
            layers = load_layers(decide("last layer", lambda: None, lambda _: dump_layers([end()])))
        else:
            layers = [inputs.end]
        jacobian_gram = self.grams(inputs.jacobians, layers[0])
        deviation: Tensor | None = None
        for index in reversed(range(len(inputs.nodes) - 1)):
            state = decide(
                f"layer {index}",
                partial(jacobian_gram, index, layers[0], deviation),
                partial(self._layer, inputs, index),
            )
            layers = load_layers(state) + layers
            deviation = state[0].get("deviation")
        return layers

    def _last_layer(self, inputs: FitInputs) -> LayerBasis:
        """Principal directions, whose eigenvalues are variances."""
        layer = last_layer(inputs.nodes[-1], inputs.covariances[-1], inputs.rotate_last)
        if layer.identity or layer.eigenvalues is None or not inputs.jacobians.groups:
            return layer
        first = layer.first_feature
        variances = inputs.jacobians.variance_deviations(-1, layer.transform[first:, first:])
        assert variances is not None
        relative = (inputs.jacobians.unseen_share * variances.square().sum(0)).sqrt()
        errors = torch.nn.functional.pad(relative, (first, 0)) * layer.eigenvalues
        return replace(layer, eigenvalue_errors=errors)

    def _layer(self, inputs: FitInputs, index: int, gram: JacobianGram) -> State:
        """The features of one layer, and how far they may be off, as a state.

        One process computes it for all: decompositions on other processors may differ in their last bits, and
        eigenvectors of nearly equal eigenvalues by far more.
        """
        config = inputs.config
        principal = Principal.from_covariance(
            inputs.nodes[index], inputs.covariances[index], config.variance_floor
        )
        if config.isolate_largest:
            principal = principal.with_largest_alone()
        key = config.seed, inputs.jacobians.first + index
        layer = self.turn(principal, gram, config.jacobian_floor, key)
        first = layer.first_feature
        variances = inputs.jacobians.variance_deviations(index, layer.transform[first:, first:])
        unseen = inputs.jacobians.unseen_share
        layer, deviation = with_errors(layer, gram, self.turned_by_jacobians, unseen, variances)
        tensors, values = dump_layers([layer])
        return tensors if deviation is None else tensors | {"deviation": deviation}, values


def with_errors(
    layer: LayerBasis,
    gram: JacobianGram,
    rotated: bool = True,
    unseen: float = 1.0,
    variances: Tensor | None = None,
) -> tuple[LayerBasis, Tensor | None]:
    """The layer with standard errors of Λ, and E [draws, features, features]: CᵀC may be off by CᵀEC.

    In features M is the identity and E_jj = δΛ_j/Λ_j. Only what was decomposed depends on M as a matrix: an
    isolated coordinate, or a feature that was not ``rotated`` by M, depends on its own entry alone. Where the
    Gram G of the layer is sampled, too, Λ_j, an eigenvalue of G^½ M′ G^½, is off by its feature's relative
    deviation in ``variances`` [draws, features] beside E_jj; M′ of the layers before does not depend on G.
    Samples are drawn without replacement, so that variances are smaller by the share that was ``unseen``.
    """
    first = layer.first_feature
    E = gram.deviations(layer.inverse[first:, first:].T)
    if E is None or layer.eigenvalues is None:
        return layer, None
    diagonal, alone = torch.diag_embed(E.diagonal(dim1=1, dim2=2)), layer.isolated
    if rotated:
        diagonal[:, alone:, alone:] = E[:, alone:, alone:]
    E = torch.nn.functional.pad(diagonal, (first, 0, first, 0))
    deviations = E.diagonal(dim1=1, dim2=2)
    if variances is not None:
        deviations = deviations + torch.nn.functional.pad(variances, (first, 0))
    relative = (unseen * deviations.square().sum(0)).sqrt()
    return replace(layer, eigenvalue_errors=relative * layer.eigenvalues), E
