"""Sections and activations in the coordinates of bases: F̂(f̂) = C_out F(C_in⁺ f̂), f̂ = C_in f."""

from collections.abc import Sequence

from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network, Section


def sections_in_bases(network: Network, layers: Sequence[LayerBasis]) -> list[Section]:
    """Every section from the features of its source to those of its target."""
    check_bases(network, layers)
    return [section_in_bases(network, layers, k) for k in range(len(network.sections))]


def check_bases(network: Network, layers: Sequence[LayerBasis]) -> None:
    """Check that there is a basis for each node layer, of its width."""
    nodes = network.nodes
    if len(layers) != len(nodes):
        raise InterbasisError(
            f"expected a basis for each of the {len(nodes)} node layers {', '.join(network.layers)}, "
            f"received {len(layers)}"
        )
    for node, layer in zip(nodes, layers, strict=True):
        if layer.width != node.width:
            raise InterbasisError(
                f"the basis {layer.name!r} acts on {layer.width} coordinates, node layer {node.name!r} has "
                f"{node.width}{' (the constant first)' if node.constant else ''}"
            )


def section_in_bases(network: Network, layers: Sequence[LayerBasis], k: int) -> Section:
    """Section k from the features of its source to those of its target."""
    source, target, like = layers[k], layers[k + 1], network.sections[0].like
    return network.sections[k].in_basis(
        None if source.identity else source.inverse.to(like),
        None if target.identity else target.transform.to(like),
    )


def source_transforms(network: Network, layers: Sequence[LayerBasis]) -> list[Tensor | None]:
    """C of every section's source; None is the identity."""
    like = network.sections[0].like
    return [None if layer.identity else layer.transform.to(like) for layer in layers[:-1]]


def in_basis(f: Tensor, transform: Tensor | None) -> Tensor:
    """C f; None is the identity."""
    return f if transform is None else f @ transform.T
