"""The tokens that count in sums over the data: massive ones can be left out of all of them.

Language models write one direction of the residual stream a hundred times larger than all else at a few
tokens. Token (x, t) counts at node layer l, c^l_xt = 1, if t is not among the first positions left out and
its norm is at most a multiple of the layer's median norm. Every token runs through the network; sums skip
those that do not count, as inputs and as outputs:

    mean and G of layer l      over c^l_xt = 1,
    Σ J_stᵀJ_st from l to l+1   over c^l_xt = 1 and c^{l+1}_xs = 1, divided by Σ c^l_xt,
    Ê² likewise                with Σ_t f̂_jt … over c^l_xt = 1 inside the square.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.cores import Counted
from interbasis.network.network import Network, NodeLayer


@dataclass(frozen=True)
class CountedTokens:
    """The tokens that count, layer by layer."""

    skip_positions: int = 0
    """First positions of every sample that do not count."""
    limits: tuple[float, ...] = ()
    """Largest norm of a token that counts, per node layer; empty is any."""
    after_last: int | None = None
    """The first node layer that holds the last position alone."""

    @classmethod
    def from_limits(cls, network: Network, skip_positions: int, limits: tuple[float, ...]) -> "CountedTokens":
        """Count tokens up to a largest norm for each of the network's node layers.

        Raises:
            InterbasisError: Tokens are left out of a network whose positions are pixels.
        """
        if skip_positions or limits:
            for section in network.sections:
                if not section.reads_per_position:
                    raise InterbasisError(
                        "positions are left out of sequences only, but the positions of "
                        f"{section.source.name!r} are pixels; build with skip_positions=0 and norm_limit=0"
                    )
        ends = [k + 1 for k, section in enumerate(network.sections) if section.last_only]
        return cls(skip_positions, limits, ends[0] if ends else None)

    @classmethod
    def from_layers(cls, network: Network, layers: Sequence[LayerBasis]) -> "CountedTokens":
        """Return the tokens that counted in the sums behind bases of the network's node layers."""
        limits = tuple(torch.inf if layer.norm_limit is None else layer.norm_limit for layer in layers)
        skipped = max((layer.skip_positions for layer in layers), default=0)
        return cls.from_limits(network, skipped, limits if min(limits, default=torch.inf) < torch.inf else ())

    @property
    def all(self) -> bool:
        """Whether every token counts."""
        return not self.skip_positions and not self.limits

    def at(self, layer: int, node: NodeLayer, f: Tensor) -> Tensor:  # [n, T, width] -> [n, T], bool
        """Mask of the tokens that count at a node layer."""
        counts = torch.ones(f.shape[:2], dtype=torch.bool, device=f.device)
        if self.after_last is None or layer < self.after_last:
            counts[:, : self.skip_positions] = False
        if self.limits:
            counts &= norms(node, f) <= self.limits[layer]
        return counts

    def at_section(self, network: Network, index: int, f: Tensor) -> Counted | None:
        """Masks of the tokens that count at both ends of a section, from f at its source; None is all."""
        if self.all:
            return None
        following = network.sections[index](f) if self.limits else f[:, network.sections[index].outputs(f)]
        return self.between(network, index, f, following)

    def between(self, network: Network, index: int, f: Tensor, following: Tensor) -> Counted | None:
        """Masks of the tokens that count at both ends of a section, from f at both; None is all."""
        if self.all:
            return None
        source, target = network.nodes[index : index + 2]
        inputs = self.at(index, source, f)
        outputs = torch.zeros_like(inputs)
        outputs[:, network.sections[index].outputs(f)] = self.at(index + 1, target, following)
        return None if inputs.all() and outputs.all() else Counted(inputs.to(f), outputs.to(f))


ALL_TOKENS = CountedTokens()


def norms(node: NodeLayer, f: Tensor) -> Tensor:  # [n, T, width] -> [n, T]
    """Norm of every token, without the constant and without isolated coordinates."""
    return f[..., node.first_coordinate + node.isolated :].norm(dim=-1)
