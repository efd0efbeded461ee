"""Memory that a build takes, from shapes alone, and the plan that fits it into a limit.

Per section, with w coordinates before it of which a branch reads s, c_in read-outs, c_out outputs of the
core, d coordinates after it and r features there:

    statistics      the Gram w² and the core's sums, c_in² at most; of a chunk, its own beside those
    Jacobian        these, the metric c_out², the section in features r (w + c_in + c_out), the core's Gram
                    c_in² (tiles of it where it is large), M′ w² and one product like it
    decomposition   the Gram, M′, and five matrices w² (LAPACK's copies); as many more for all features
    edges           the section in its bases, the sums, and one group's attributions

Matrices are float64, weights and attributions as the network computes. Factors were fitted to measured peaks
(docs/costs.md).

Sections that do not fit together are built one window after the other, from the last to the first, each from
the activations before it, which are kept on disk or computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from interbasis.base.errors import InterbasisError
from interbasis.base.memory import (
    format_bytes,
    release_memory,
    resident_bytes,
    return_freed_memory,
    sufficient_memory,
)
from interbasis.graph.settings import STATISTICS_GROUPS, BuildConfig
from interbasis.lib.bases import BASES
from interbasis.network.attributions import MIN_BLOCK_TOKENS
from interbasis.network.cores import (
    Attention,
    ClosedFormSquares,
    Core,
    Elementwise,
    Gated,
    Linear,
    StatisticsCore,
)
from interbasis.network.cores.slope_moments import MAX_DENSE_WIDTH, ROWS_PER_TILE
from interbasis.network.network import Network, Section

MIN_CHUNK_BYTES = 2**20
MAX_CHUNK_BYTES = 2**26
"""Bytes that the activations of a chunk may take, by the limit on memory."""
COPIES_OF_A_CHUNK = 6
"""Temporaries beside a chunk's activations, some of them float64."""
MIN_WORKSPACE, MAX_WORKSPACE = 2**22, 2**28
"""Bytes of one temporary of attention's sums."""
COPIES_OF_WORKSPACE = 5
RESERVE = 0.02
"""Share of the limit that is not planned with: estimates are within 2 % of measured peaks."""
READING_A_BLOCK = 0.45
"""Memory of a block's weights as they are read, beside the block, in multiples of the block."""
GRAMS_OF_A_CHUNK = 2.5
"""Grams held while the scatter of a chunk is made and added."""
MATRICES_OF_TILES = 5
"""Matrices of ROWS_PER_TILE² numbers held while tiles are multiplied out."""
PARTS_OF_HEADS = 23
"""Matrices c_out² of attention: sums by pairs of heads (5), the Gram (9), ΣN_ss (6), temporaries."""
SQUARES_IN_CLOSED_FORM = 10
"""Matrices of the size of the edges where their squares have a closed form."""


@dataclass(frozen=True)
class SectionMemory:
    """Bytes that one section takes; phases beside its Gram and its sums."""

    name: str
    gram: int
    sums: int
    collecting: int
    decomposition: int
    jacobian: int
    edges: int

    @classmethod
    def from_section(
        cls, section: Section, tokens: int, itemsize: int, config: BuildConfig
    ) -> "SectionMemory":
        """Bytes of a section for a total of ``tokens``, which bound the number of features."""
        basis, size = BASES[config.basis], _Sizes.from_section(section, tokens)
        groups = 1 if config.statistics_samples is None else STATISTICS_GROUPS
        gram = 8 * size.w**2 * (groups + (groups > 1)) if basis.needs_grams else 0
        sums = 8 * size.sums * groups if basis.needs_jacobians else 0
        return cls(
            f"{section.source.name} → {section.target.name}", gram, sums,
            collecting=gram + max(int((GRAMS_OF_A_CHUNK - 1) * gram), sums * itemsize // 8),
            decomposition=8 * (6 * size.w**2 + 5 * size.r_in * size.w) if basis.needs_grams else 0,
            jacobian=8 * size.jacobian if basis.needs_jacobians else 0,
            edges=size.edges(itemsize, config) if config.edge_method is not None else 0,
        )  # fmt: skip


@dataclass(frozen=True)
class _Sizes:
    """The dimensions of a section, and numbers that are held of it."""

    core: Core
    w: int
    s: int
    c_in: int
    c_out: int
    d: int
    r_in: int
    r_out: int

    @classmethod
    def from_section(cls, section: Section, tokens: int) -> "_Sizes":
        (d, _), (c_in, _), (_, c_out) = section.shapes
        w = section.source.width
        r_in, r_out = min(w, tokens + 2), min(d, tokens + 2)
        return cls(section.core, w, section.columns_seen, c_in, c_out, d, r_in, r_out)

    @property
    def _tiled(self) -> bool:
        return isinstance(self.core, (Elementwise, Gated)) and self.c_in > MAX_DENSE_WIDTH

    @property
    def sums(self) -> int:
        """Numbers in the core's sums, collected in one pass."""
        if isinstance(self.core, Linear) or not isinstance(self.core, StatisticsCore):
            return 0
        return self.c_in * (self.c_in + ROWS_PER_TILE) // 2 if self._tiled else self.c_in**2

    @property
    def jacobian(self) -> int:
        w, s, r = self.w, self.s, self.r_out
        section = r * (w + self.c_in + self.c_out) + self.c_out**2
        if r + self.c_in < w:
            return section + (r + self.c_in) * w + 3 * (r + self.c_in) ** 2
        beside, core = w**2 + max(3 * s**2, (w + r) * s), 0
        if self._tiled:
            core = MATRICES_OF_TILES * ROWS_PER_TILE**2
        elif not isinstance(self.core, Linear):
            core = 2 * self.c_in**2 + self.c_in * (self.c_out + 2 * s)
        if isinstance(self.core, Attention):
            core -= self.c_in**2
            return section + max(PARTS_OF_HEADS * self.c_out**2, core + max(beside, self.d * w))
        return section + core + max(beside, self.d * w, self.c_out * self.d)

    def edges(self, itemsize: int, config: BuildConfig) -> int:
        """Bytes of the edges, the bases included."""
        r_in, r_out = self.r_in, self.r_out
        matrices = r_out * r_in + self.c_in * r_in + r_out * self.c_out + self.w * r_in
        bases = 16 * (r_in * self.w + r_out * self.d)
        if isinstance(self.core, ClosedFormSquares):
            return bases + itemsize * matrices + 8 * SQUARES_IN_CLOSED_FORM * r_out * r_in
        signs = config.edge_sources if config.edge_group is not None else MIN_BLOCK_TOKENS
        groups = signs * r_in * (itemsize * (3 * self.c_in + r_out) + 8 * r_out)
        return bases + itemsize * matrices + groups + 8 * 2 * r_out * r_in


@dataclass(frozen=True)
class MemoryPlan:
    """Windows and sizes with which a build fits a limit."""

    windows: tuple[tuple[int, int], ...]
    """(first, last) sections, the last not included, that are built together; in the network's order."""
    chunk_bytes: int | None = None
    """Bytes that the activations of a chunk may take; None is the default."""
    workspace: int | None = None
    """Bytes that one temporary of attention may take; None is the default."""
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
        usable = int((1 - RESERVE) * limit)
        sections = [
            SectionMemory.from_section(section, tokens, itemsize, config) for section in network.sections
        ]
        return_freed_memory()
        release_memory()
        block = block_bytes(network)
        held = resident_bytes() + block
        reading = int(READING_A_BLOCK * block)
        least = COPIES_OF_A_CHUNK * MIN_CHUNK_BYTES + COPIES_OF_WORKSPACE * _least_workspace(
            network, itemsize
        )
        alone = max(sections, key=lambda section: window_bytes([section], reading))
        needed = held + least + window_bytes([alone], reading)
        if needed > usable:
            raise InterbasisError(_refusal(limit, int(needed / (1 - RESERVE)), held, alone, config))
        windows: list[tuple[int, int]] = []
        last = len(sections)
        while last:
            first = last - 1
            while first and held + least + window_bytes(sections[first - 1 : last], reading) <= usable:
                first -= 1
            windows.insert(0, (first, last))
            last = first
        if len(windows) > 1:
            check_windows(network, config, (held + least + window_bytes(sections, reading)) / (1 - RESERVE))
        most = held + max(window_bytes(sections[slice(*window)], reading) for window in windows)
        room = usable - most
        workspace = min(MAX_WORKSPACE, max(MIN_WORKSPACE, room // (2 * COPIES_OF_WORKSPACE)))
        chunk = min(MAX_CHUNK_BYTES, max(MIN_CHUNK_BYTES, room // (2 * COPIES_OF_A_CHUNK)))
        return cls(tuple(windows), chunk, workspace, most + least)


def window_bytes(sections: Sequence[SectionMemory], reading: int = 0) -> int:
    """Bytes that sections take together, in the phase that takes most; ``reading`` is to read a block."""
    held = sum(section.gram + section.sums for section in sections)
    fitting = max(
        max(section.collecting, section.decomposition - section.sums, section.jacobian)
        for section in sections
    )
    return max(held + max(fitting, reading), sum(section.edges for section in sections))


def check_windows(network: Network, config: BuildConfig, needed: float) -> None:
    """Check that sections can be built one window after the other; ``needed`` bytes do for all together."""
    reasons = []
    basis = BASES[config.basis]
    if basis.jacobians_to_end or basis.needs_slices:
        reasons.append(f"the basis {config.basis}")
    if config.jacobian_queries is not None:
        reasons.append("sampled queries (jacobian_queries)")
    if (config.statistics_samples, config.jacobian_samples, config.edge_samples) != (None, None, None):
        reasons.append("a draw of samples (statistics_samples, jacobian_samples, edge_samples)")
    if len({node.grid for node in network.nodes}) > 1 or any(s.last_only for s in network.sections):
        reasons.append("a network whose layers have different positions")
    if reasons:
        raise InterbasisError(
            f"{reasons[0]} cannot be built in parts, and all sections together exceed the limit on memory; "
            f"give --memory {sufficient_memory(needed)} or more, or choose fewer node layers with --layers"
        )


def _least_workspace(network: Network, itemsize: int) -> int:
    """Smallest workspace of attention, whose temporaries hold at least one query of all heads."""
    shapes = [s.core.shape for s in network.sections if isinstance(s.core, Attention)]
    return max([itemsize * shape.heads * shape.width**2 for shape in shapes] + [MIN_WORKSPACE])


def block_bytes(network: Network) -> int:
    """Bytes that the largest block of a stored network takes."""
    blocks: dict[int, int] = {}
    for section in network.sections:
        if (block := section.stored_block) is not None:
            numbers = sum(rows * columns for rows, columns in section.shapes)
            blocks[block] = blocks.get(block, 0) + section.like.element_size() * numbers
    return max(blocks.values(), default=0)


def _refusal(limit: int, needed: int, held: int, section: SectionMemory, config: BuildConfig) -> str:
    parts = {
        "the sums of the statistics": section.gram + section.sums + section.collecting,
        "the decomposition": section.decomposition,
        "the Jacobian": section.jacobian,
        "the edges": section.edges,
    }
    largest = max(parts, key=lambda name: parts[name])
    remedy = f"give --memory {sufficient_memory(needed)} or more"
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
