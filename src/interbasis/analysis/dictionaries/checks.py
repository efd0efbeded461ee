"""Do edges predict? A source feature is set to 0 at one token, and the target's pre-activation is measured.

For each of the strongest edges from j to i, a token of the data is drawn at which i is active and j is active
there or earlier. The attribution of i at that token to j at one position predicts what i loses when j is set
to 0 at that position alone; the rest of the chain is then computed again. Beside it, two usual predictions:
the product of decoder and encoder, W′_i · W_d,j z_j, which knows neither attention nor MLP; and the
attribution with the attention pattern frozen, without its key and query paths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from interbasis.analysis.dictionaries.trace import spearman
from interbasis.analysis.stored_results import DataUsed, Result
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Measured, Record
from interbasis.data.batches import Batches, Data
from interbasis.dictionaries.chain import Chain, PushedVectors
from interbasis.dictionaries.graph import SparseEdges
from interbasis.dictionaries.layers import ActiveFeatures, DictionaryLayer
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.network.network import Network
from interbasis.numerics.integration import rule

if TYPE_CHECKING:
    from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace


class EdgePrediction(Record):
    """Agreement of one kind of prediction with interventions."""

    sign_agreement: Measured
    correlation: Measured
    """Spearman's rank correlation."""


class EdgeChecks(Record):
    """Predictions of single-token interventions on the strongest edges."""

    source: str
    target: str
    edges: int
    """Edges that were found active in the data."""
    attributions: EdgePrediction
    frozen: EdgePrediction
    """Without the key and query paths of attention."""
    weights: EdgePrediction
    """Decoder times encoder."""


class EdgeChecksResult(Result):
    """Agreement of the strongest edges with interventions, for every pair."""

    file: ClassVar[str] = "edge_checks"
    command: ClassVar[str] = "dictionary check"

    data: DataUsed
    pairs: tuple[EdgeChecks, ...]


def check_all_edges(workspace: "DictionaryWorkspace", data: str, count: int) -> EdgeChecksResult:
    """Check the strongest edges of every pair of a graph, and store the result."""
    samples = workspace.data(data)
    pairs = [
        check_edges(workspace.computing, layers, edges, samples, count=count, counted=workspace.counted)
        for layers, edges in zip(pairwise(workspace.layers), workspace.graph.edges, strict=True)
    ]
    result = EdgeChecksResult(data=DataUsed.from_data(samples), pairs=tuple(pairs))
    workspace.store(result)
    return result


@torch.no_grad()
def check_edges(
    network: Network,
    layers: Sequence[DictionaryLayer],
    edges: SparseEdges,
    data: Data,
    *,
    count: int = 200,
    seed: int = 0,
    counted: CountedTokens = ALL_TOKENS,
) -> EdgeChecks:
    """Check the strongest edges between two dictionaries on data that they were not measured on.

    Args:
        network: The network.
        layers: The two dictionaries at their places.
        edges: Edges between them, the strongest first.
        data: Inputs.
        count: Edges to check.
        seed: Seed of the choice of tokens.
        counted: Tokens at which edges are checked.

    Raises:
        InterbasisError: No edge is active in the data.
    """
    source, target = layers
    sections = (*network.sections[source.source_index : target.index], *target.through)
    chain = Chain(sections, rule("gradient"))
    waiting = list(zip(edges.source[:count].tolist(), edges.target[:count].tolist(), strict=True))
    generator = torch.Generator().manual_seed(seed)
    rows: list[tuple[float, float, float, float]] = []
    for _, inputs in Batches(data).chunks(1):
        if not waiting:
            break
        before = network.activations_at(source.index, inputs.to(network.device))
        f = before
        for section in network.sections[source.index : source.source_index]:
            f = section(f)
        inner = [x[0] for x in chain.activations(f)]
        read = inner[-1 - len(target.through)][None]
        z, out = (
            _first(layer.encode(g).at(counted.at(index, network.nodes[index], at)))
            for layer, g, index, at in (
                (source, before, source.source_index, f), (target, read, target.index, read)
            )
        )  # fmt: skip
        vectors = source.split(z, before[0], inner[0])
        pushed = chain.push(inner, vectors) if chain.mixes_positions else PushedVectors(vectors, None)
        sample = _Sample(chain, source, target, z, out, inner, vectors, pushed)
        found = [(edge, sample.check(*edge, generator)) for edge in waiting]
        rows += [row for _, row in found if row is not None]
        waiting = [edge for edge, row in found if row is None]
    if not rows:
        raise InterbasisError("none of the strongest edges is active in these data; give more of them")
    measured, *predictions = torch.tensor(rows, dtype=torch.float64).T
    names = ("attributions", "frozen", "weights")
    return EdgeChecks(
        source=source.name, target=target.name, edges=len(rows),
        **{
            name: EdgePrediction(
                sign_agreement=(x.sign() == measured.sign()).double().mean().item(),
                correlation=spearman(x, measured),
            )
            for name, x in zip(names, predictions, strict=True)
        },
    )  # fmt: skip


def _first(active: ActiveFeatures) -> ActiveFeatures:
    return ActiveFeatures(active.indices[0], active.values[0], active.real[0])


@dataclass(frozen=True, eq=False)
class _Sample:
    """One sample at the ends of the chain between two dictionaries."""

    chain: Chain
    source: DictionaryLayer
    target: DictionaryLayer
    z: ActiveFeatures  # [T, k_in]
    out: ActiveFeatures  # [T, k_out]
    activations: list[Tensor]  # [T, d_l]
    vectors: Tensor  # [T, k_in + 3, d_0]
    pushed: PushedVectors

    def check(self, j: int, i: int, generator: torch.Generator) -> tuple[float, float, float, float] | None:
        """Loss of i without j at one position, and three predictions; None where they are not active."""
        at_sources = ((self.z.indices == j) & self.z.real).nonzero()  # [a, 2]: position, place
        at_targets = ((self.out.indices == i) & self.out.real).nonzero()[:, 0]
        pairs = [
            (t, m, s)
            for t, m in at_sources.tolist()
            for s in at_targets.tolist()
            if (t <= s if self.chain.mixes_positions else t == s)
        ]
        if not pairs:
            return None
        t, m, s = pairs[int(torch.randint(len(pairs), (1,), generator=generator))]
        row, at = self.target.rows(torch.tensor(i))[None, None], torch.tensor([s])
        if self.chain.mixes_positions:
            paths = self.chain.paths(self.activations, self.pushed, row, at)
            parts = {
                name: (part[0, 0, m] * (t == s) if name in ("skip", "query") else part[t, m, 0]).item()
                for name, part in paths.items()
            }
        else:
            here = [f[at] for f in self.activations]
            A = self.chain.attributions_at_tokens(here, self.vectors[at], row)
            parts = {"total": A[0, 0, m].item()}
        changed = self.activations[0].clone()
        changed[t] -= self.vectors[t, m]
        after = self.chain.activations(changed[None])[-1][0, s]
        lost = (row[0, 0] @ (self.activations[-1][s] - after)).item()
        frozen = sum(value for name, value in parts.items() if name not in ("key", "query"))
        read, written = row[0, 0, self.target.columns], self.vectors[t, m, self.source.source_columns]
        weights = (read @ written).item() if len(read) == len(written) else 0.0
        return lost, sum(parts.values()), frozen, weights
