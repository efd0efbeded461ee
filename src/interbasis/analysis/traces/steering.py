"""Steering: change a feature at every position, run on, and compare the outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.features.activations import outputs_from
from interbasis.base.errors import InterbasisError
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Head, Network
from interbasis.network.prefix import Prefix


@dataclass(frozen=True, eq=False)
class Steering:
    """A model with a vector added to a node layer, at all positions or from one on."""

    network: Network
    layer: str
    change: Tensor  # [width]
    first: int = 0
    """The first position that is changed: of a sequence's inputs, or of the layer's pixels and patches."""

    @classmethod
    def from_basis(
        cls, network: Network, basis: LayerBasis, feature: int, by: float, first: int = 0
    ) -> "Steering":
        """Add ``by``, in its units, to a feature of a basis.

        Raises:
            InterbasisError: There is no such feature, or it is the constant.
        """
        if not 0 <= feature < basis.features:
            raise InterbasisError(
                f"{basis.name!r} has features 0 to {basis.features - 1}, received {feature}"
            )
        if basis.constant and feature == 0:
            raise InterbasisError("feature 0 is the constant, which cannot be changed; expected another one")
        return cls(network, basis.name, by * basis.directions([feature])[:, 0], first)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # [n, …] -> [n, positions, outputs] twice
        """The model's outputs without the change and with it, per sample and position.

        Raises:
            InterbasisError: The layer's positions are those of a picture or a row, and end before ``first``.
        """
        before, after = self.shifted_outputs(inputs, self.change[None])
        return before, after

    @torch.no_grad()
    def shifted_outputs(self, inputs: Tensor, shifts: Tensor) -> Iterator[Tensor]:  # [n, …], [k, width]
        """Outputs [n, positions, outputs] without a change, then with each of ``shifts`` in its place."""
        network, inputs = self.network, inputs.to(self.network.device)
        index = network.layers.index(self.layer)
        f = network.activations_at(index, inputs)
        yield outputs_from(network, index, f)
        for shift in shifts.to(f):
            changed = f.clone()
            changed[:, self._start(inputs, f) :] += shift
            yield outputs_from(network, index, changed)

    @torch.no_grad()
    def continuations(self, tokens: Tensor, count: int) -> tuple[list[int], list[int]]:  # [T]
        """Most likely ``count`` tokens after a prompt, chosen one by one, without the change and with it."""
        continuations: tuple[list[int], list[int]] = ([], [])
        for which, chosen in enumerate(continuations):
            for _ in range(count):
                sequence = torch.cat([tokens, tokens.new_tensor(chosen)])
                chosen.append(int(self.outputs(sequence[None])[which][0, -1].argmax()))
        return continuations

    @property
    def _embedding(self) -> Prefix:
        """The network's own prefix, without sections before a cut."""
        prefix = self.network.prefix
        while isinstance(prefix, Head):
            prefix = prefix.prefix
        return prefix

    @property
    def context(self) -> int | None:
        """Positions that the model takes at most, where it has a limit."""
        return getattr(self._embedding, "context", None)

    def _start(self, inputs: Tensor, f: Tensor) -> int:
        """The first of the layer's positions that is changed."""
        if self.first == 0:
            return 0
        prefix = self._embedding
        node = self.network.nodes[self.network.layers.index(self.layer)]
        if node.grid is None and prefix.has_positions(inputs):
            # behind a section that puts out the last position alone, a layer has the last of the sequence
            return max(0, self.first - (prefix(inputs).shape[1] - f.shape[1]))
        if self.first >= f.shape[1]:
            raise InterbasisError(
                f"expected the first position that is changed among 0 to {f.shape[1] - 1}, which "
                f"{self.layer!r} has, received {self.first}"
            )
        return self.first


def random_shifts(
    basis: LayerBasis, feature: int, change: Tensor, count: int, seed: int = 0
) -> Tensor:  # [count, width]
    """Random directions among those that the basis keeps, as long as a change of the feature."""
    start = basis.first_feature
    if feature >= start + basis.isolated:
        start += basis.isolated
    generator = torch.Generator().manual_seed(seed)
    if basis.identity:
        shifts = torch.randn(count, basis.width, generator=generator, dtype=torch.float64)
        shifts[:, :start] = 0
    else:
        kept = torch.linalg.qr(basis.directions(range(start, basis.features)).double().cpu()).Q
        shifts = torch.randn(count, kept.shape[1], generator=generator, dtype=torch.float64) @ kept.T
    return shifts * (change.double().norm().cpu() / shifts.norm(dim=1, keepdim=True))
