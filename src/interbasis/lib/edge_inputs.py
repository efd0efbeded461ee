"""The activations that edges need: all of a section's inputs, or those at the positions that are looked at.

Where edges look at some positions of every sequence, all sections look at the same ones. Then the network
runs at these alone wherever no later section reads from other positions: after the last attention, and after
that of every block, if the activations before the next one are stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from interbasis.compute.executor import Chunk
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.statistics import check_finite
from interbasis.network.cores import Counted, SamplesQueries
from interbasis.network.network import Network, Section
from interbasis.numerics.random_signs import Sources, random_positions


@dataclass(frozen=True, eq=False)
class EdgeInput:
    """Activations that a section's edges are measured from."""

    f: Tensor  # [n, T, width], or [n, Q, width] at the positions that are looked at
    length: int
    """T."""
    counted: Counted | None = None

    def part(self, start: int, stop: int) -> "EdgeInput":
        """The same for some of the samples."""
        counted = self.counted
        if counted is not None:
            counted = Counted(*(mask[start:stop] for mask in counted))
        return EdgeInput(self.f[start:stop], self.length, counted)


def edge_inputs(
    chunk: Chunk, network: Network, sources: Sources | None, counted: CountedTokens
) -> Iterator[EdgeInput]:
    """Run the network over a chunk, no further than the edges of every section need."""
    f = network.prefix(chunk.inputs)
    length = f.shape[1]
    if sources is None or not _at_same_positions(network, sources, counted, length):
        activations = finite_activations(network, chunk.data, chunk.first, chunk.inputs)
        for k, f in enumerate(activations[:-1]):
            yield EdgeInput(f, f.shape[1], counted.between(network, k, f, activations[k + 1]))
        return
    positions = sampled_positions(sources, chunk.first, len(f), length).to(f.device)
    stored = chunk.stored_layers()
    everywhere = _read_everywhere(network, stored)
    for k, section in enumerate(network.sections):
        if k in stored:
            f = chunk.activations_at(k)
        check_activations(network.layers[k], f, chunk.data, chunk.first)
        yield EdgeInput(f, length)
        if k + 1 in stored or k + 1 == len(network.sections):
            continue
        whole = everywhere[k + 1] or f.shape[1] == positions.shape[1]
        f = section(f) if whole else section.at(f, positions)


def _at_same_positions(network: Network, sources: Sources, counted: CountedTokens, length: int) -> bool:
    """Whether every section looks at the same few positions, and all tokens count."""
    return counted.all and all(
        samples_positions(section, sources, length) and section.reads_per_position
        for section in network.sections
    )


def _read_everywhere(network: Network, stored: set[int]) -> list[bool]:
    """Per node layer but the last, whether anything before the next stored layer mixes its positions."""
    result: list[bool] = []
    later = False
    for k in reversed(range(len(network.sections))):
        later = network.sections[k].core.mixes_positions or (later and k + 1 not in stored)
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


def finite_activations(network: Network, data: str, first: int, inputs: Tensor) -> list[Tensor]:
    """Activations at every node layer, [n, T, width] each, if all sections' sources are finite."""
    activations = network.activations(inputs)
    for name, f in zip(network.layers, activations[:-1], strict=False):
        check_activations(name, f, data, first)
    return activations


def check_activations(layer: str, f: Tensor, data: str, first: int) -> None:
    """Refuse activations that are not finite."""
    if not f.isfinite().all():
        check_finite(layer, f, data, first)
