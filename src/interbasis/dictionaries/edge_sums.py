"""Edges between dictionaries over data: sums over tokens of the attributions of single ones.

For every pair of a feature j of one dictionary and a feature i of the next, with A_is,j the attribution of
i's pre-activation at token s to j, summed over the positions where j is active, the pass keeps

    Σ A²        over tokens s where i is active, of N tokens in all,
    Σ A         with its sign,
    n           tokens where i is active and j is, too; through attention, there or earlier.

Where positions are sampled, Q of the T positions of a sample stand for all, each with weight w = T/Q, and the
variance of Σ A² is estimated by Σ w² (1 − Q/T) A⁴: what sampling adds, without the spread between samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from interbasis.base.devices import double, near_sums, sums_device
from interbasis.compute.executor import Chunk, SumsPass
from interbasis.dictionaries.chain import Chain, is_positionwise
from interbasis.dictionaries.edges import SectionInDictionaries
from interbasis.dictionaries.layers import REMAINDERS, ActiveFeatures, DictionaryLayer
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.edge_inputs import check_activations
from interbasis.network.network import Network
from interbasis.numerics.integration import Rule
from interbasis.numerics.random_signs import random_positions

MAX_ATTRIBUTIONS = 2**23
"""Attributions from all positions that are held at once."""
MAX_VECTOR_ELEMENTS = 2**26
"""Numbers that the vectors of some tokens may hold at once."""
EDGES = "edges"
"""Name of the pass over the data."""
SUMS, SUM_OF_SAMPLED = ("squares", "signed", "together"), "variances"
"""Sums of every pair of features, and the one that sampled positions add."""


@dataclass(frozen=True)
class DictionaryEdgeSettings:
    """Settings of the edges between dictionaries."""

    rule: Rule
    positions: int | None = None
    """Output positions sampled per sample; None is all of them."""
    seed: int = 0
    counted: CountedTokens = ALL_TOKENS

    @property
    def sums(self) -> tuple[str, ...]:
        """Sums of every pair of features."""
        return SUMS if self.positions is None else (*SUMS, SUM_OF_SAMPLED)


@dataclass(frozen=True, eq=False)
class LayerTokens:
    """A dictionary's layer in a batch."""

    before: Tensor  # [n, T, d] at the node layer that is read
    f: Tensor  # [n, T, width] at the node layer of the vectors
    active: ActiveFeatures  # [n, T, k]
    counts: Tensor  # [n, T], bool

    @classmethod
    def from_activations(
        cls,
        network: Network,
        layer: DictionaryLayer,
        activations: Mapping[int, Tensor],
        counted: CountedTokens,
    ) -> "LayerTokens":
        """Encode a batch from its activations by number of the node layer."""
        before, f = activations[layer.index], activations[layer.source_index]
        counts = counted.at(layer.source_index, network.nodes[layer.source_index], f)
        return cls(before, f, layer.encode(before), counts)


@dataclass(frozen=True)
class EdgePart:
    """Target features of a pair of neighbouring dictionaries whose edges are summed in one pass."""

    pair: int
    rows: slice


class DictionaryEdgesPass(SumsPass):
    """Sums of pairs of neighbouring dictionaries, and of every dictionary's activations.

    Args:
        network: The network.
        layers: The dictionaries, in the network's order.
        settings: Settings.
        parts: Pairs of neighbours, or parts of them, that are summed; default: all.
        number: Number of this pass, from 0, and of how many.
    """

    def __init__(
        self,
        network: Network,
        layers: Sequence[DictionaryLayer],
        settings: DictionaryEdgeSettings,
        parts: Sequence[EdgePart] | None = None,
        number: tuple[int, int] = (0, 1),
    ):
        self.network, self.layers, self.settings = network, layers, settings
        self.pairs = [PairOfDictionaries(network, a, b, settings) for a, b in pairwise(layers)]
        if parts is None:
            parts = [EdgePart(k, slice(0, b.features)) for k, b in enumerate(layers[1:])]
        self.parts, self.is_first = parts, number[0] == 0
        self.name = self.phase = self.file = EDGES
        if number[1] > 1:  # another limit divides otherwise
            first, last = parts[0], parts[-1]
            rows = f"{first.pair}.{first.rows.start}-{last.pair}.{last.rows.stop}"
            self.name = self.file = f"{EDGES}-{rows}"
            self.phase = f"{EDGES}, part {number[0] + 1} of {number[1]}"

    @torch.no_grad()
    def update(self, state: dict[str, Tensor], chunk: Chunk) -> None:
        first = self.layers[0].index
        activations = activations_between(self.network, self.layers, chunk.activations_at(first))
        for k, f in list(activations.items())[:-1]:
            check_activations(self.network.layers[k], f, chunk.data, chunk.first)
        tokens = [
            LayerTokens.from_activations(self.network, layer, activations, self.settings.counted)
            for layer in self.layers
        ]
        if self.is_first:
            for k, (layer, here) in enumerate(zip(self.layers, tokens, strict=True)):
                _add_activations(state, f"{k}.", layer, here)
        for part in self.parts:
            k, pair = part.pair, self.pairs[part.pair]
            totals = EdgeTotals(state, pair, part)
            totals.count += int(tokens[k + 1].counts.sum())
            for block in pair.attributions(chunk.first, tokens[k], tokens[k + 1], activations):
                totals.add(block)


def activations_between(network: Network, layers: Sequence[DictionaryLayer], f: Tensor) -> dict[int, Tensor]:
    """Activations by number of the node layer, from the first dictionary's f to behind the last one."""
    activations = {layers[0].index: f}
    for k in range(layers[0].index, min(layers[-1].index + 1, len(network.sections))):
        activations[k + 1] = network.sections[k](activations[k])
    return activations


def _add_activations(sums: dict[str, Tensor], prefix: str, layer: DictionaryLayer, here: LayerTokens) -> None:
    """Add how often every feature is active, Σ z and Σ z²."""
    indices, values = (
        here.active.indices[here.counts].flatten(),
        double(here.active.values[here.counts]).flatten(),
    )
    real = double(here.active.real[here.counts].flatten())
    for name, amount in (("active", real), ("sum", values), ("square", values.square())):
        total = _entry(sums, prefix + name, (layer.features,), indices.device)
        total.index_add_(0, near_sums(indices), amount)
    _entry(sums, prefix + "tokens", (), indices.device).add_(int(here.counts.sum()))


class PairOfDictionaries:
    """The edges from one dictionary to the next."""

    def __init__(
        self,
        network: Network,
        source: DictionaryLayer,
        target: DictionaryLayer,
        settings: DictionaryEdgeSettings,
    ):
        self.source, self.target, self.settings = source, target, settings
        self.sections = (*network.sections[source.source_index : target.index], *target.through)
        self.chain = Chain(self.sections, settings.rule)
        self.size = (target.features, source.features + len(REMAINDERS))

    @cached_property
    def _products(self) -> SectionInDictionaries | None:
        """Products in advance, for a single section that does not mix positions."""
        if not self._has_products:
            return None
        return SectionInDictionaries.from_layers(
            self.source, self.target, self.sections[0], self.settings.rule
        )

    @property
    def _has_products(self) -> bool:
        return len(self.sections) == 1 and is_positionwise(self.sections[0])

    @property
    def product_elements(self) -> int:
        """Numbers that are computed in advance."""
        if not self._has_products:
            return 0
        (rows, width), shapes = self.size, self.sections[0].shapes
        return rows * (width + shapes.write[1] + shapes.skip[1]) + width * shapes.read[0]

    def attributions(
        self,
        first: int,
        source: LayerTokens,
        target: LayerTokens,
        activations: Mapping[int, Tensor],
    ) -> Iterator["AttributionBlock"]:
        """Yield the attributions of a batch; ``first`` is the number of its first sample in the data."""
        samples, length = target.counts.shape
        sampled, weight = target.counts, 1.0
        if self.settings.positions is not None and self.settings.positions < length:
            key = ("edge positions", self.settings.seed, 0)
            positions = random_positions(key, first, samples, self.settings.positions, length)
            chosen = torch.zeros_like(sampled).scatter_(1, positions.to(sampled.device), True)
            sampled, weight = chosen & sampled, length / self.settings.positions
        indices = range(self.source.source_index, self.source.source_index + len(self.chain.sections) + 1)
        inner = [activations[k] for k in indices]
        if self.chain.mixes_positions:
            for n in range(samples):
                yield from self._in_sample(source, target, [f[n] for f in inner], (n, sampled[n], weight))
        else:
            tokens = (sampled & source.counts).nonzero()
            width = (source.active.indices.shape[-1] + len(REMAINDERS)) * source.f.shape[-1]
            for some in tokens.split(max(1, MAX_VECTOR_ELEMENTS // width)):
                yield from self._at_tokens(source, target, inner, some, weight)

    def _at_tokens(
        self, source: LayerTokens, target: LayerTokens, inner: list[Tensor], tokens: Tensor, weight: float
    ) -> Iterator["AttributionBlock"]:
        """Attributions of tokens [n, 2] whose sources stand where they stand."""
        here = tuple(tokens.unbind(1))
        z, out, inner = _at(source.active, here), _at(target.active, here), [f[here] for f in inner]
        vectors = self.source.split(z, source.before[here], source.f[here])
        if self._products is not None:
            remainders = vectors[:, -len(REMAINDERS) :]
            blocks = self._products.attributions(inner[0], z, remainders, out)
        else:
            rows = self.target.rows(out.indices)
            everything = self.chain.attributions_at_tokens(inner, vectors, rows)
            blocks = iter([(slice(None), everything)])
        for some, A in blocks:
            columns, seen = (
                z.indices[some],
                torch.nn.functional.pad(z.real[some], (0, len(REMAINDERS)), value=True),
            )
            yield AttributionBlock(tokens[some], _at(out, some), A, columns, seen, weight)

    def _in_sample(
        self,
        source: LayerTokens,
        target: LayerTokens,
        inner: list[Tensor],
        sample: tuple[int, Tensor, float],
    ) -> Iterator["AttributionBlock"]:
        """Attributions in a sample whose positions mix, some positions at a time."""
        n, sampled, weight = sample
        z, counts = _at(source.active, n), source.counts[n]
        vectors = self.source.split(z, source.before[n], source.f[n]) * counts[:, None, None]
        pushed = self.chain.push(inner, vectors)
        per_position = target.active.indices.shape[-1] * vectors.shape[0] * vectors.shape[1]
        for positions in sampled.nonzero()[:, 0].split(max(1, MAX_ATTRIBUTIONS // per_position)):
            out = _at(_at(target.active, n), positions)
            A = self.chain.attributions(inner, pushed, self.target.rows(out.indices), positions)
            queries = positions + len(source.f[n]) - len(target.before[n])
            tokens = torch.stack([torch.full_like(positions, n), positions], dim=1)
            yield _sum_over_positions(A, z, counts, queries, (tokens, out, weight))


@dataclass(frozen=True, eq=False)
class AttributionBlock:
    """Attributions of active target features at some tokens, from source features and `REMAINDERS`."""

    tokens: Tensor  # [n, 2]: sample of the batch, position
    out: ActiveFeatures  # [n, k_out]
    values: Tensor  # [n, k_out, m + 3]
    columns: Tensor  # [n, m] source features at every token, or [m] the same at all of them
    seen: Tensor  # [n, m + 3], bool: whether the source is active where the target can see it
    weight: float
    """Tokens that each of them stands for."""


def _sum_over_positions(
    A: dict[str, Tensor],
    z: ActiveFeatures,
    counts: Tensor,
    queries: Tensor,
    block: tuple[Tensor, ActiveFeatures, float],
) -> AttributionBlock:
    """Sum attributions of one sample's output positions over input positions, feature by feature.

    Args:
        A: "anywhere" [T, k_in + 3, S·k_out] from all positions, "own" [S, k_out, k_in + 3] from its own.
        z: Active features [T, k_in] of the source.
        counts: Input positions [T] that count.
        queries: Input positions [S] of the outputs.
        block: Tokens, active features [S, k_out] of the target, and weight of the block.
    """
    tokens, out, weight = block
    k, anywhere, own = z.indices.shape[1], A["anywhere"], A["own"]
    real = z.real & counts[:, None]
    distinct, place = z.indices.unique(return_inverse=True)  # [U], [T, k_in]
    sums = anywhere.new_zeros(len(distinct) + len(REMAINDERS), out.indices.numel())
    sums.index_add_(0, place[: len(anywhere)].flatten(), anywhere[:, :k].flatten(0, 1))
    sums[-len(REMAINDERS) :] = anywhere[:, k:].sum(0)
    table = sums.T.reshape(*out.indices.shape, -1)  # [S, k_out, U + 3]
    here = place[queries][:, None].expand(-1, out.indices.shape[1], -1)
    table.scatter_add_(2, here, own[..., :k])
    table[..., -len(REMAINDERS) :] += own[..., k:]
    first_seen = torch.full((len(distinct),), len(real), device=real.device)
    positions = torch.arange(len(real), device=real.device)[:, None].expand_as(place)
    first_seen.scatter_reduce_(0, place[real], positions[real], "amin")
    seen = first_seen <= queries[:, None]  # [S, U]; j is active where the query can see it
    seen = torch.nn.functional.pad(seen, (0, len(REMAINDERS)), value=True)
    return AttributionBlock(tokens, out, table, distinct, seen, weight)


def _at(active: ActiveFeatures, where: Tensor | slice | int | tuple[Tensor, ...]) -> ActiveFeatures:
    return ActiveFeatures(active.indices[where], active.values[where], active.real[where])


def _entry(sums: dict[str, Tensor], name: str, size: tuple[int, ...], device: torch.device) -> Tensor:
    if name not in sums:
        sums[name] = torch.zeros(size, dtype=torch.float64, device=sums_device(device))
    return sums[name]


class EdgeTotals:
    """The sums of some target features of one pair, [rows, K_in + 3] each, in a state of the pass."""

    def __init__(self, sums: dict[str, Tensor], pair: "PairOfDictionaries", part: EdgePart):
        rows, width, prefix = part.rows, pair.size[1], f"edges.{part.pair}."
        size, device = (rows.stop - rows.start, width), pair.source.dictionary.encoder.device
        self.totals = {name: _entry(sums, prefix + name, size, device) for name in pair.settings.sums}
        self.count = _entry(sums, prefix + "tokens", (), device)
        self.rows, self.first_remainder = rows, width - len(REMAINDERS)

    def add(self, block: AttributionBlock) -> None:
        """Add the attributions of some tokens to those target features that are summed."""
        if not len(block.values):
            return
        indices = block.out.indices - self.rows.start
        is_summed = (indices >= 0) & (block.out.indices < self.rows.stop)
        out = ActiveFeatures(indices, block.out.values, block.out.real & is_summed)
        remainders = self.first_remainder + torch.arange(len(REMAINDERS), device=block.columns.device)
        if block.columns.ndim == 1:
            self._add_table(block, out, torch.cat([block.columns, remainders]))
            return
        columns = torch.cat([block.columns, remainders.expand(len(block.columns), -1)], dim=1)
        both = (out.real[..., None] & block.seen[:, None]).flatten()
        width = self.first_remainder + len(REMAINDERS)
        places = (out.indices[..., None] * width + columns[:, None]).flatten()[both]
        values = double(block.values.flatten()[both])
        for name, total in self.totals.items():
            total.view(-1).index_add_(0, near_sums(places), _amount(name, values, block.weight))

    def _add_table(self, block: AttributionBlock, out: ActiveFeatures, columns: Tensor) -> None:
        """Add tokens that all have the same source features."""
        targets, place = map(near_sums, out.indices[out.real].unique(return_inverse=True))
        rows, columns = double(block.values[out.real]), near_sums(columns)
        mask = near_sums(block.seen[:, None].expand_as(block.values)[out.real])
        for name, total in self.totals.items():
            amount = block.weight * mask.double() if name == "together" else _amount(name, rows, block.weight)
            sums = amount.new_zeros(len(targets), len(columns)).index_add_(0, place, amount)
            total[targets[:, None], columns] += sums


def _amount(name: str, values: Tensor, weight: float) -> Tensor:
    """Amount that attributions of weight w = T/Q add to a sum."""
    if name == "squares":
        return weight * values.square()
    if name == "signed":
        return weight * values
    if name == "together":
        return torch.full_like(values, weight)
    return weight**2 * (1 - 1 / weight) * values**4
