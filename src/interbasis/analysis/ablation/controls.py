"""Controls: what else would look as sparse?

The same curves for every basis, for networks of the same shape that learnt nothing, and for edges ranked at
random; and for the edges that the graph declares unneeded, what becomes of the model when only a part of them
goes.

Networks that learnt nothing, of the same shape: what sparsity looks like without a function.

The weights are changed in the model that a network was made from, and the model is converted again
(`Network.remake`). What belongs to the architecture stays what it is: activations, residual paths, norms.
`interbasis.models.matrices` says what counts as a weight matrix.

Does the graph only work when *all* unneeded edges are gone?

Edges whose ablation does no harm together may do harm in parts: two that cancel each other, say. So random
halves of them are ablated, and a short search looks for a bad half: it ranks groups of unneeded edges by the
damage that ablating each alone does, takes the worse half of the groups, and exchanges groups as long as it
gets worse.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from interbasis.analysis.ablation.curves import interaction_sparsity, sparsity_curves
from interbasis.analysis.ablation.evaluation import Evaluation, passes
from interbasis.analysis.ablation.records import Control, RequiredCount, Stress, ToleranceError
from interbasis.analysis.ablation.search import Search
from interbasis.analysis.stages.controls import ControlsRequest
from interbasis.base.devices import double
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.data.batches import Batches, Data
from interbasis.data.samples import IGNORED_LABEL, Samples
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.settings import BASIS_KINDS, BuildConfig
from interbasis.lib.build import build_alone
from interbasis.network.network import Change, Network


def shuffled(network: Network, seed: int = 0) -> Network:
    """Every weight matrix with its entries in random order; biases, norms and embeddings stay."""
    generator = torch.Generator().manual_seed(seed)

    def permuted(matrix: Tensor) -> Tensor:
        order = torch.randperm(matrix.numel(), generator=generator)
        return matrix.flatten()[order.to(matrix.device)].view_as(matrix)

    return require_remake(network)(permuted)


def reinitialised(network: Network, seed: int = 0) -> Network:
    """Every weight matrix drawn from a Gaussian with its own standard deviation."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(matrix: Tensor) -> Tensor:
        values = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
        return (values * double(matrix).std().cpu()).to(matrix)

    return require_remake(network)(drawn)


def require_remake(network: Network) -> Callable[[Change], Network]:
    """Return the network's ``remake``, after checking that it reproduces the network from its own weights."""
    if network.remake is None:
        raise InterbasisError(
            "expected a network that can be made again with other weights, received one put together from "
            "sections, whose weights cannot be distinguished from their structure; give the Network "
            "remake=function, where function(change) returns it with change(W) in place of every weight "
            "matrix W, or leave scrambled networks out with scrambles=0"
        )
    if network.remake(torch.clone).fingerprint() != network.fingerprint():
        raise InterbasisError(
            "the model that this network was made from now gives another network: its weights, or the "
            "network's sections, were changed since; convert the model again"
        )
    return network.remake


RANDOM_HALVES = 8
GROUPS = 12
"""Groups of unneeded edges that the search for a bad half takes or leaves."""
EXCHANGES = 6
"""Exchanges of two groups that it tries."""


def stress(
    evaluation: Evaluation,
    section: int,
    mask: Tensor,
    limit: float,
    seed: int = 0,
    progress: Progress = silent,
) -> Stress:
    """Ablate parts of what ``mask`` leaves out, for one section."""
    unneeded = (~mask).flatten().nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    total = RANDOM_HALVES + min(GROUPS, len(unneeded)) + EXCHANGES + 2
    values: list[float] = []

    def value(gone: Tensor, counts: bool = True) -> float:
        remaining = torch.ones(mask.numel(), dtype=torch.bool)
        remaining[gone.cpu()] = False
        metric = evaluation.edges({section: remaining.view_as(mask)}).value
        if counts:
            values.append(metric)
        progress(f"stress, section {section}", min(len(values) + 1, total), total)
        return metric

    all_ablated = value(unneeded, counts=False)
    if len(unneeded) > 1:
        for _ in range(RANDOM_HALVES):
            order = torch.randperm(len(unneeded), generator=generator)
            value(unneeded[order[: len(unneeded) // 2]])
        _search(unneeded, value, generator, evaluation.metric == "accuracy")
    worst = min if evaluation.metric == "accuracy" else max
    return Stress(
        unneeded=len(unneeded),
        all_ablated=all_ablated,
        halves=tuple(values[:RANDOM_HALVES]),
        worst_half=worst(values or [all_ablated]),
        limit=limit,
        failed=sum(not passes(evaluation.metric, v, limit) for v in values),
        tried=len(values),
    )


def _search(
    unneeded: Tensor,
    value: Callable[[Tensor, bool], float],
    generator: torch.Generator,
    higher_is_better: bool,
) -> None:
    """Call ``value`` on ever worse halves."""
    groups: Sequence[Tensor] = unneeded[torch.randperm(len(unneeded), generator=generator)].chunk(GROUPS)
    sign = 1 if higher_is_better else -1
    alone = [sign * value(group, False) for group in groups]
    order = sorted(range(len(groups)), key=alone.__getitem__)
    chosen, remaining = order[: len(groups) // 2], order[len(groups) // 2 :]

    def badness(numbers: list[int]) -> float:
        return sign * value(torch.cat([groups[k] for k in numbers]), True)

    best = badness(chosen) if chosen else 0.0
    for _ in range(EXCHANGES if chosen else 0):
        out, into = (int(torch.randint(len(x), (1,), generator=generator)) for x in (chosen, remaining))
        changed, other = chosen.copy(), remaining.copy()
        changed[out], other[into] = remaining[into], chosen[out]
        metric = badness(changed)
        if metric < best:
            best, chosen, remaining = metric, changed, other


SCRAMBLES: dict[Literal["shuffled", "reinitialised"], Callable[..., Network]] = {
    "shuffled": shuffled, "reinitialised": reinitialised,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class ControlPlan:
    """The controls that are to be made."""

    network: Network
    fit_data: Data
    data: Data
    request: ControlsRequest
    build: BuildConfig = field(default_factory=BuildConfig)
    """Settings of all graphs, apart from the basis and the seed."""
    progress: Progress = silent

    def __post_init__(self) -> None:
        odd = [name for name in (*self.request.bases, *self.request.stressed) if name not in BASIS_KINDS]
        if odd:
            raise InterbasisError(f"expected bases of {', '.join(BASIS_KINDS)}, received {', '.join(odd)}")
        if self.request.scrambles:
            require_remake(self.network)  # before the minutes of work that come first

    def rows(self) -> Iterator[tuple[str, Callable[[], Control]]]:
        """Yield (name, function that makes the row), so that rows that are known can be left out."""
        bases, scrambles, first = self.request.bases, self.request.scrambles, self.request.seed
        for basis in bases:
            evaluated = cache(partial(self._evaluated, basis))  # for two rows
            yield basis, partial(self._row, basis, "trained", evaluated)
            if basis == bases[0]:
                title = f"{basis}, edges ranked at random"
                yield title, partial(self._row, title, "trained", evaluated, random=True)
        for kind, scramble in SCRAMBLES.items():
            for seed in range(first, first + scrambles):
                title = f"{bases[0]}, {kind} weights{f', seed {seed}' if scrambles > 1 else ''}"
                scrambled = partial(self._evaluated, bases[0], partial(scramble, seed=seed))
                yield title, partial(self._row, title, kind, scrambled)

    def _evaluated(
        self, basis: str, scramble: Callable[[Network], Network] | None = None
    ) -> tuple[Network, InteractionGraph, Data]:
        """The network, its graph, and data; those of a scrambled network have its own answers as labels."""
        network = scramble(self.network) if scramble else self.network
        settings = self.build.model_copy(update={"basis": basis, "seed": self.request.seed})
        graph = build_alone(network, self.fit_data, settings, self.progress)
        if scramble is None:
            return network, graph, self.data
        return network, graph, with_predicted_labels(network.to(graph.config.torch_dtype), self.data)

    def _row(
        self,
        name: str,
        kind: Literal["trained", "shuffled", "reinitialised"],
        evaluated: Callable[[], tuple[Network, InteractionGraph, Data]],
        random: bool = False,
    ) -> Control:
        request, progress, (network, graph, data) = self.request, self.progress, evaluated()
        ranking = None
        if random:
            generator = torch.Generator().manual_seed(request.seed)
            ranking = [torch.rand(edges.shape, generator=generator) for edges in graph.edges]
        control = Control(
            name=name,
            basis=graph.config.basis,
            network=kind,
            ranking="random" if random else "Ê",
            curves=sparsity_curves(
                network, graph, data, request.metric, ranking=ranking, seed=request.seed, progress=progress
            ),
            sparsity={} if random else {row.source: row for row in interaction_sparsity(graph)},
        )
        if random or control.basis not in request.stressed:
            return control
        search = Search(Evaluation(network, graph, data, request.metric), request.tolerance)
        try:
            required = search.all_edges(progress=progress)
        except ToleranceError:
            if kind == "trained":
                raise
            return control  # directions that its basis dropped decide some of its answers
        counts = {r.source: RequiredCount(count=r.count, stable_count=r.stable_count) for r in required}
        stressed = {
            edges.source: stress(search.evaluation, k, edges.mask, search.limit, request.seed, progress)
            for k, edges in enumerate(required if kind == "trained" else ())
        }
        return control.model_copy(update={"required": counts, "stress": stressed})


def with_predicted_labels(network: Network, data: Data) -> Samples:
    """Return the inputs with the network's predictions as labels, which may well be the inputs themselves.

    Padding has no answer.
    """
    batches = Batches(data)
    inputs = torch.cat([chunk for _, chunk in batches.chunks(1024, padded=True)])
    with torch.no_grad():
        answers = [
            network(chunk.to(network.device)).argmax(-1).cpu()
            for _, chunk in batches.chunks(1024, padded=network.predicts_next)
        ]
    if batches.lengths is None or answers[0].ndim == 1:
        labels = torch.cat(answers)
    else:  # an answer for every position, none where a sample has ended
        positions = inputs.shape[1]
        pad = torch.nn.functional.pad
        labels = torch.cat([pad(chunk, (0, positions - chunk.shape[1])) for chunk in answers])
        labels[torch.arange(positions) >= batches.lengths[:, None]] = IGNORED_LABEL
    return Samples.from_tensors(inputs, labels, lengths=batches.lengths)
