"""One streaming pass over the data: means, centred Grams, and the cores' sufficient statistics.

All of it is sums that merge, so data may be split over batches, processes and machines. They are float64
whatever the network computes in; within a chunk, the cores' products are in the network's dtype. Grams are
centred as they grow (Chan, Golub & LeVeque 1979), so a mean that is a million times the spread costs no
digits.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from interbasis.base.devices import near_sums
from interbasis.base.errors import InterbasisError
from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Chunk, Executor, Pass, fits_in_layer_chunk
from interbasis.data.batches import Batches
from interbasis.graph.settings import STATISTICS_GROUPS, BuildConfig
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.covariance import Covariance, known_columns
from interbasis.network.cores import StatisticsCore, Sums
from interbasis.network.network import Network


@dataclass
class Statistics:
    """Sums that one pass over the data has collected."""

    samples: int = 0
    layers: list[Covariance] = field(default_factory=list)
    """Per node layer, over samples and positions, the constant left out."""
    cores: list[Sums] = field(default_factory=list)
    """Per section, the sums of its core; empty for cores that need a pass of their own."""
    pairs: list[int] = field(default_factory=list)
    """Per section, positions that count as input and as output."""

    @classmethod
    def without_cores(cls, groups: Sequence["Statistics"]) -> "Statistics":
        """Statistics of all groups together, whose cores' sums stay apart."""
        result = cls()
        for group in groups:
            result.merge(replace(group, cores=[{}] * len(group.cores)))
        return result

    def merge(self, other: "Statistics") -> None:
        """Add the statistics of other data, which are left as they are."""
        if not other.samples:
            return
        for k, layer in enumerate(other.layers):
            self.add_layer(k, layer)
        for k, (sums, pairs) in enumerate(zip(other.cores, other.pairs, strict=True)):
            self.add_core(k, sums, pairs)
        self.samples += other.samples

    def add_layer(self, index: int, layer: Covariance) -> None:
        """Add more data of one node layer; new layers come in order."""
        if index == len(self.layers):
            self.layers.append(deepcopy(layer))
        else:
            self.layers[index].merge(layer)

    def add_core(self, index: int, sums: Sums, pairs: int) -> None:
        """Add more data of the core of one section."""
        if index == len(self.cores):
            self.cores.append(
                {name: near_sums(total).to(torch.float64, copy=True) for name, total in sums.items()}
            )
            self.pairs.append(pairs)
            return
        for name, total in self.cores[index].items():
            total += near_sums(sums[name])  # float64, whatever the other is
        self.pairs[index] += pairs


@dataclass(frozen=True)
class Wanted:
    """Quantities that a pass collects beside counts and means."""

    grams: bool = True
    """Centred Grams of the node layers; else their diagonals."""
    last_gram: bool = True
    """The last layer's too; a vocabulary's would be enormous."""
    cores: bool = True
    """The sums of the cores that have any."""
    counted: CountedTokens = ALL_TOKENS
    """The tokens that count in all of it."""


def collect(
    network: Network, batches: Batches, wanted: Wanted | None = None, executor: Executor | None = None
) -> Statistics:
    """Pass once over the data and collect all there is, unless less is wanted."""
    statistics = StatisticsPass(network, wanted or Wanted(), batches.name)
    return statistics.check((executor or Executor(network)).run(statistics, batches))


def statistics_name(data: str) -> str:
    """Name of the pass over some data."""
    return f"statistics of the {data}"


def group_names(config: BuildConfig) -> list[str]:
    """Names of the groups of samples drawn for the statistics, each a pass of its own."""
    count = config.statistics_samples
    return [] if count is None else [f"data.{count}.{group}" for group in range(STATISTICS_GROUPS)]


class StatisticsPass(Pass[Statistics]):
    """Means, Grams and core sums of all layers; a chunk's sums are added layer by layer."""

    phase, holds_one_layer = "statistics", True

    def __init__(self, network: Network, wanted: Wanted, data: str):
        self.network, self.wanted, self.data = network, wanted, data
        self.name, self.file = statistics_name(data), f"statistics.{data}"

    def start(self) -> Statistics:
        return Statistics()

    @torch.no_grad()
    def update(self, state: Statistics, chunk: Chunk) -> None:
        self._through(state, [self.network.prefix(inputs) for inputs in chunk.runs], chunk.first)
        state.samples += chunk.samples

    def merge(self, state: Statistics, other: Statistics) -> None:
        state.merge(other)

    def dump(self, state: Statistics) -> State:
        tensors: dict[str, Tensor] = {}
        for k, layer in enumerate(state.layers):
            tensors |= {f"layers.{k}.mean": layer.mean, f"layers.{k}.scatter": layer.scatter}
            if layer.root is not None:
                tensors[f"layers.{k}.root"] = layer.root
        for k, sums in enumerate(state.cores):
            tensors |= {f"cores.{k}.{name}": total for name, total in sums.items()}
        counts, names = [layer.count for layer in state.layers], [list(sums) for sums in state.cores]
        return tensors, {"samples": state.samples, "counts": counts, "names": names, "pairs": state.pairs}

    def load(self, saved: State) -> Statistics:
        tensors, values = saved
        if not values.get("samples"):
            return Statistics()
        layers = [
            Covariance(
                count,
                tensors[f"layers.{k}.mean"],
                tensors[f"layers.{k}.scatter"],
                tensors.get(f"layers.{k}.root"),
            )
            for k, count in enumerate(values["counts"])
        ]
        cores = [
            {name: tensors[f"cores.{k}.{name}"] for name in names} for k, names in enumerate(values["names"])
        ]
        return Statistics(values["samples"], layers, cores, values["pairs"])

    def check(self, statistics: Statistics) -> Statistics:
        """Refuse statistics of a layer at which no token counts."""
        for node, layer in zip(self.network.nodes, statistics.layers, strict=True):
            if not layer.count:
                raise InterbasisError(
                    f"{self.data}: no token counts at node layer {node.name!r}; leave out fewer positions "
                    "than samples have (skip_positions), or choose a larger norm_limit"
                )
        return statistics

    def _through(self, state: Statistics, fs: list[Tensor], first: int, index: int = 0) -> None:
        """Add neighbouring samples, in runs of one length, from a node layer on."""
        known = None
        while True:
            if len(halves := self._halves(fs, index)) > 1:
                for half in halves:
                    self._through(state, half, first, index)
                    first += sum(map(len, half))
                return
            last, node = index == len(self.network.sections), self.network.nodes[index]
            counts = self._counts(index, fs)
            x = near_sums(_rows([f[..., node.first_coordinate :] for f in fs], counts))
            full = self.wanted.grams and (self.wanted.last_gram or not last)
            covariance = Covariance.from_rows(x, full, known)
            if covariance.count and not covariance.finite:
                check_runs(node.name, fs, self.data, first)
            state.add_layer(index, covariance)
            if last:
                return
            section = self.network.sections[index]
            known = known_columns(section, x, covariance)
            fs = self._section(state, index, fs, counts)
            index += 1

    def _halves(self, fs: list[Tensor], index: int) -> list[list[Tensor]]:
        """Split the samples in two where they are too many for the next layer (a vocabulary's logits)."""
        per_position = self.network.nodes[index].width
        if index < len(self.network.sections):
            section = self.network.sections[index]
            per_position += len(section.read) + section.target.width
        positions = sum(f.shape[0] * f.shape[1] for f in fs)
        if fits_in_layer_chunk(per_position * positions):
            return [fs]
        if len(fs) > 1:
            return [fs[: len(fs) // 2], fs[len(fs) // 2 :]]
        return [[half] for half in fs[0].split(-(-len(fs[0]) // 2))]

    def _section(
        self, state: Statistics, index: int, fs: list[Tensor], counts: list[Tensor] | None
    ) -> list[Tensor]:
        """Return the activations of the next layer, and add up the core's sums."""
        section, wanted = self.network.sections[index], self.wanted
        us = [section.read_outs(f) for f in fs]
        outputs = [section.outputs(f) for f in fs]
        following = [section.from_read_outs(f, u) for f, u in zip(fs, us, strict=True)]
        both = None
        if counts is not None:
            ends = [wanted.counted.at(index + 1, section.target, f) for f in following]
            both = [c[:, out] & end for c, out, end in zip(counts, outputs, ends, strict=True)]
        sums: Sums = {}
        if wanted.cores and isinstance(section.core, StatisticsCore):
            out = [u[:, positions] for positions, u in zip(outputs, us, strict=True)]
            sums = section.statistics(_rows(out, both))
        if both is None:
            pairs = sum(f.shape[0] * f.shape[1] for f in following)
        else:
            pairs = sum(int(mask.sum()) for mask in both)
        state.add_core(index, sums, pairs)
        return following

    def _counts(self, index: int, fs: list[Tensor]) -> list[Tensor] | None:
        """Masks of the tokens that count; None where all do."""
        counted = self.wanted.counted
        return None if counted.all else [counted.at(index, self.network.nodes[index], f) for f in fs]


def _rows(runs: list[Tensor], counts: list[Tensor] | None) -> Tensor:  # [n, T, w] each -> [tokens, w]
    """Tokens as rows; with ``counts`` [n, T], only those that count."""
    if counts is None:
        rows = [f.flatten(0, 1) for f in runs]
    else:
        rows = [f.flatten(0, 1) if c.all() else f[c] for f, c in zip(runs, counts, strict=True)]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


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
    sample_text = f"first for sample {sample}" if bad.any() else "or too large to be squared, in a sample"
    raise InterbasisError(
        f"activations at node layer {layer!r} are not finite (NaN or infinite), {sample_text} of the {name}; "
        "look at that input or at the model's weights"
    )
