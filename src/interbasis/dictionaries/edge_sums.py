"""Edges between dictionaries over data: sums over tokens of the attributions of single ones.

For every pair of a feature j of one dictionary and a feature i of the next, with A_is,j the attribution of
i's pre-activation at token s to j, summed over the positions where j is active, the pass keeps

    Σ A²        over tokens s where i is active, of N tokens in all,
    Σ A         with its sign,
    n           tokens where i is active and j is, too; through attention, there or earlier.

Where positions are sampled, Q of the T positions of a sample stand for all, each with weight w = T/Q, and the
variance of Σ A² is estimated by Σ w² (1 − Q/T) A⁴: what sampling adds, without the spread between samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from interbasis.base.devices import double
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


@dataclass(frozen=True)
class DictionaryEdgeSettings:
    """Settings of the edges between dictionaries."""

    rule: Rule
    positions: int | None = None
    """Output positions sampled per sample; None is all of them."""
    seed: int = 0
    counted: CountedTokens = ALL_TOKENS


@dataclass(frozen=True, eq=False)
class LayerTokens:
    """A dictionary's layer in a batch."""

    before: Tensor  # [n, T, d] at the node layer that is read
    f: Tensor  # [n, T, width] at the node layer of the vectors
    active: ActiveFeatures  # [n, T, k]
    counts: Tensor  # [n, T], bool


class DictionaryEdgesPass(SumsPass):
    """Sums of all pairs of neighbouring dictionaries, and of every dictionary's activations."""

    name = phase = file = "edges"

    def __init__(self, network: Network, layers: Sequence[DictionaryLayer], settings: DictionaryEdgeSettings):
        self.network, self.layers, self.settings = network, layers, settings
        self.pairs = [PairOfDictionaries(network, a, b, settings) for a, b in pairwise(layers)]

    @torch.no_grad()
    def update(self, state: dict[str, Tensor], chunk: Chunk) -> None:
        first, last = self.layers[0].index, self.layers[-1].index
        activations = {first: chunk.activations_at(first)}
        for k in range(first, min(last + 1, len(self.network.sections))):
            check_activations(self.network.layers[k], activations[k], chunk.data, chunk.first)
            activations[k + 1] = self.network.sections[k](activations[k])
        tokens = [self._tokens(layer, activations) for layer in self.layers]
        for k, (layer, here) in enumerate(zip(self.layers, tokens, strict=True)):
            _add_activations(state, f"{k}.", layer, here)
        for k, pair in enumerate(self.pairs):
            pair.add(state, f"{k}.", chunk.first, tokens[k], tokens[k + 1], activations)

    def _tokens(self, layer: DictionaryLayer, activations: dict[int, Tensor]) -> LayerTokens:
        before, f = activations[layer.index], activations[layer.source_index]
        node = self.network.nodes[layer.source_index]
        counts = self.settings.counted.at(layer.source_index, node, f)
        return LayerTokens(before, f, layer.encode(before), counts)


def _add_activations(sums: dict[str, Tensor], prefix: str, layer: DictionaryLayer, here: LayerTokens) -> None:
    """Add how often every feature is active, Σ z and Σ z²."""
    indices, values = (
        here.active.indices[here.counts].flatten(),
        double(here.active.values[here.counts]).flatten(),
    )
    real = here.active.real[here.counts].flatten().double()
    for name, amount in (("active", real.double()), ("sum", values), ("square", values.square())):
        total = _entry(sums, prefix + name, (layer.features,))
        total.index_add_(0, indices, amount)
    _entry(sums, prefix + "tokens", ()).add_(int(here.counts.sum()))


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
        sections = (*network.sections[source.source_index : target.index], *target.through)
        self.chain = Chain(sections, settings.rule)
        self.size = (target.features, source.features + len(REMAINDERS))

    @cached_property
    def _products(self) -> SectionInDictionaries | None:
        """Products in advance, for a single section that does not mix positions."""
        if len(self.chain.sections) != 1 or not is_positionwise(self.chain.sections[0]):
            return None
        return SectionInDictionaries.from_layers(
            self.source, self.target, self.chain.sections[0], self.settings.rule
        )

    def add(
        self,
        sums: dict[str, Tensor],
        prefix: str,
        first: int,
        source: LayerTokens,
        target: LayerTokens,
        activations: dict[int, Tensor],
    ) -> None:
        """Add a batch, ``first`` the number of its first sample in the data."""
        totals = EdgeTotals(sums, prefix, self.size, self.settings.positions is not None)
        samples, length = target.counts.shape
        positions = torch.arange(length).expand(samples, -1)
        weight = 1.0
        if self.settings.positions is not None and self.settings.positions < length:
            key = ("edge positions", self.settings.seed, 0)
            positions = random_positions(key, first, samples, self.settings.positions, length)
            weight = length / self.settings.positions
        indices = range(self.source.source_index, self.source.source_index + len(self.chain.sections) + 1)
        inner = [activations[k] for k in indices]
        positions = positions.to(target.counts.device)
        sampled = torch.zeros_like(target.counts).scatter_(1, positions, True) & target.counts
        totals.tokens(int(target.counts.sum()))
        if self.chain.mixes_positions:
            for n in range(samples):
                self._add_sample(totals, source, target, [f[n] for f in inner], (n, sampled[n], weight))
        else:
            here = sampled & source.counts
            self._add_tokens(totals, source, target, [f[here] for f in inner], here, weight)

    def _add_tokens(
        self,
        totals: "EdgeTotals",
        source: LayerTokens,
        target: LayerTokens,
        inner: list[Tensor],
        here: Tensor,
        weight: float,
    ) -> None:
        """Add tokens [n, d] whose sources stand where they stand."""
        z, out = _at(source.active, here), _at(target.active, here)
        vectors = self.source.split(z, source.before[here], source.f[here])
        if self._products is not None:
            remainders = vectors[:, -len(REMAINDERS) :]
            for block, A in self._products.attributions(inner[0], z, remainders, out):
                totals.add_tokens(A, _at(z, block), _at(out, block), weight)
            return
        A = self.chain.attributions_at_tokens(inner, vectors, self.target.rows(out.indices))
        totals.add_tokens(A, z, out, weight)

    def _add_sample(
        self,
        totals: "EdgeTotals",
        source: LayerTokens,
        target: LayerTokens,
        inner: list[Tensor],
        sample: tuple[int, Tensor, float],
    ) -> None:
        """Add a sample whose positions mix, some positions at a time."""
        n, sampled, weight = sample
        z, counts = _at(source.active, n), source.counts[n]
        vectors = self.source.split(z, source.before[n], source.f[n]) * counts[:, None, None]
        pushed = self.chain.push(inner, vectors)
        per_position = target.active.indices.shape[-1] * vectors.shape[0] * vectors.shape[1]
        for positions in sampled.nonzero()[:, 0].split(max(1, MAX_ATTRIBUTIONS // per_position)):
            out = _at(_at(target.active, n), positions)
            A = self.chain.attributions(inner, pushed, self.target.rows(out.indices), positions)
            queries = positions + len(source.f[n]) - len(target.before[n])
            totals.add_positions(A, z, out, counts, queries, weight)


def _at(active: ActiveFeatures, where: Tensor | slice | int) -> ActiveFeatures:
    return ActiveFeatures(active.indices[where], active.values[where], active.real[where])


def _entry(sums: dict[str, Tensor], name: str, size: tuple[int, ...]) -> Tensor:
    if name not in sums:
        sums[name] = torch.zeros(size, dtype=torch.float64)
    return sums[name]


class EdgeTotals:
    """The sums of one pair of dictionaries, [K_out, K_in + 3] each, in a state of `DictionaryEdgesPass`."""

    def __init__(self, sums: dict[str, Tensor], prefix: str, size: tuple[int, int], sampled: bool):
        names = ("squares", "signed", "together", *(["variances"] if sampled else []))
        self.totals = {name: _entry(sums, f"edges.{prefix}{name}", size) for name in names}
        self.count = _entry(sums, f"edges.{prefix}tokens", ())
        self.first_remainder = size[1] - len(REMAINDERS)

    def tokens(self, count: int) -> None:
        """Count tokens, whether or not anything is active there."""
        self.count += count

    def add_tokens(self, A: Tensor, z: ActiveFeatures, out: ActiveFeatures, weight: float) -> None:
        """Add attributions A [n, k_out, k_in + 3] of n tokens."""
        if not len(A):
            return
        remainders = self.first_remainder + torch.arange(len(REMAINDERS))
        columns = torch.cat([z.indices, remainders.expand(len(A), -1)], dim=1)
        visible = torch.nn.functional.pad(z.real, (0, len(REMAINDERS)), value=True)
        both = (out.real[..., None] & visible[:, None]).flatten()
        places = (out.indices[..., None] * self._width + columns[:, None]).flatten()[both]
        values = double(A.flatten()[both])
        for name, total in self.totals.items():
            total.view(-1).index_add_(0, places, _amount(name, values, weight))

    @property
    def _width(self) -> int:
        return self.first_remainder + len(REMAINDERS)

    def add_positions(
        self,
        A: dict[str, Tensor],
        z: ActiveFeatures,
        out: ActiveFeatures,
        counts: Tensor,
        queries: Tensor,
        weight: float,
    ) -> None:
        """Add attributions of one sample's output positions, by path, after summing over input positions.

        Args:
            A: "anywhere" [T, k_in + 3, S·k_out] from all positions, "own" [S, k_out, k_in + 3] from its own.
            z: Active features [T, k_in] of the source.
            out: Active features [S, k_out] of the target.
            counts: Input positions [T] that count.
            queries: Input positions [S] of the outputs.
            weight: Positions that each of them stands for.
        """
        k = z.indices.shape[1]
        real = z.real & counts[:, None]
        distinct, place = z.indices.unique(return_inverse=True)  # [U], [T, k_in]
        rows = out.indices.numel()
        sums = A["anywhere"].new_zeros(len(distinct) + len(REMAINDERS), rows)
        anywhere = A["anywhere"]
        visible = len(anywhere)
        sums.index_add_(0, place[:visible].flatten(), anywhere[:, :k].flatten(0, 1))
        sums[-len(REMAINDERS) :] = anywhere[:, k:].sum(0)
        table = sums.T.reshape(*out.indices.shape, -1)  # [S, k_out, U + 3]
        own, here = A["own"], place[queries][:, None].expand(-1, out.indices.shape[1], -1)
        table.scatter_add_(2, here, own[..., :k])
        table[..., -len(REMAINDERS) :] += own[..., k:]
        first_seen = torch.full((len(distinct),), len(real), device=real.device)
        positions = torch.arange(len(real), device=real.device)[:, None].expand_as(place)
        first_seen.scatter_reduce_(0, place[real], positions[real], "amin")
        seen = first_seen <= queries[:, None]  # [S, U]; j is active where the query can see it
        seen = torch.nn.functional.pad(seen, (0, len(REMAINDERS)), value=True)
        self._add_rows(double(table), distinct, seen, out, weight)

    def _add_rows(
        self, table: Tensor, distinct: Tensor, seen: Tensor, out: ActiveFeatures, weight: float
    ) -> None:  # [S, k_out, U + 3]
        remainders = self.first_remainder + torch.arange(len(REMAINDERS), device=distinct.device)
        columns = torch.cat([distinct, remainders])
        targets, place = out.indices[out.real].unique(return_inverse=True)
        rows, mask = table[out.real], seen[:, None].expand_as(table)[out.real]
        for name, total in self.totals.items():
            amount = weight * mask.double() if name == "together" else _amount(name, rows, weight)
            block = amount.new_zeros(len(targets), len(columns)).index_add_(0, place, amount)
            total[targets[:, None], columns] += block


def _amount(name: str, values: Tensor, weight: float) -> Tensor:
    """Amount that attributions of weight w = T/Q add to a sum."""
    if name == "squares":
        return weight * values.square()
    if name == "signed":
        return weight * values
    if name == "together":
        return torch.full_like(values, weight)
    return weight**2 * (1 - 1 / weight) * values**4
