"""One streaming pass over the data: means, centred Grams, and the cores' sufficient statistics.

All of it is sums that merge, so data may be split over batches, processes and machines. They are float64
whatever the network computes in; within a chunk, the cores' products are in the network's dtype. Grams are
centred as they grow (Chan, Golub & LeVeque 1979), so a mean that is a million times the spread costs no
digits.
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from interbasis.data.batches import Batches
from interbasis.fit.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.fit.stencils import by_class
from interbasis.network.cores import StatisticsCore, Sums
from interbasis.network.network import Network, Section
from interbasis.network.stencil_section import StencilSection
from interbasis.numerics.linalg import symmetric_product
from interbasis.runtime.checkpoints import NO_CHECKPOINTS, Checkpoints, State
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.progress import Progress, silent
from interbasis.runtime.team import Pass

CHUNK_BYTES = 2**26
"""What the activations of one chunk of samples may weigh: large, for Grams of wide layers."""

FINE_CHUNK_BYTES = 2**23
"""The same for passes that do more with every sample, so that progress is shown often."""


MAX_ROOT_WIDTH = 256
"""Widest layer whose scatter is kept as a triangular root as well."""


@dataclass
class Covariance:
    """Count, mean and scatter Σ (x − mean)(x − mean)ᵀ of a stream of vectors.

    Squaring costs half the digits: directions with variances below 2.2e-16 of the largest are lost in a
    scatter, but not in its root R, RᵀR = scatter, which grows by QR decompositions. It is kept for narrow
    layers of networks that compute in float64.
    """

    count: int
    mean: Tensor  # [w]
    scatter: Tensor  # [w, w], or its diagonal [w] where no more is wanted
    root: Tensor | None = None  # R [at most w, w]

    @classmethod
    def of(cls, x: Tensor, full: bool = True, known: "Known | None" = None) -> "Covariance":
        """Of the rows x [n, w]; their full scatter, or its diagonal alone."""
        mean = x.mean(0, dtype=torch.float64) if len(x) else x.new_zeros(x.shape[1], dtype=torch.float64)
        centred = x - mean  # float64, whatever x is
        if not full:
            return cls(len(x), mean, centred.square().sum(0))
        exact = x.dtype == torch.float64 and x.shape[1] <= MAX_ROOT_WIDTH
        if exact:
            return cls(len(x), mean, symmetric_product(centred), _triangle(centred))
        if known is None or not known.holds(x):
            return cls(len(x), mean, symmetric_product(centred))
        return cls(len(x), mean, known.scatter(centred))

    def merge(self, other: "Covariance") -> None:
        """Take in another stream: scatters add, plus the scatter of the two means about their common one."""
        total = self.count + other.count
        if not other.count:
            return
        shift = other.mean - self.mean
        weight = self.count * other.count / total
        self.scatter += other.scatter
        if self.scatter.ndim == 2:
            self.scatter.addr_(shift, shift, alpha=weight)
        else:
            self.scatter += weight * shift.square()
        if self.root is not None and other.root is not None:
            self.root = _triangle(torch.cat([self.root, other.root, weight**0.5 * shift[None]]))
        self.mean += shift * (other.count / total)
        self.count = total

    @property
    def gram(self) -> Tensor:
        """The centred Gram E[(x − mean)(x − mean)ᵀ], [w, w]."""
        return self.scatter / self.count

    @property
    def variances(self) -> Tensor:
        """Its diagonal, [w]."""
        return (self.scatter.diagonal() if self.scatter.ndim == 2 else self.scatter) / self.count

    @property
    def squares(self) -> Tensor:
        """E[x²] of every coordinate, the mean included, [w]."""
        return self.variances + self.mean.square()


@dataclass(frozen=True, eq=False)
class Known:
    """The rows of the layer before, some of whose columns the next layer holds again (a residual stream)."""

    rows: Tensor  # [n, w]
    covariance: Covariance
    target: Tensor  # [c], columns of the next layer
    source: Tensor  # [c], what they are columns of here

    def holds(self, x: Tensor) -> bool:
        """Whether x holds these columns again, bit for bit, and their scatter is known."""
        if not len(self.target) or len(x) != len(self.rows) or self.covariance.scatter.ndim != 2:
            return False
        return torch.equal(x[:, self.target], self.rows[:, self.source])

    def scatter(self, centred: Tensor) -> Tensor:  # [n, w′] -> [w′, w′]
        """centredᵀ·centred, in which what the two layers share is not multiplied again."""
        width, target = centred.shape[1], self.target
        fresh = torch.ones(width, dtype=torch.bool, device=centred.device).index_fill_(0, target, False)
        fresh = fresh.nonzero()[:, 0]
        others, shared = centred[:, fresh], centred[:, target]
        result = centred.new_empty(width, width)
        result[target[:, None], target] = self.covariance.scatter[self.source[:, None], self.source]
        result[fresh[:, None], fresh] = symmetric_product(others)
        corner = others.T @ shared
        result[fresh[:, None], target], result[target[:, None], fresh] = corner, corner.T
        return result


def _known(section: Section, rows: Tensor, covariance: Covariance) -> Known:
    """What a section's target shares with its source, the constants left out."""
    target, source = section.copies
    first, before = section.target.first_coordinate, section.source.first_coordinate
    kept = (target >= first) & (source >= before)
    return Known(rows, covariance, target[kept] - first, source[kept] - before)


def _triangle(rows: Tensor) -> Tensor:  # [m, w] -> [min(m, w), w]
    """R of a QR decomposition: RᵀR = rowsᵀ·rows."""
    return torch.linalg.qr(rows, mode="r").R


@dataclass
class Statistics:
    """What one pass over the data has collected."""

    samples: int = 0
    layers: list[Covariance] = field(default_factory=list)
    """Per node layer, over samples and positions, the constant left out."""
    cores: list[Sums] = field(default_factory=list)
    """Per section, the sums of its core; empty for cores that need a pass of their own."""
    pairs: list[int] = field(default_factory=list)
    """Per section, positions that count as input and as output."""

    def merge(self, other: "Statistics") -> None:
        """Take in the statistics of other data, which are left as they are."""
        if not other.samples:
            return
        if not self.samples:
            self.samples = other.samples
            self.pairs = list(other.pairs)
            self.layers = deepcopy(other.layers)
            self.cores = [
                {name: total.to(torch.float64, copy=True) for name, total in sums.items()}
                for sums in other.cores
            ]
            return
        self.samples += other.samples
        self.pairs = [mine + theirs for mine, theirs in zip(self.pairs, other.pairs, strict=True)]
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.merge(theirs)
        for sums, more in zip(self.cores, other.cores, strict=True):
            for name, total in sums.items():
                total += more[name]  # float64, whatever the other is

    def state(self) -> State:
        """All of it, to go on from."""
        tensors: dict[str, Tensor] = {}
        for k, layer in enumerate(self.layers):
            tensors |= {f"layers.{k}.mean": layer.mean, f"layers.{k}.scatter": layer.scatter}
            if layer.root is not None:
                tensors[f"layers.{k}.root"] = layer.root
        for k, sums in enumerate(self.cores):
            tensors |= {f"cores.{k}.{name}": total for name, total in sums.items()}
        counts, names = [layer.count for layer in self.layers], [list(sums) for sums in self.cores]
        return tensors, {"samples": self.samples, "counts": counts, "names": names, "pairs": self.pairs}

    @classmethod
    def restored(cls, state: State) -> "Statistics":
        """From a state; empty where there is none."""
        saved, values = state
        if not values.get("samples"):
            return cls()
        layers = [
            Covariance(
                count, saved[f"layers.{k}.mean"], saved[f"layers.{k}.scatter"], saved.get(f"layers.{k}.root")
            )
            for k, count in enumerate(values["counts"])
        ]
        cores = [
            {name: saved[f"cores.{k}.{name}"] for name in names} for k, names in enumerate(values["names"])
        ]
        return cls(values["samples"], layers, cores, values["pairs"])


@dataclass(frozen=True)
class Wanted:
    """What a pass collects beside counts and means."""

    grams: bool = True
    """Centred Grams of the node layers; else their diagonals."""
    last_gram: bool = True
    """The last layer's too; a vocabulary's would be enormous."""
    cores: bool = True
    """The sums of the cores that have any."""
    counted: CountedTokens = ALL_TOKENS
    """The tokens that count in all of it."""


def collect(
    network: Network,
    batches: Batches,
    wanted: Wanted | None = None,
    progress: Progress = silent,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> Statistics:
    """Pass once over the data; all there is to collect unless something else is wanted."""
    collected = statistics_pass(network, batches, wanted or Wanted(), progress, checkpoints)
    return counted_statistics(network, batches, batches.team.sums(collected)[0])


def statistics_name(data: str) -> str:
    """The pass over some data."""
    return f"statistics of the {data}"


def statistics_pass(
    network: Network, batches: Batches, wanted: Wanted, progress: Progress, checkpoints: Checkpoints
) -> Pass:
    """The pass that `collect` makes."""
    blocks = batches.blocks()

    def of_block(number: int) -> State:
        return _of_block(network, blocks[number], wanted, progress, checkpoints).state()

    return Pass(statistics_name(batches.name), len(blocks), of_block, _merged)


def _merged(one: State, other: State) -> State:
    result = Statistics.restored(one)
    result.merge(Statistics.restored(other))
    return result.state()


def counted_statistics(network: Network, batches: Batches, state: State) -> Statistics:
    """What a pass has collected, if some tokens count at every layer."""
    result = Statistics.restored(state)
    for node, layer in zip(network.nodes, result.layers, strict=True):
        if not layer.count:
            raise InterbasisError(
                f"{batches.name}: no token counts at node layer {node.name!r}; leave out fewer positions "
                "than samples have (skip_positions), or choose a larger norm_limit"
            )
    return result


@torch.no_grad()
def _of_block(
    network: Network, batches: Batches, wanted: Wanted, progress: Progress, checkpoints: Checkpoints
) -> Statistics:
    checkpoint = checkpoints.checkpoint(f"statistics.{batches.name}{batches.mark}", len(batches))
    result = Statistics.restored((checkpoint.tensors, checkpoint.values))
    ragged = batches.ragged_chunks(chunk_size(network, batches), checkpoint.done)
    save = partial(checkpoint.save, state=result.state)
    for first, runs in batches.tracked(ragged, "statistics", progress, save):
        result.merge(_of_chunk(network, runs, wanted, batches.name, first))
    return result


def _of_chunk(network: Network, runs: list[Tensor], wanted: Wanted, name: str, first: int) -> Statistics:
    """Of some samples in a row, in runs of one length."""
    layers, sums, pairs = [], [], []
    fs = [network.prefix(inputs.to(network.device)) for inputs in runs]
    everything, known = wanted.counted.all, None
    for index, node in enumerate(network.nodes):
        last = index == len(network.sections)
        counts = None if everything else [wanted.counted.at(index, node, f) for f in fs]
        x = _rows([f[..., node.first_coordinate :] for f in fs], counts)
        covariance = Covariance.of(x, wanted.grams and (wanted.last_gram or not last), known)
        if not covariance.scatter.isfinite().all():
            check_runs(node.name, fs, name, first)
        layers.append(covariance)
        if last:
            break
        section = network.sections[index]
        known = None if isinstance(section, StencilSection) else _known(section, x, covariance)
        core_sums: Sums = {}
        us = [section.read_outs(f) for f in fs]
        outputs = [section.outputs(f) for f in fs]
        following = [section.from_read_outs(f, u) for f, u in zip(fs, us, strict=True)]
        both = None
        if counts is not None:
            ends = [wanted.counted.at(index + 1, section.target, f) for f in following]
            both = [c[:, out] & end for c, out, end in zip(counts, outputs, ends, strict=True)]
        if wanted.cores and isinstance(section.core, StatisticsCore):
            core_sums = _core_sums(
                section, section.core, [u[:, some] for some, u in zip(outputs, us, strict=True)], both
            )
        sums.append(core_sums)
        pairs.append(sum(f.shape[0] * f.shape[1] for f in following) if both is None else _number(both))
        fs = following
    return Statistics(sum(map(len, runs)), layers, sums, pairs)


def _core_sums(
    section: Section, core: StatisticsCore, out: list[Tensor], counts: list[Tensor] | None
) -> Sums:
    """The core's sums over all output positions, or over those of every class of a stencil's."""
    if isinstance(section, StencilSection):
        return by_class(section, torch.cat(out), partial(core.statistics, outputs=slice(0, 1)))
    return core.statistics(_rows(out, counts)[:, None], slice(0, 1))


def _rows(runs: list[Tensor], counts: list[Tensor] | None) -> Tensor:  # [n, T, w] each -> [tokens, w]
    """Tokens in a row, of those that count [n, T] where that is said."""
    if counts is None:
        rows = [f.flatten(0, 1) for f in runs]
    else:
        rows = [f.flatten(0, 1) if c.all() else f[c] for f, c in zip(runs, counts, strict=True)]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _number(counts: list[Tensor]) -> int:
    return sum(int(count.sum()) for count in counts)


def check_runs(layer: str, runs: list[Tensor], name: str, first: int) -> None:
    """`check_finite` for the first run that holds such a sample; the last one if none does."""
    for f in runs[:-1]:
        if not f.isfinite().all():
            check_finite(layer, f, name, first)
        first += len(f)
    check_finite(layer, runs[-1], name, first)


def check_finite(layer: str, f: Tensor, name: str, first: int) -> None:
    """Say at which layer and for which sample activations f [n, T, width] are not finite, or too large."""
    bad = (~f.isfinite()).flatten(1).any(1)
    sample = first + int(bad.int().argmax())
    which = f"first for sample {sample}" if bad.any() else "or too large to be squared, in a sample"
    raise InterbasisError(
        f"activations at node layer {layer!r} are not finite (NaN or infinite), {which} of the {name}; "
        "look at that input or at the model's weights"
    )


def chunks(
    network: Network, batches: Batches, multiple_of: int = 1, *, fine: bool = False, start: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """Chunks of samples that fit in memory, on the network's device: (index of the first, inputs).

    ``start`` samples are left out, for a pass that is resumed.
    """
    samples = chunk_size(network, batches, fine)
    for first, inputs in batches.chunks(max(1, samples // multiple_of) * multiple_of, start):
        yield first, inputs.to(network.device)


def chunk_size(network: Network, batches: Batches, fine: bool = False) -> int:
    """How many samples fit in memory at once."""
    positions = network.prefix(batches.first().to(network.device)).shape[1]
    if positions == 0:
        raise InterbasisError(f"{batches.name}: samples have no positions; expected at least one")
    size = FINE_CHUNK_BYTES if fine else CHUNK_BYTES
    return max(1, size // (8 * _coordinates(network, positions)))


def _coordinates(network: Network, positions: int) -> int:
    """Numbers that a sample has at all node layers and read-outs, from its positions at the first."""
    total = 0
    for section in network.sections:
        total += positions * section.source.width
        grid = section.target.grid
        positions = positions if grid is None else math.prod(grid)
        total += positions * len(section.read)
    return total + positions * network.nodes[-1].width
