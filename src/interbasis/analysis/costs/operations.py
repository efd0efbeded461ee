"""Operations of a build, from the shapes of its sections alone.

Floating-point operations are counted by how fast they run: large products in the network's dtype (``single``)
and in float64 (``double``), products of single heads (``small``), eigendecompositions (``eigen``, the cube of
their width). Elementwise operations are counted in ``bytes`` that are read or written, and ``calls`` of
PyTorch count where matrices are small.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import add

from interbasis.compute import executor
from interbasis.graph.settings import BuildConfig
from interbasis.lib.survey import MAX_DECOMPOSED, MAX_TOKENS
from interbasis.network.cores import (
    Attention,
    AttentionShape,
    Elementwise,
    Gated,
    Linear,
    Normalize,
    Variance,
)
from interbasis.network.cores.attention import rotary_edges, rotary_moments
from interbasis.network.cores.attention.core import MAX_QUERIES_PER_BLOCK, MIN_QUERIES_PER_BLOCK
from interbasis.network.cores.slope_moments import MAX_DENSE_WIDTH
from interbasis.network.network import Network, Section, sections_before
from interbasis.network.structured_matmul import multiplications

CALLS = {
    "survey": 500, "statistics": 500, "Jacobian": 500, "attention": 900, "head": 280, "turned pair": 400,
    "basis": 800, "edges": 300, "edges of a chunk": 450,
}  # fmt: skip
"""Calls of PyTorch, with the Python around them, of a section: once, with every chunk of the data
(``statistics``, ``edges of a chunk``), and in attention's Jacobian with every chunk, by head and by turned
pair of groups. Measured on networks so small that nothing else counts."""
PASSES_OVER_SUMS = 13.5
"""Passes over the sums of a block of data, in float64: made, added to, filled, merged. Fitted."""
NORM = Variance | Normalize
"""Cores of a norm, whose edges have a closed form."""


@dataclass(frozen=True)
class Operations:
    """Amounts of operations by kind."""

    single: float = 0.0
    double: float = 0.0
    small: float = 0.0
    eigen: float = 0.0
    bytes: float = 0.0
    calls: float = 0.0

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(*map(add, vars(self).values(), vars(other).values()))

    def __mul__(self, factor: float) -> "Operations":
        return Operations(*(factor * amount for amount in vars(self).values()))

    @property
    def flops(self) -> float:
        """Floating-point operations; an eigendecomposition takes about 9 times the cube of its width."""
        return self.single + self.double + self.small + 9 * self.eigen


NOTHING = Operations()


@dataclass(frozen=True)
class Workload:
    """A network with the number of tokens, and of positions in a sequence, that it is built on."""

    network: Network
    tokens: int
    positions: int
    config: BuildConfig
    centred: bool = True
    """Whether norms take the mean away; needed where matrices do not exist."""

    @property
    def itemsize(self) -> int:
        return self.config.torch_dtype.itemsize

    @property
    def limited(self) -> bool:
        """Whether massive tokens are left out, so that passes run sections twice."""
        return self.network.predicts_next and self.config.norm_limit != 0

    def features(self, width: int) -> int:
        """Largest number of features that a layer can have."""
        return min(width, self.tokens)

    def chunks(self, fine: bool) -> float:
        """Number of chunks of a pass over the data."""
        widths = [s.source.width + s.shapes.read[0] for s in self.network.sections]
        sample = 8 * (sum(widths) + self.network.nodes[-1].width) * self.positions  # bytes
        samples = few = max(1, executor.FINE_CHUNK_BYTES // sample)
        if not fine:
            most = executor.LAYERS_AT_ONCE * executor.CHUNK_BYTES // (8 * max(widths) * self.positions)
            enough = min(-(-executor.TOKENS_PER_CHUNK // self.positions), most)
            samples = max(1, executor.CHUNK_BYTES // sample, enough)
        blocks = min(executor.most_blocks(self.network) or 1, self.tokens / (few * self.positions))
        return max(1.0, blocks, self.tokens / (samples * self.positions))

    def multiplications(self, section: Section) -> tuple[int, int, int]:
        """Multiplications of a token with P, A and B, which are mostly zeros or copies."""
        (d, w), (c_in, _), (_, c_out) = section.shapes
        if not section.like.is_meta:
            skip, read, write = section.skip, section.read, section.write
            return multiplications(skip), multiplications(read), multiplications(write)
        stream = self.network.nodes[0].width - 1
        if isinstance(section.core, NORM):
            return d, c_in * (2 if self.centred else 1), d
        if isinstance(section.core, Linear):
            return d * w, 0, 0
        return d, c_in * stream, min(d, stream) * c_out

    def causal(self, block: int, queries: float | None = None) -> float:
        """Share of keys that blocks of queries see; ``queries`` of a sequence, or all of them."""
        return min(1.0, (1 + block / (queries or self.positions)) / 2)

    @property
    def queries(self) -> int:
        """Queries of a sequence in attention's Jacobians: all, or two halves that were sampled."""
        wanted = self.config.jacobian_queries
        return self.positions if wanted is None else min(self.positions, wanted)

    @property
    def halves(self) -> int:
        """Number of samples of queries: two, for the error, or one of all."""
        return 2 if self.queries < self.positions else 1

    @property
    def outputs(self) -> int:
        """Positions of a sequence whose attributions are summed with signs."""
        return min(self.positions, self.config.edge_positions or self.positions)

    def forward(self, section: Section) -> Operations:
        """Operations of a token's forward pass through a section."""
        (d, w), (c_in, _), _ = section.shapes
        total = Operations(
            single=2.0 * sum(self.multiplications(section)), bytes=self.itemsize * (2 * w + 4 * c_in + 5 * d)
        )
        if isinstance(section.core, Attention):
            heads, h, T = section.core.shape.heads, section.core.shape.width, self.positions
            total += Operations(small=4 * heads * h * T, bytes=self.itemsize * 8 * heads * T)
        return total

    def statistics(self, section: Section) -> Operations:
        """Operations of a token: the pass to the next layer, the Gram of this one, and the core's sums."""
        c_in, w = section.shapes.read[0], section.source.width - 1
        fresh = w  # coordinates that are no copies, which are multiplied with all
        for before in self.network.sections:
            if before.target == section.source and isinstance(before.core, NORM):
                fresh = min(w, before.shapes.write[1])
        gram = Operations(double=float(fresh**2 + 2 * fresh * (w - fresh)), bytes=8.0 * 6 * w)
        if not isinstance(section.core, Elementwise | Gated | NORM):
            return self.forward(section) + gram
        return self.forward(section) + gram + Operations(single=c_in**2, bytes=8.0 * self.itemsize * c_in)

    def statistics_by_chunk(self, section: Section) -> Operations:
        """Operations of merging a chunk's sums."""
        c_in, w = section.shapes.read[0], section.source.width
        sums = c_in**2 if isinstance(section.core, Elementwise | Gated | NORM) else 0
        return Operations(bytes=8.0 * PASSES_OVER_SUMS * (w**2 + sums), calls=CALLS["statistics"])

    def jacobian(self, section: Section) -> Operations:
        """Operations of the linear algebra in float64, done once."""
        (d, w), (c_in, _), (_, c_out) = section.shapes
        r = self.features(d)
        products, calls = r * c_out**2 + r * d * c_out + r * d * w, CALLS["Jacobian"]
        tiled = isinstance(section.core, Elementwise | Gated) and c_in > MAX_DENSE_WIDTH
        inner = r * c_in if tiled else r * c_out * c_in
        if r + c_in < w:
            return Operations(double=2.0 * (products + inner), bytes=8.0 * 6 * (r + c_in) ** 2, calls=calls)
        seen = self.columns_read(section)
        outer = c_in**2 * seen * (0.5 if tiled else 1.0) + c_in * seen**2  # AᵀΣNᵀQN A
        outer += r * c_in * seen + w * r * seen + r * w**2  # PᵀB ΣN A, PᵀP
        sums = 8.0 * 6 * (c_in**2 + w**2) + 8.0 * 4 * w * (c_in + d)
        return Operations(double=2.0 * (products + inner + outer), bytes=sums, calls=calls)

    def columns_read(self, section: Section) -> int:
        """Number of coordinates that read-outs depend on: of a branch, one stream of several."""
        if not section.like.is_meta:
            first, end = section.columns_read
            return end - first
        # Normalize reads the variance beside the stream
        width = self.network.nodes[0].width - (not isinstance(section.core, Normalize))
        return 0 if isinstance(section.core, Linear) else width

    def jacobian_pass(self, section: Section, core: Attention) -> Operations:
        """Operations of a token: attention's sums by pairs of heads, and the pass to them."""
        shape, T, e = core.shape, self.positions, self.itemsize
        H, h, looked_at = shape.heads, shape.width, self.queries / self.positions
        total, halves = self.forward(section) * (2.0 if self.limited else 1.0), self.halves
        block = max(MIN_QUERIES_PER_BLOCK, MAX_QUERIES_PER_BLOCK * self.queries // (halves * T))
        causal = self.causal(min(MAX_QUERIES_PER_BLOCK, block), self.queries / halves)
        keys = causal * T * H * looked_at
        covariances, pairs = 2 * keys * h**2, 2.0 * H * (H + 1) * h**3 * looked_at
        products = 2.0 * H**2 * h**2 * halves + 6.0 * H**2 * h**2 * looked_at  # of values, and of queries
        moved = e * H * h**2 * (3.0 * looked_at + 3.0 * halves)
        total += Operations(single=covariances + pairs, small=products, bytes=moved)
        if shape.rotary is None:
            total += Operations(small=2 * keys * (H + 1) * (h + 1), bytes=e * 2 * keys * H)
        else:
            pairs = H + shape.shared  # with each head: those of k,k, twice; v,k has all H
            total += Operations(
                single=keys / H * shape.groups**2 * self._brackets(shape),
                small=keys * (pairs + 2 * H) * (2 * h + 1),
                bytes=e * keys * (3 * H + 4 * pairs),
            )
        return total

    def _brackets(self, shape: AttentionShape) -> float:
        """Multiplications of k,k per query, key and pair of groups."""
        keys = min(self.positions, rotary_moments.KEYS_PER_BLOCK)
        kind = rotary_moments.pair_frequencies(shape), keys, shape.shared, self.config.torch_dtype
        return rotary_moments.operations(*kind, rotary_moments.level_bounds(*kind)) / keys

    def jacobian_by_chunk(self, shape: AttentionShape) -> Operations:
        """Calls of attention's sums; blocks of queries of long sequences make some of them again."""
        calls = CALLS["attention"] + shape.heads * CALLS["head"]
        if shape.rotary is not None:
            calls += shape.groups * (shape.groups + 1) // 2 * CALLS["turned pair"]
        return Operations(calls=calls * max(self.halves, self.queries / MAX_QUERIES_PER_BLOCK))

    def jacobians(self) -> Operations:
        """Operations of all Jacobians; before sampled queries there are two of each, for the error."""
        total, count = NOTHING, 1
        for section in reversed(self.network.sections):
            if isinstance(section.core, Attention):
                count = self.halves
                total += self.jacobian_pass(section, section.core) * self.tokens
                total += self.jacobian_by_chunk(section.core.shape) * self.chunks(fine=True)
            total += self.jacobian(section) * count
        return total

    def basis(self, section: Section) -> Operations:
        """Operations of both eigendecompositions and of whitening, done once."""
        (d, _), (c_in, _), _ = section.shapes
        w = section.source.width - 1
        r = self.features(w)
        inner = min(w, self.features(d) + c_in)
        factor = inner * w * r if inner < w else 0
        terms = r * (w * self.features(d) + self.columns_read(section) * c_in)
        double = 2.0 * (factor + inner**2 * r + inner * r**2 + 4 * r**2 * w + terms)
        return Operations(
            double=double, eigen=float(w**3 + min(r, inner) ** 3), bytes=8.0 * 30 * w**2, calls=CALLS["basis"]
        )

    def edges(self, section: Section) -> Operations:
        """Operations of a token's edges; groups of tokens share what is done once for a group.

        Where positions are sampled, only attention's keys look at the others.
        """
        (d, w), (c_in, _), (_, c_out) = section.shapes
        r_in, r_out, e = self.features(w), self.features(d), self.itemsize
        total = Operations(single=2.0 * (w * r_in + c_in * r_in), bytes=e * 3.0 * (w + c_in))
        group, signs, looked_at = self.group, float(self.config.edge_sources), self.outputs / self.positions
        if isinstance(section.core, NORM):
            return (total + Operations(single=2.0 * c_out * r_out, bytes=8.0 * 8 * r_in)) * looked_at
        if isinstance(section.core, Attention):
            group = min(group, self.outputs)
            signs = 1.0 if group == 1 else signs
            total += self._attention_edges(section.core, r_in) * signs
        else:
            signs = 1.0 if group == 1 else signs
            total += Operations(single=2.0 * signs * c_in * r_in if group > 1 else 0.0)
            total *= looked_at
        moved = e * (5.0 * c_in * r_in + 3.0 * r_out * r_in) + (8.0 * 4 * r_out * r_in if group > 1 else 0.0)
        written = Operations(single=2.0 * r_out * c_out * r_in, bytes=moved, calls=2.0)
        return total + written * (signs * looked_at / group)

    def _attention_edges(self, core: Attention, r: int) -> Operations:
        H, h, T, e = core.shape.heads, core.shape.width, self.positions, self.itemsize
        looked_at = self.outputs / T
        if self.group == 1:
            keys = T * (2.0 if core.shape.rotary is not None else 1.0)
            per_head = Operations(small=2 * keys * h * r + 2 * T * h**2 + 2 * h**2 * r, bytes=e * 5 * h * r)
            return (per_head * H + Operations(calls=H * 20 / 8)) * looked_at
        causal = self.causal(512, self.outputs)
        groups = max(1.0, causal * self.outputs / self.group)  # each sums over keys that it sees
        per_head = Operations(
            single=8 * causal * self.outputs * r, small=4 * groups * h * r, bytes=e * (5 + 5 * groups) * r
        )
        if core.shape.rotary is not None:
            if rotary_edges.are_few(core.shape, min(self.group, self.outputs)):
                per_head = self._few_queries(core.shape, r, groups)
                return per_head * H + Operations(calls=H * 60 * looked_at / min(self.outputs, self.group))
            turned = self.causal(MAX_QUERIES_PER_BLOCK, self.outputs)
            brackets, sides = core.shape.turned * h, looked_at + groups  # of queries and of keys
            products = 4 * turned * self.outputs * brackets + 2 * sides * r * brackets
            per_head = Operations(single=products, bytes=e * 6.0 * brackets)
            if still := h - core.shape.turned:  # coordinates that are summed as without rotary positions
                slow = turned * self.outputs * r + sides / 2 * still * r
                per_head += Operations(single=4 * slow, bytes=e * 6.0 * r)
            per_head += Operations(small=2.0 * causal * self.outputs * r)
        return per_head * H + Operations(calls=H * 40 * looked_at / min(self.outputs, self.group))

    def _few_queries(self, shape: AttentionShape, r: int, groups: float) -> Operations:
        """Signed sums of one head over few queries at a time, per token of the sequence."""
        h, looked_at = shape.width, self.outputs / self.positions
        functions = rotary_edges.function_count(shape, self.positions, self.config.torch_dtype)
        seen = self.causal(rotary_edges.QUERIES_PER_PRODUCT, self.outputs)
        by_keys = 2 * functions * r * (seen * self.outputs + looked_at * h) + 4 * groups * h * r
        by_queries = 2 * h**2 * (seen * self.outputs + looked_at * r)
        stored = functions * looked_at * (5 * r + 2 * seen * self.positions) + 4 * groups * r
        return Operations(single=by_keys + by_queries, bytes=self.itemsize * stored)

    @property
    def group(self) -> int:
        """Tokens whose attributions are summed with signs; 1 is none."""
        group = self.config.edge_group
        return 1 if group is None else self.outputs if group == "positions" else group

    def edges_once(self, section: Section) -> Operations:
        """Operations of the change to the bases, and those done with every chunk."""
        (d, w), (c_in, _), (_, c_out) = section.shapes
        r_in, r_out = self.features(w), self.features(d)
        to_bases = 2.0 * (d * w * r_in + r_out * d * r_in + c_in * w * r_in + r_out * d * c_out)
        closed_form = isinstance(section.core, NORM)  # multiplied out at the end
        once, chunk = (28.0, 0.0) if closed_form else (0.0, 3.0)
        by_chunk = Operations(bytes=8 * chunk * r_in * r_out, calls=CALLS["edges of a chunk"])
        by_section = Operations(single=to_bases, bytes=8 * once * r_in * r_out, calls=CALLS["edges"])
        return by_section + by_chunk * self.chunks(fine=True)

    def forward_to_edges(self) -> Operations:
        """Operations of a token through all sections; after the last attention, at sampled positions."""
        sections, looked_at = self.network.sections, self.outputs / self.positions
        mixing = [k for k, section in enumerate(sections) if section.core.mixes_positions]
        after = len(sections) if self.limited else max(mixing, default=-1) + 1
        everywhere = sum((self.forward(section) for section in sections[:after]), NOTHING)
        return everywhere + sum((self.forward(s) for s in sections[after:]), NOTHING) * looked_at

    def survey(self, section: Section, tokens: int) -> Operations:
        """Operations of the survey: a Gram, or that of the tokens where they are fewer, twice."""
        w = section.source.width
        small = min(w, tokens)
        each = self.forward(section) + Operations(single=4.0 * w * small, bytes=8.0 * 14 * w)
        once = float(2 * small**3) if small <= MAX_DECOMPOSED else 0.0
        return each * tokens + Operations(eigen=once, calls=CALLS["survey"])

    def phases(self) -> dict[str, Operations]:
        """Operations of every phase of a build; `forward` is one pass of the data through the network."""
        sections, tokens = self.network.sections, self.tokens
        surveyed = min(MAX_TOKENS, tokens)

        def total(cost: Callable[[Section], Operations]) -> Operations:
            return sum(map(cost, sections), NOTHING)

        before = sum(map(self.forward, sections_before(self.network)), NOTHING)
        result = {
            "forward": (before + total(self.forward)) * tokens,
            "survey": before * surveyed + total(lambda section: self.survey(section, surveyed)),
            "statistics": (before + total(self.statistics)) * tokens
            + total(self.statistics_by_chunk) * self.chunks(fine=False),
        }
        if self.config.basis in ("lib", "random"):
            result["Jacobians"] = self.jacobians()
        result["bases"] = total(self.basis)
        if self.config.edge_method is not None:
            result["edges"] = (total(self.edges) + self.forward_to_edges()) * tokens + total(self.edges_once)
        return result
