"""Measurements of processor time, which other work on the machine changes less than the wall clock.

Each function on a shape returns ratios by name.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from interbasis.compute.executor import Chunk
from interbasis.data.batches import Batches
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.edge_sums import DictionaryEdgeSettings, DictionaryEdgesPass
from interbasis.dictionaries.layers import place_dictionaries
from interbasis.lib.edges import EdgeSettings, SectionEdges
from interbasis.lib.statistics import Wanted, collect
from interbasis.network.cores import Attention, StatisticsCore
from interbasis.network.network import Network, Section
from interbasis.network.section_jacobian import DenseJacobian
from interbasis.numerics.integration import rule
from interbasis.numerics.linalg import haar_rotation
from interbasis.numerics.random_signs import Sources
from interbasis.run.build import build
from interbasis_studies.bench.autograd import batched, fused, looped, looped_edges
from interbasis_studies.bench.records import Measure, Sweep
from interbasis_studies.bench.shapes import Shape

ROWS = 8
"""Output features that backward passes are timed for; their time is scaled to all of them."""
POSITIONS = 16
"""Output positions of a sequence that edges are sampled from."""
PHASES = ("survey", "statistics", "Jacobians", "bases", "edges")
ERROR, ERROR_TOKENS = 0.05, 50_000
"""Error that a build is measured with, and the tokens of its data, about."""
MAX_FEATURES, ACTIVE = 4608, 32
"""Features of dictionaries, at most, and those that are active at a token."""
DICTIONARY_PLACES = {"MLP": ("mlp_in.0", "ln1.1"), "block": ("ln1.0", "ln1.1")}
"""Places of two dictionaries."""
FORWARD_TOKENS = 8192
"""Tokens that the forward pass of such a build is timed on."""
Ratios = dict[str, Measure]
SMALL = Shape(64, 256, 4, positions=64, samples=16)
LARGE = Shape(256, 1024, 4, positions=128, samples=16)
FACTORS = {
    "tokens": (1, 2, 4), "width": (1, 2, 3), "context": (1, 2, 4), "heads": (1, 2, 4), "depth": (1, 2, 3)
}  # fmt: skip
FIELDS = {
    "tokens": ("samples",), "width": ("width", "hidden"), "context": ("positions",), "heads": ("heads",),
    "depth": ("blocks",),
}  # fmt: skip
"""Fields of a shape that grow with a size."""


def processor_time(work: Callable[[], object], repeat: int = 3) -> Measure:
    """Processor time of one run: the least of ``repeat``."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return least_time(times)


def least_time(times: list[float]) -> Measure:
    """The least of the times, and how far the median is from it."""
    least = max(min(times), 1e-9)
    return Measure(value=least, spread=statistics.median(times) / least - 1)


def ratio(time: Measure, other: Measure, scale: float = 1.0) -> Measure:
    """A time over another."""
    return Measure(value=scale * time.value / other.value, spread=time.spread + other.spread)


def forward_time(network: Network, tokens: Tensor, repeat: int = 3) -> Measure:
    """One pass of the data through the network: the floor for anything that looks at all data."""
    with torch.no_grad():
        return processor_time(lambda: network.activations(tokens)[-1], repeat)


def build_times(network: Network, tokens: Tensor) -> dict[str, float]:
    """Processor seconds of a build with signed sums for edges, by phase."""
    graph = build(network, tokens, edge_group="positions", edge_sources=1, progress=False).graph
    return {phase: graph.provenance.processor_timings.get(phase, 0.0) for phase in PHASES}


def phase_ratios(name: str, shape: Shape, repeat: int) -> Ratios:
    """Every phase of a build in forward passes, and what norms and MLPs alone take of them."""
    network, tokens = shape.network(), shape.data()
    forward = forward_time(network, tokens)
    builds = [build_times(network, tokens) for _ in range(repeat)]
    times = {phase: least_time([build[phase] for build in builds]) for phase in PHASES}
    ratios = {f"phases/{name}/{phase}": ratio(least, forward) for phase, least in times.items()}
    # the pass over the data that bases of norms and MLPs come from: the forward pass is in it
    wanted = Wanted(grams=False)
    statistics_time = processor_time(lambda: collect(network, Batches(tokens), wanted), 3)
    ratios[f"phases/{name}/norms and MLPs, all data"] = ratio(statistics_time, forward)
    return ratios


def error_ratios(name: str, shape: Shape) -> Ratios:
    """Every phase of a build to `ERROR`, and its trial, in forward passes over all of its tokens."""
    shape = replace(shape, samples=ERROR_TOKENS // shape.positions)
    network, tokens = shape.network(), shape.data()
    some = tokens[: max(1, FORWARD_TOKENS // shape.positions)]
    forward = forward_time(network, some)
    start = time.process_time()
    graph = build(network, tokens, error=ERROR, progress=False).graph
    whole, timings = time.process_time() - start, graph.provenance.processor_timings
    times = {phase: timings.get(phase, 0.0) for phase in PHASES}
    times |= {"all phases": sum(times.values()), "trial": whole - sum(timings.values())}
    scale = len(some) / len(tokens)
    return {
        f"at {ERROR:.0%} error/{name}/{phase}": ratio(least_time([taken]), forward, scale)
        for phase, taken in times.items()
    }


def _sections(network: Network, tokens: Tensor) -> Iterator[tuple[str, Section, Tensor]]:
    """MLP and attention, with the activations before them."""
    with torch.no_grad():
        activations = network.activations(tokens)
    for section, f in zip(network.sections, activations, strict=False):
        if isinstance(section.core, Attention):
            yield "attention", section, f
        elif section.source.name.startswith("mlp_in"):
            yield "MLP", section, f


def autograd_ratios(name: str, shape: Shape, repeat: int) -> Ratios:
    """Backward passes, looped and batched over output features, over closed forms, for bases and edges."""
    ratios: Ratios = {}
    for kind, section, f in _sections(shape.network(), shape.data()):
        transform = haar_rotation(section.target.width, (0, 1))
        back = haar_rotation(section.source.width, (0, 2)).float()
        few, sample, features = transform[:ROWS].float(), f[:1], f[:1] @ back.T
        here, single = section.in_basis(back.T, transform.float()), section.in_basis(back.T, few)
        closed = [
            ("basis", partial(_basis, section, transform, f)),
            ("edges", partial(_edges, here, back, f)),
        ]
        backward = {
            "basis, looped": partial(looped, fused(section), few, sample),
            "basis, batched": partial(batched, section, few, sample, 4),
            "edges, looped": partial(looped_edges, fused(single), features),
        }
        if kind == "attention" and f.shape[1] > POSITIONS:
            sampled = f"edges from {POSITIONS} positions"
            positions = torch.linspace(0, f.shape[1] - 1, POSITIONS).long()
            closed.append((sampled, partial(_edges, here, back, f, POSITIONS)))
            backward[f"{sampled}, looped"] = partial(looped_edges, fused(single), features, positions)
        with torch.no_grad():
            ours = {what: processor_time(work, repeat) for what, work in closed}
        for what, work in backward.items():
            took, scale = processor_time(work, repeat), len(f) * section.target.width / ROWS
            ratios[f"autograd/{name}/{kind} {what}"] = ratio(took, ours[what.rpartition(", ")[0]], scale)
    return ratios


def dictionary_ratios(name: str, shape: Shape, repeat: int) -> Ratios:
    """Edges between two dictionaries in forward passes through the block, from `POSITIONS` positions.

    Dictionaries are random: the cost does not depend on their values.
    """
    forward = forward_time(shape.network(), shape.data())
    network = replace(shape, blocks=2).network()  # a section follows the second dictionary
    width, data = shape.width, shape.data()
    settings = DictionaryEdgeSettings(rule("gradient"), POSITIONS)
    ratios = {}
    for what, places in DICTIONARY_PLACES.items():
        given = {}
        for seed, place in enumerate(places):
            generator = torch.Generator().manual_seed(seed)
            W = normalize(torch.randn(min(MAX_FEATURES, 8 * width), width, generator=generator), dim=1)
            given[place] = Dictionary(W, W.new_zeros(len(W)), W, W.new_zeros(width), active=ACTIVE)
        edges = DictionaryEdgesPass(network, place_dictionaries(network, given), settings)
        chunks = [Chunk(k, [data[k : k + 1]], "data", network) for k in range(len(data))]

        def add() -> None:
            state = edges.start()  # noqa: B023
            for chunk in chunks:  # noqa: B023
                edges.update(state, chunk)  # noqa: B023

        ratios[f"dictionaries/{name}/{what}"] = ratio(processor_time(add, repeat), forward)
    return ratios


def _basis(section: Section, transform: Tensor, f: Tensor) -> Tensor:
    """M′ in float64, sample by sample, with all of its linear algebra."""
    core, jacobian = section.core, DenseJacobian.from_section(section, transform)
    sums: dict[str, Tensor] = {}
    metric = jacobian.metric
    for batch_f in f.split(2):
        u, outputs = section.read_outs(batch_f), section.outputs(batch_f)
        if isinstance(core, StatisticsCore):
            batch = core.statistics(u, outputs)
        else:
            assert isinstance(core, Attention)
            batch = core.batch_sums(u, outputs, metric.to(f.dtype), None)
        sums = {key: sums[key] + total if key in sums else total.double() for key, total in batch.items()}
    tokens = f.shape[0] * f.shape[1]
    return jacobian.gram(core.moments(sums, metric), tokens, tokens).K


def _edges(section: Section, transform: Tensor, f: Tensor, positions: int | None = None) -> Tensor:
    """Ê with signed sums over the positions of a sequence, or over so many of them."""
    settings = EdgeSettings(rule("gradient"), Sources("positions", 1, positions=positions))
    edges = SectionEdges(section, settings, transform, longest=f.shape[1])
    sums: dict[str, Tensor] = {}
    for first, sample in enumerate(f.split(1)):
        edges.add(sums, sample, first)
    return edges.total(sums).edges.rms


def rotary_ratios(width: int, positions: int, tokens: int, repeat: int) -> Ratios:
    """Blocks with rotary positions and grouped keys over blocks without, phase by phase."""
    heads = width // 64
    plain = Shape(width, 4 * width, heads, positions=positions, samples=tokens // positions)
    turned = replace(plain, hidden=8 * width // 3, key_heads=max(1, heads // 3))
    without, with_turns = (_block_times(shape, repeat) for shape in (plain, turned))
    name = f"rotary over plain/width {width}, T = {positions}"
    return {f"{name}/{phase}": ratio(with_turns[phase], without[phase]) for phase in without}


def _block_times(shape: Shape, repeat: int) -> dict[str, Measure]:
    """Statistics of the block, the Jacobian Gram of its attention, edges of all its sections."""
    network, tokens = shape.network(), shape.data()
    took = {"statistics": processor_time(lambda: collect(network, Batches(tokens)), repeat)}
    edges: dict[str, list[Measure]] = {"edges": []}
    if shape.positions > POSITIONS:
        edges[f"edges from {POSITIONS} positions"] = []
    with torch.no_grad():
        activations = network.activations(tokens)
        for section, f in zip(network.sections, activations, strict=False):
            out = haar_rotation(section.target.width, (0, 1))
            back = haar_rotation(section.source.width, (0, 2)).float()
            if isinstance(section.core, Attention):
                metric = DenseJacobian.from_section(section, out).metric.float()
                u, outputs, core = section.read_outs(f), section.outputs(f), section.core
                took["Jacobian, attention"] = processor_time(
                    lambda: core.batch_sums(u, outputs, metric, None),  # noqa: B023
                    repeat,
                )
            here = section.in_basis(back.T, out.float())
            for (name, measures), positions in zip(edges.items(), (None, POSITIONS), strict=False):
                measures.append(processor_time(lambda: _edges(here, back, f, positions), repeat))  # noqa: B023
                if isinstance(section.core, Attention):
                    took[f"{name}, attention"] = measures[-1]
    for name, measures in edges.items():
        spread = max(measure.spread for measure in measures)
        took[name] = Measure(value=sum(measure.value for measure in measures), spread=spread)
    return took


def grown(shape: Shape, size: str, factor: int) -> tuple[int, Shape]:
    """The size, and the shape in which it is ``factor`` times as large."""
    larger = replace(shape, **{field: factor * getattr(shape, field) for field in FIELDS[size]})
    if size == "context":
        larger = replace(larger, samples=max(1, shape.samples // factor))
    return larger.tokens if size == "tokens" else getattr(larger, FIELDS[size][0]), larger


def sweep(shape: Shape, size: str) -> Sweep:
    """Builds with one size growing; the number of tokens stays while the context grows."""
    sizes: list[int] = []
    builds: list[dict[str, float]] = []
    for factor in FACTORS[size]:
        value, larger = grown(shape, size, factor)
        network, tokens = larger.network(), larger.data()
        sizes.append(value)
        forward = {"forward": forward_time(network, tokens).value}
        builds.append(forward | build_times(network, tokens))
    seconds = {phase: tuple(build[phase] for build in builds) for phase in builds[0]}
    exponents = {phase: exponent(sizes, times) for phase, times in seconds.items()}
    return Sweep(sizes=tuple(sizes), seconds=seconds, exponents=exponents)


def exponent(sizes: list[int], seconds: Sequence[float]) -> float:
    """The slope of the straight line through the logarithms, by least squares."""
    x, y = (torch.tensor(v, dtype=torch.float64).clamp_min(1e-9).log() for v in (sizes, seconds))
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))
