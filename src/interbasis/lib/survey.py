"""Survey of the first tokens of the data: norms and the direction of largest variance, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from interbasis.base.devices import double, near_sums
from interbasis.base.errors import InterbasisError
from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Executor, chunk_size
from interbasis.data.batches import Batches
from interbasis.graph.interaction_graph import Carrier, LargestDirection
from interbasis.lib.counted_tokens import CountedTokens, norms
from interbasis.lib.statistics import check_runs
from interbasis.network.network import NodeLayer

MAX_TOKENS = 8_192
"""Tokens that are looked at, in whole samples and at least one of these."""
MAX_ELEMENTS = 2**25
"""Numbers that one layer's activations may hold."""
MAX_CARRIERS = 5
"""Positions and tokens that are named."""
MAX_DECOMPOSED = 2048
"""Width up to which a Gram is decomposed as a whole."""
DIRECTIONS, ITERATIONS = 6, 6
"""Directions and iterations of the randomised decomposition of wider Grams."""


@dataclass(frozen=True)
class Survey:
    """Largest directions, and the tokens that count."""

    directions: dict[str, LargestDirection]
    """Largest direction of every node layer described, by its name."""
    counted: CountedTokens
    """Tokens that count in all sums."""


def survey(data: Batches, skip_positions: int, norm_limit: float, executor: Executor) -> Survey:
    """Find medians of norms and largest directions, layer by layer.

    Tokens whose norm exceeds ``norm_limit`` times the median of their layer do not count; 0 is no limit.
    Every process passes over these tokens and describes some of the layers.
    """
    network = executor.network
    look = partial(_look, data, skip_positions, norm_limit, executor)
    _, values = executor.team.share("survey", len(network.nodes), look)
    counted = CountedTokens.from_limits(
        network, skip_positions, tuple(values["limits"]) if norm_limit else ()
    )
    directions = {
        node.name: LargestDirection(**values[str(k)])
        for k, node in enumerate(network.nodes)
        if str(k) in values
    }
    return Survey(directions, counted)


@torch.no_grad()
def _look(
    batches: Batches, skip_positions: int, norm_limit: float, executor: Executor, described: Sequence[int]
) -> State:
    """The norm limit of every layer, and descriptions of the layers ``described``, by number."""
    network = executor.network
    runs = _first(batches, executor)
    fs = [network.prefix(inputs.to(network.device)) for inputs in runs]
    limits: list[float] = []
    descriptions: dict[str, object] = {}
    positions_only = CountedTokens.from_limits(network, skip_positions, ())
    for k, node in enumerate(network.nodes):
        if not all(f.isfinite().all() for f in fs):
            check_runs(node.name, fs, batches.name, batches.offset)
        sizes = double(torch.cat([norms(node, f).flatten() for f in fs]))
        if not sizes.isfinite().all():
            largest = max(f.abs().max().item() for f in fs)
            raise InterbasisError(
                f"activations at node layer {node.name!r} reach {largest:.1e}, too large to be squared "
                f"in {str(network.dtype).removeprefix('torch.')}; scale {batches.name} down"
            )
        limit = norm_limit * sizes.median().item() if norm_limit else torch.inf
        limits.append(limit)
        if k in described:
            counts = near_sums(torch.cat([positions_only.at(k, node, f).flatten() for f in fs]))
            counts = counts & (sizes <= limit)
            descriptions[str(k)] = _describe(node, fs, runs, sizes, counts, limit).model_dump()
        executor.progress("survey", k + 1, len(network.nodes))
        if k < len(network.sections):
            fs = [network.sections[k](f) for f in fs]
    return {}, descriptions | {"limits": limits}


def _first(batches: Batches, executor: Executor) -> list[Tensor]:
    """The first samples, in chunks of one length each."""
    network, runs = executor.network, list[Tensor]()
    tokens = 0
    positions = network.prefix(batches.first().to(network.device)).shape[1]
    most = min(MAX_TOKENS, MAX_ELEMENTS // max(node.width for node in network.nodes))
    size = max(1, min(chunk_size(network, batches, fine=True, limit=executor.chunk_bytes), most // positions))
    for _, inputs in batches.chunks(size):
        room = max(1 if not runs else 0, (most - tokens) // positions)
        if not room:
            break
        runs.append(inputs[:room])
        tokens += positions * len(runs[-1])
    return runs


def _describe(
    node: NodeLayer, fs: list[Tensor], runs: list[Tensor], sizes: Tensor, counts: Tensor, limit: float
) -> LargestDirection:
    first = node.first_coordinate + node.isolated
    x = near_sums(torch.cat([f[..., first:].flatten(0, 1) for f in fs]))  # [tokens, w]
    share, squares = largest_share(x)
    within = share if counts.all() else largest_share(x[counts])[0] if counts.any() else 0.0
    positions = [torch.arange(f.shape[1], device=f.device).expand(f.shape[:2]).flatten() for f in fs]
    tokens = [_tokens(inputs, f) for inputs, f in zip(runs, fs, strict=True)]
    known = [indices for indices in tokens if indices is not None]
    return LargestDirection(
        share=share,
        share_counted=within,
        left_out=1 - counts.double().mean().item(),
        norm_limit=limit if limit < torch.inf else None,
        median_norm=sizes.median().item(),
        largest_norm=sizes.max().item(),
        positions=_carriers(near_sums(torch.cat(positions)), squares) if fs[0].shape[1] > 1 else (),
        tokens=_carriers(near_sums(torch.cat(known)), squares) if len(known) == len(tokens) else (),
    )


def largest_share(x: Tensor) -> tuple[float, Tensor]:  # [n, w] -> share, [n]
    """Share of the variance along the largest direction, and every row's square along it.

    The direction is that of the Gram in the network's own precision, which is enough to say where it points;
    the share itself is taken in float64.
    """
    centred = x - x.mean(0)
    total = centred.double().square().sum().item()
    if not total:
        return 0.0, x.new_zeros(len(x), dtype=torch.float64)
    scaled = centred / centred.abs().max()
    wide = scaled.shape[1] > len(scaled)
    v = _first_eigenvector(scaled @ scaled.T if wide else scaled.T @ scaled)
    if wide:
        v = scaled.double().T @ v
        v = v / v.norm()
    squares = (centred.double() @ v).square()
    return squares.sum().item() / total, squares


def _first_eigenvector(gram: Tensor) -> Tensor:  # [m, m] -> [m], float64
    gram = gram.double()
    if len(gram) <= MAX_DECOMPOSED:
        return torch.linalg.eigh(gram).eigenvectors[:, -1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.svd_lowrank(gram, DIRECTIONS, niter=ITERATIONS)[0][:, 0]


def _tokens(inputs: Tensor, f: Tensor) -> Tensor | None:
    """The number in the vocabulary of every token at a layer; None where inputs are no tokens."""
    if inputs.is_floating_point() or inputs.ndim != 2 or inputs.shape[1] < f.shape[1]:
        return None
    return inputs[:, inputs.shape[1] - f.shape[1] :].flatten().to(f.device)


def _carriers(indices: Tensor, squares: Tensor) -> tuple[Carrier, ...]:
    """The indices whose rows carry most of a direction."""
    total = squares.sum().item()
    if not total:
        return ()
    different, place = indices.unique(return_inverse=True)
    sums = squares.new_zeros(len(different)).index_add_(0, place, squares)
    top = sums.topk(min(MAX_CARRIERS, len(sums)))
    return tuple(
        Carrier(index=int(different[k]), share=value / total)
        for value, k in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    )
