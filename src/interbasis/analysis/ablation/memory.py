"""Memory that an ablation takes, from shapes alone, and the number of samples at once that fits a limit.

Beside the process with its model:

    once        the section that is ablated in its bases, its edges and their order, the bases of two layers
    a sample    where it takes most: the original network's activations, the masked section's features,
                read-outs and outputs, or the logits
    the cache   features of the layer before the section, for all samples or as many as there is room for
    an attack   for robust counts: all output features of a sample with an input each, and gradients

Masks are tried one after the other, and act on all samples that are taken at once. Factors were fitted to
measured peaks (docs/costs.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from interbasis.base.errors import InterbasisError
from interbasis.base.memory import (
    format_bytes,
    release_memory,
    resident_bytes,
    return_freed_memory,
    sufficient_memory,
)
from interbasis.data.batches import Batches
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.memory import READING_A_BLOCK, RESERVE, block_bytes
from interbasis.network.cores import Attention
from interbasis.network.network import Network, Section

MAX_CACHE_BYTES = 2**30
"""Activations of one layer are kept between ablations up to this; beyond it they are computed again."""
BYTES_PER_EDGE = 48
"""Ê in float64, sorted with its order; the mask, and its rows sorted to find equal ones."""
COPIES_OF_LOGITS = 4
"""The logits, with a constant in front, and those of their log-sum-exp."""
COPIES_WITH_GRADIENTS = 3
"""The same, and other numbers of a network that is differentiated: held for the gradients, and these."""
ATTACKED_SAMPLES = 128
"""Samples on which robust counts look for masks; their activations are held."""
COPIES_OF_PATTERNS = 3
"""Copies of the patterns of attention where they are written down."""
SHARE_OF_SAMPLES = 0.5
"""Share of the room that samples taken at once may use; the rest is for the cache."""


@dataclass(frozen=True)
class AblationPlan:
    """Sizes with which an ablation fits a limit."""

    samples: int
    """Samples that are taken at once, at most."""
    cache_bytes: int = MAX_CACHE_BYTES
    """Bytes that the cache may take."""
    peak: int = 0
    """Bytes that the process is expected to hold at most, the cache being full."""

    @classmethod
    def within(
        cls,
        limit: int,
        network: Network,
        graph: InteractionGraph,
        batches: Batches,
        sections: Sequence[int],
        *,
        robust: bool = False,
    ) -> "AblationPlan":
        """Plan ablations of some sections, and attacks on robust counts, with as many samples as fit.

        Raises:
            InterbasisError: Not even one sample fits.
        """
        usable, dtype = int((1 - RESERVE) * limit), graph.config.torch_dtype
        return_freed_memory()
        release_memory()
        held = resident_bytes() + copied_bytes(network, dtype)
        largest = max(sections, key=lambda k: section_bytes(network, graph, k))
        once = section_bytes(network, graph, largest)
        positions = network.prefix(batches.first().to(network.device)).shape[1]
        sample = sample_bytes(network, graph, positions)
        if robust:
            attacks = [attack_bytes(network, graph, k, positions) for k in sections]
            sample = max(sample, *(attacked for attacked, _ in attacks))
            once += min(ATTACKED_SAMPLES, len(batches)) * max(held for _, held in attacks)
        room = usable - held - once
        if room < sample:
            remedy = "shorter samples (--data …,context=N)"
            if robust:
                remedy = "leave out --robust, or choose narrower sections with --sections"
            elif once > sample:
                remedy = "choose narrower sections with --sections"
            needed = int((held + once + sample) / (1 - RESERVE))
            raise InterbasisError(
                f"--memory {format_bytes(limit)} is too little for this ablation, which requires about "
                f"{format_bytes(needed)}: {format_bytes(held)} for the process and the model, "
                f"{format_bytes(once)} for section {graph.section_names[largest]} in its bases, and "
                f"{format_bytes(sample)} for one sample of {positions} positions; give --memory "
                f"{sufficient_memory(needed)} or more, or {remedy}"
            )
        samples = min(max(1, int(SHARE_OF_SAMPLES * room) // sample), len(batches))
        cache = min(MAX_CACHE_BYTES, room - samples * sample)
        return cls(samples, cache, held + once + samples * sample + cache)


UNLIMITED = AblationPlan(samples=2**62)
"""Without a limit on memory, data are cut into chunks by their activations alone."""


def copied_bytes(network: Network, dtype: torch.dtype) -> int:
    """Bytes that computing in a dtype adds to an open network: copies, and a block that is read."""
    prefix = sum(tensor.numel() for tensor in network.prefix.tensors()) * dtype.itemsize
    block = int((1 + READING_A_BLOCK) * block_bytes(network))
    if network.dtype == dtype:
        return prefix + block
    steps = [step for step in (*network.sections, *network.tail) if step.stored_block is None]
    return prefix + block + dtype.itemsize * sum(t.numel() for step in steps for t in step.tensors())


def section_bytes(network: Network, graph: InteractionGraph, k: int) -> int:
    """Bytes held or made once while a section is ablated: the section in its bases, edges, two bases."""
    section, itemsize = network.sections[k], graph.config.torch_dtype.itemsize
    r_in, r_out = graph.layers[k].features, graph.layers[k + 1].features
    (_, w), (c_in, _), (d, c_out) = section.shapes.skip, section.shapes.read, section.shapes.write
    taps = max(1, section.shapes.read[1] // max(1, section.source.width))
    in_bases = itemsize * (taps * r_in * (r_out + c_in) + r_out * c_out)
    bases = max(
        (8 + itemsize) * (0 if graph.layers[k].identity else r_in * min(w, section.source.width)),
        (8 + itemsize) * (0 if graph.layers[k + 1].identity else r_out * d),
    )
    making = itemsize * taps * r_in * d
    return in_bases + bases + making + BYTES_PER_EDGE * r_out * r_in


def sample_bytes(network: Network, graph: InteractionGraph, positions: int) -> int:
    """Bytes that one sample takes, where it takes most."""
    itemsize, most = graph.config.torch_dtype.itemsize, 0
    for k, section in enumerate(network.sections):
        after = section.count_out(positions)
        masked = graph.layers[k].features, graph.layers[k + 1].features
        most = max(most, _numbers(section, positions, after, masked))
        positions = after
    for step in network.tail:
        width = step.target.width
        most = max(most, positions * COPIES_OF_LOGITS * width + positions * step.source.width)
    most = max(most, positions * COPIES_OF_LOGITS * network.output_layer.width)
    return itemsize * most


def attack_bytes(network: Network, graph: InteractionGraph, k: int, positions: int) -> tuple[int, int]:
    """Bytes of one sample in a pass with gradients through a real mask of section k, and its activations."""
    itemsize = graph.config.torch_dtype.itemsize
    for section in network.sections[:k]:
        positions = section.count_out(positions)
    section, held = network.sections[k], positions * network.sections[k].source.width
    outputs, features = graph.edges[k].shape
    after, (c_in, _), (_, c_out) = section.count_out(positions), section.shapes.read, section.shapes.write
    masked = max(positions, after) * (features + 2 * c_in) + after * c_out
    if isinstance(section.core, Attention):
        masked += COPIES_OF_PATTERNS * section.core.shape.heads * positions * after
    taps = max(1, section.shapes.skip[1] // max(1, section.source.width))
    numbers = outputs * (masked + features * taps) + after * features * taps
    for later in network.sections[k + 1 :]:
        numbers += after * (later.source.width + later.shapes.read[0] + later.shapes.write[1])
        after = later.count_out(after)
    numbers += after * (COPIES_OF_LOGITS * network.output_layer.width + network.nodes[-1].width)
    return itemsize * COPIES_WITH_GRADIENTS * numbers, itemsize * held


def _numbers(section: Section, positions: int, after: int, features: tuple[int, int]) -> int:
    """Numbers of one sample on its way through a masked section, beside which tokens may stay as they are."""
    (c_in, _), (d, c_out) = section.shapes.read, section.shapes.write
    before = positions * (2 * section.source.width + 2 * features[0] + 4 * c_in)
    patterns = 0
    if isinstance(section.core, Attention):
        before += positions * c_in  # queries and keys that are turned
        if section.core.shape.has_odd_scores or section.core.shape.window is not None:
            patterns = COPIES_OF_PATTERNS * section.core.shape.heads * positions * after
    return before + patterns + after * (3 * c_out + 3 * features[1] + 3 * d)
