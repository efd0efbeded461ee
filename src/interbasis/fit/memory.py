"""What a build takes in memory, from shapes alone, and how it is cut to fit a limit.

Per section, with w coordinates before it, c_in read-outs, c_out outputs of the core, d coordinates after it:

    statistics      two copies of the Gram w² and of the core's sums, c_in² at most
    decomposition   eight matrices w²: the Gram, its symmetric part, LAPACK's copies and the eigenvectors
    Jacobian        the sums, the metric c_out², A, B and P in float64, the core's Gram c_in², four of w²
    edges           the section in its bases, the sums, and one group's attributions

Sections that do not fit together are built one window after the other, from the last to the first, each from
the activations before it, which are kept on disk or computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from interbasis.fit.bases import BASES
from interbasis.graph.settings import BuildConfig
from interbasis.network.cores import Attention, Linear, Normalize, StatisticsCore
from interbasis.network.cores.slope_moments import MAX_DENSE_WIDTH
from interbasis.network.network import Network, Section
from interbasis.network.stored_section import StoredSection
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.memory import format_bytes, release_memory, resident_bytes

MIN_CHUNK_BYTES = 2**20
MAX_CHUNK_BYTES = 2**26
"""What the activations of a chunk may weigh, by the limit on memory."""
COPIES_OF_A_CHUNK = 6
"""Temporaries beside a chunk's activations, some of them float64."""
MIN_WORKSPACE, MAX_WORKSPACE = 2**22, 2**28
"""Bytes of one temporary of attention's sums."""
COPIES_OF_WORKSPACE = 5
READING_A_BLOCK = 1.4
"""A block's weights in its sections, and as they are read."""


@dataclass(frozen=True)
class SectionMemory:
    """Bytes that one section takes."""

    name: str
    gram: int
    sums: int
    chunk_sums: int
    decomposition: int
    jacobian: int
    edges: int

    @classmethod
    def of(cls, section: Section, tokens: int, itemsize: int, config: BuildConfig) -> "SectionMemory":
        """Of a section for so many tokens in all, which bound the number of features."""
        (d, _), (c_in, _), (_, c_out) = section.shapes
        basis, w = BASES[config.basis], section.source.width
        r_in, r_out = min(w, tokens + 2), min(d, tokens + 2)
        gram = 8 * w**2 if basis.needs_grams else 0
        sums = chunk_sums = jacobian = 0
        if basis.needs_jacobians:
            inner = 0 if isinstance(section.core, Linear) else c_in**2
            if isinstance(section.core, StatisticsCore):
                sums, chunk_sums = 8 * inner, itemsize * inner
            if isinstance(section.core, Attention):
                inner = 3 * c_in**2  # pairs of heads, and what they are assembled to
            elif isinstance(section.core, Normalize):
                inner = 2 * c_in**2
            elif isinstance(section.core, StatisticsCore):
                inner = 0 if c_in > MAX_DENSE_WIDTH else 2 * c_in**2
            small = (r_out + c_in) < w
            outer = 3 * (r_out + c_in) ** 2 if small else 5 * w**2 + 2 * c_in * w
            jacobian = 8 * (c_out**2 + c_out * (d + r_out) + w * (d + r_out + c_in) + inner + outer)
        edges = 0
        if config.edge_method is not None:
            signs = config.edge_sources if config.edge_group is not None else 1
            in_bases = itemsize * (r_out * r_in + c_in * r_in + r_out * c_out + w * r_in + d * r_out)
            groups = itemsize * signs * r_in * (4 * c_in + 4 * r_out) + 8 * signs * r_in * r_out * 2
            edges = in_bases + groups + 8 * r_out * r_in * (8 if isinstance(section.core, Normalize) else 3)
            edges += 16 * (r_in * w + r_out * d)
        decomposition = 8 * 8 * w**2 if basis.needs_grams else 0
        name = f"{section.source.name} → {section.target.name}"
        return cls(name, gram, sums, chunk_sums, decomposition, jacobian, edges)


@dataclass(frozen=True)
class MemoryPlan:
    """How a build is cut to fit a limit."""

    windows: tuple[tuple[int, int], ...]
    """(first, last) sections, the last not included, that are built together; in the network's order."""
    chunk_bytes: int | None = None
    """What the activations of a chunk may weigh; None is the default."""
    workspace: int | None = None
    """What one temporary of attention may take; None is the default."""
    peak: int = 0
    """Bytes that the process is expected to hold at most."""

    @classmethod
    def whole(cls, network: Network) -> "MemoryPlan":
        """All sections together, for a build without a limit."""
        return cls(((0, len(network.sections)),))

    @classmethod
    def within(cls, limit: int, network: Network, tokens: int, config: BuildConfig) -> "MemoryPlan":
        """The largest windows that fit.

        Raises:
            InterbasisError: One section by itself does not fit, or the settings need all sections at once.
        """
        itemsize = config.torch_dtype.itemsize
        sections = [SectionMemory.of(section, tokens, itemsize, config) for section in network.sections]
        release_memory()
        held = resident_bytes() + _block_bytes(network)
        least = COPIES_OF_A_CHUNK * MIN_CHUNK_BYTES + COPIES_OF_WORKSPACE * _least_workspace(
            network, itemsize
        )
        alone = max(sections, key=lambda one: window_bytes([one]))
        needed = held + least + window_bytes([alone])
        if needed > limit:
            raise InterbasisError(_refusal(limit, needed, held, alone, config))
        windows: list[tuple[int, int]] = []
        last = len(sections)
        while last:
            first = last - 1
            while first and held + least + window_bytes(sections[first - 1 : last]) <= limit:
                first -= 1
            windows.insert(0, (first, last))
            last = first
        if len(windows) > 1:
            check_windows(network, config)
        most = held + max(window_bytes(sections[slice(*window)]) for window in windows)
        room = limit - most
        workspace = min(MAX_WORKSPACE, max(MIN_WORKSPACE, room // (2 * COPIES_OF_WORKSPACE)))
        chunk = min(MAX_CHUNK_BYTES, max(MIN_CHUNK_BYTES, room // (2 * COPIES_OF_A_CHUNK)))
        return cls(tuple(windows), chunk, workspace, most + least)


def window_bytes(sections: Sequence[SectionMemory]) -> int:
    """What these sections take together, in the phase that takes most."""
    kept = sum(one.gram + one.sums for one in sections)
    collecting = kept + sum(one.gram + one.chunk_sums for one in sections)
    fitting = kept + max(max(one.decomposition, one.jacobian + one.gram) for one in sections)
    measuring = sum(one.edges for one in sections)
    return max(collecting, fitting, measuring)


def check_windows(network: Network, config: BuildConfig) -> None:
    """Whether sections can be built one window after the other."""
    reasons = []
    if config.basis in ("gib", "jib"):
        reasons.append(f"the basis {config.basis}")
    if config.jacobian_queries is not None:
        reasons.append("sampled queries (jacobian_queries)")
    if len({node.grid for node in network.nodes}) > 1 or any(s.last_only for s in network.sections):
        reasons.append("a network whose layers have different positions")
    if reasons:
        raise InterbasisError(
            f"{reasons[0]} cannot be built in parts, and all sections together exceed the limit on memory; "
            "give a larger --memory, or choose fewer node layers with --layers"
        )


def _least_workspace(network: Network, itemsize: int) -> int:
    """Of attention, whose temporaries are at least those of one query of all heads."""
    shapes = [s.core.shape for s in network.sections if isinstance(s.core, Attention)]
    return max([itemsize * shape.heads * shape.width**2 for shape in shapes] + [MIN_WORKSPACE])


def _block_bytes(network: Network) -> int:
    """What one block of a stored network takes."""
    blocks: dict[int, int] = {}
    for section in network.sections:
        if isinstance(section, StoredSection):
            numbers = sum(rows * columns for rows, columns in section.shapes)
            blocks[section.block] = blocks.get(section.block, 0) + section.like.element_size() * numbers
    return int(READING_A_BLOCK * max(blocks.values(), default=0))


def _refusal(limit: int, needed: int, held: int, section: SectionMemory, config: BuildConfig) -> str:
    parts = {
        "the sums of the statistics": 2 * section.gram + section.sums + section.chunk_sums,
        "the decomposition": section.decomposition,
        "the Jacobian": section.jacobian,
        "the edges": section.edges,
    }
    largest = max(parts, key=lambda name: parts[name])
    remedy = f"give --memory {needed / 1e9:.1f}GB or more"
    if largest == "the edges" and config.edge_method is not None:
        remedy += ", or build without edges (--edge-method none)"
    else:
        remedy += ", or leave this section out with --layers"
    return (
        f"--memory {format_bytes(limit)} is too little for section {section.name}, which requires about "
        f"{format_bytes(needed)}: {format_bytes(held)} for the process and the model, and "
        f"{format_bytes(window_bytes([section]))} for the section, most of it for {largest} "
        f"({format_bytes(parts[largest])}); {remedy}"
    )
