"""A network whose activations at some node layers are replaced on the way."""

from collections.abc import Callable, Mapping

from torch import Tensor

from interbasis.network.network import Network

Replacement = Callable[[Tensor], Tensor]
"""Function of the activations of a node layer, [n, T, width], that returns those to go on with."""


def replaced_output(
    network: Network, first: int, f: Tensor, inputs: Tensor, replacements: Mapping[int, Replacement]
) -> Tensor:
    """Run the network from node layer ``first`` on, with the activations of some layers replaced.

    Args:
        network: The network.
        first: Index of the node layer where it begins.
        f: Activations there, [n, T, width].
        inputs: The inputs that they belong to.
        replacements: Functions by the index of their node layer.

    Returns:
        The output as [samples, positions, channels], or [samples, channels] without positions.
    """
    for index in sorted(replacements):
        f = replacements[index](network.run(f, first, index))
        first = index
    return network.finish(network.run(f, first, len(network.sections)), inputs)
