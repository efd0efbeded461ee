"""Measurements of processor time, which other work on the machine changes less than the wall clock.

Each function on a shape returns ratios by name.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

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
from interbasis_studies.bench.records import Measure
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


def phase_ratios(name: str, shape: Shape, repeat: int) -> Ratios:
    """Every phase of a build in forward passes, and what norms and MLPs alone take of them."""
    network, tokens = shape.network(), shape.data()
    forward = forward_time(network, tokens)
    times: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for _ in range(repeat):
        graph = build(network, tokens, edge_group="positions", edge_sources=1, progress=False).graph
        for phase in PHASES:
            times[phase].append(graph.provenance.processor_timings.get(phase, 0.0))
    ratios = {f"phases/{name}/{phase}": ratio(least_time(runs), forward) for phase, runs in times.items()}
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
        few, scale = transform[:ROWS].float(), section.target.width / ROWS
        with torch.no_grad():
            ours = processor_time(lambda: _basis(section, transform, f), repeat)  # noqa: B023
        sample = f[:1]
        backward = {
            "looped": processor_time(lambda: looped(fused(section), few, sample), repeat),  # noqa: B023
            "batched": processor_time(lambda: batched(section, few, sample, 4), repeat),  # noqa: B023
        }
        for way, took in backward.items():
            ratios[f"autograd/{name}/{kind} basis, {way}"] = ratio(took, ours, scale * len(f))
        back = haar_rotation(section.source.width, (0, 2)).float()
        here = section.in_basis(back.T, transform.float())
        with torch.no_grad():
            ours = processor_time(lambda: _edges(here, back, f), repeat)  # noqa: B023
        single = section.in_basis(back.T, few)
        features = sample @ back.T
        took = processor_time(lambda: looped_edges(fused(single), features), repeat)  # noqa: B023
        ratios[f"autograd/{name}/{kind} edges, looped"] = ratio(took, ours, scale * len(f))
        if kind == "attention" and f.shape[1] > POSITIONS:
            positions = torch.linspace(0, f.shape[1] - 1, POSITIONS).long()
            with torch.no_grad():
                ours = processor_time(lambda: _edges(here, back, f, POSITIONS), repeat)  # noqa: B023
            took = processor_time(lambda: looped_edges(fused(single), features, positions), repeat)  # noqa: B023
            ratios[f"autograd/{name}/attention edges from {POSITIONS} positions, looped"] = ratio(
                took, ours, scale * len(f)
            )
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
