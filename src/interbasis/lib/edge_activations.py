"""The activations that edges need: all of a section's inputs, or those at the positions that are looked at.

Where edges look at some positions of every sequence, all sections look at the same ones. Then the network
runs at these alone wherever no later section reads from other positions: after the last attention, and after
that of every block, if the activations before the next one are stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from interbasis.data.batches import Batches
from interbasis.lib.activation_cache import ActivationCache
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.statistics import check_finite
from interbasis.network.cores import Counted, SamplesQueries
from interbasis.network.network import Network, Section
from interbasis.numerics.random_signs import Sources, random_positions


@dataclass(frozen=True, eq=False)
class Source:
    """What a section's edges are measured from."""

    f: Tensor  # [n, T, width], or [n, Q, width] at the positions that are looked at
    length: int
    """T."""
    counted: Counted | None = None


@dataclass(frozen=True, eq=False)
class NeededActivations:
    """Runs a network over batches, no further than edges need."""

    network: Network
    batches: Batches
    sources: Sources | None
    counted: CountedTokens
    streams: ActivationCache | None = None
    """Where activations of these batches may be stored."""

    def of(self, first: int, inputs: Tensor) -> Iterator[Source]:
        """For every section; ``first`` is the number of the first sample."""
        f = self.network.prefix(inputs)
        if self.sources is None or not self._at_some(self.sources, f.shape[1]):
            yield from self._everywhere(first, inputs)
            return
        length, place = f.shape[1], first - self.batches.origin
        positions = sampled_positions(self.sources, first, len(f), length).to(f.device)
        stored = set() if self.streams is None else self.streams.stored_at(place, inputs)
        everywhere = self._read_everywhere(stored)
        for k, section in enumerate(self.network.sections):
            if k in stored and self.streams is not None:
                f = self.streams.activations_at(k, place, inputs)
            check_activations(self.network.layers[k], f, self.batches, first)
            yield Source(f, length)
            if k + 1 in stored or k + 1 == len(self.network.sections):
                continue
            if everywhere[k + 1] or f.shape[1] == positions.shape[1]:
                f = section(f)
            else:
                f = section.at(f, positions)

    def _everywhere(self, first: int, inputs: Tensor) -> Iterator[Source]:
        activations = finite_activations(self.network, self.batches, first, inputs)
        for k, f in enumerate(activations[:-1]):
            counted = self.counted.between(self.network, k, f, activations[k + 1])
            yield Source(f, f.shape[1], counted)

    def _at_some(self, sources: Sources, length: int) -> bool:
        """Whether every section looks at the same few positions, and nobody asks which others count."""
        return self.counted.all and all(
            samples_positions(section, sources, length) and section.reads_per_position
            for section in self.network.sections
        )

    def _read_everywhere(self, stored: set[int]) -> list[bool]:
        """Per node layer but the last, whether anything before the next stored layer mixes its positions."""
        result: list[bool] = []
        later = False
        for k in reversed(range(len(self.network.sections))):
            later = self.network.sections[k].core.mixes_positions or (later and k + 1 not in stored)
            result.insert(0, later)
        return result


def samples_positions(section: Section, sources: Sources, length: int) -> bool:
    """Whether a section's edges are measured at some of its output positions alone."""
    wanted, core = sources.positions, section.core
    if wanted is None or section.last_only or wanted >= section.count_out(length):
        return False
    return not core.mixes_positions or isinstance(core, SamplesQueries)


def sampled_positions(sources: Sources, first: int, samples: int, count: int) -> Tensor:  # [n, Q]
    """The output positions of every sample that are looked at; all sections that have as many share them."""
    assert sources.positions is not None
    return random_positions(("edge positions", sources.seed, 0), first, samples, sources.positions, count)


def finite_activations(network: Network, batches: Batches, first: int, inputs: Tensor) -> list[Tensor]:
    """f at every node layer, [n, T, width] each, if all sections' sources are finite."""
    activations = network.activations(inputs)
    for name, f in zip(network.layers, activations[:-1], strict=False):
        check_activations(name, f, batches, first)
    return activations


def check_activations(layer: str, f: Tensor, batches: Batches, first: int) -> None:
    """Refuse activations that are not finite."""
    if not f.isfinite().all():
        check_finite(layer, f, batches.name, first)
