"""A layer's basis as tensors and plain values, for runs on disk and for other processes."""

from collections.abc import Sequence

from pydantic import StrictBool, StrictStr
from torch import Tensor

from interbasis.base.records import Record
from interbasis.compute.checkpoints import State
from interbasis.graph.layer_basis import IdentityBasis, LayerBasis
from interbasis.numerics.linalg import SpectrumCut

TENSORS_PER_LAYER = ("transform", "inverse", "mean", "eigenvalues", "variances", "eigenvalue_errors")


class LayerHeader(Record):
    """What is known of one layer beside its tensors."""

    name: StrictStr
    constant: StrictBool
    isolated: int = 0
    identity: bool = False
    width: int = 0
    variance_cut: SpectrumCut | None
    jacobian_cut: SpectrumCut | None


def header_of(layer: LayerBasis) -> LayerHeader:
    return LayerHeader(
        name=layer.name,
        constant=layer.constant,
        isolated=layer.isolated,
        identity=layer.identity,
        width=layer.width,
        variance_cut=layer.variance_cut,
        jacobian_cut=layer.jacobian_cut,
    )


def layer_tensors(layer: LayerBasis, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of a layer; an identity has no matrices."""
    tensors = {}
    for name in TENSORS_PER_LAYER[2:] if layer.identity else TENSORS_PER_LAYER:
        tensor = getattr(layer, name)
        if tensor is not None:
            tensors[prefix + name] = tensor.detach().cpu().contiguous()
    return tensors


def layer_of(header: LayerHeader, prefix: str, tensors: dict[str, Tensor]) -> LayerBasis:
    """The layer that these were made from."""
    mean, variances = tensors.get(prefix + "mean"), tensors.get(prefix + "variances")
    if header.identity:
        return IdentityBasis(header.name, header.width, mean, variances, header.constant)
    return LayerBasis(
        header.name,
        tensors[prefix + "transform"],
        tensors[prefix + "inverse"],
        mean,
        tensors.get(prefix + "eigenvalues"),
        variances,
        header.constant,
        header.variance_cut,
        header.jacobian_cut,
        header.isolated,
        tensors.get(prefix + "eigenvalue_errors"),
    )


def state_of(layers: Sequence[LayerBasis]) -> State:
    """Layers as a state; `layers_of` makes them again."""
    tensors: dict[str, Tensor] = {}
    for k, layer in enumerate(layers):
        tensors |= layer_tensors(layer, f"{k}.")
    return tensors, {"layers": [header_of(layer).model_dump() for layer in layers]}


def layers_of(state: State) -> list[LayerBasis]:
    """Layers as `state_of` has them."""
    tensors, values = state
    headers = [LayerHeader.model_validate(header) for header in values["layers"]]
    return [layer_of(header, f"{k}.", tensors) for k, header in enumerate(headers)]
