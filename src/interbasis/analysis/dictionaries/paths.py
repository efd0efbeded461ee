"""Why one feature acts on another: the attributions of a pair of features by head and path of attention.

At every token where the target is active and the source is, there or earlier, the attribution is the sum of
a part that passes attention by (skip) and, for every head, of what it moves (value), why it is attended to
(key) and why the token attends (query). Over these tokens the root mean square and the mean of every part are
kept.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from interbasis.analysis.dictionaries.steer import parse_feature
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import progress_bar
from interbasis.base.records import Record
from interbasis.data.batches import Batches
from interbasis.dictionaries.chain import PATHS, Chain
from interbasis.dictionaries.layers import ActiveFeatures, DictionaryLayer
from interbasis.network.network import Network
from interbasis.numerics.integration import rule

if TYPE_CHECKING:
    from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace


class PathsRequest(Record):
    """Request for the heads and paths of one edge."""

    source: str
    """Feature of a dictionary, as LAYER:NUMBER."""
    target: str
    """Feature of the next dictionary, as LAYER:NUMBER."""
    data: str | None = None
    """Data by name; default: those of the build."""
    samples: int = Field(100, ge=1)
    """First samples of the data that are looked through."""


class PathStrength(Record):
    """Strength of a part of an edge over tokens."""

    rms: float
    mean: float
    """With its sign."""


class HeadPaths(Record):
    """Parts of an edge through one head."""

    head: int
    value: PathStrength
    key: PathStrength
    query: PathStrength


class EdgePaths(Record):
    """An edge by head and path, over the tokens where target and source are active."""

    source: str
    target: str
    tokens: int
    total: PathStrength
    skip: PathStrength
    heads: tuple[HeadPaths, ...]


def edge_paths(workspace: "DictionaryWorkspace", request: PathsRequest) -> EdgePaths:
    """Split an edge by head and path.

    Raises:
        InterbasisError: The features are not of neighbouring dictionaries with one attention between them,
            or are nowhere active together.
    """
    (k, j), (m, i) = (parse_feature(workspace, name) for name in (request.source, request.target))
    if m != k + 1:
        raise InterbasisError(
            f"expected features of neighbouring dictionaries, received {request.source} and {request.target}"
        )
    network, (source, target) = workspace.computing, workspace.layers[k : k + 2]
    config = workspace.graph.header.config
    sections = (*network.sections[source.source_index : target.index], *target.through)
    chain = Chain(sections, rule(config.edge_method, config.edge_points))
    if not chain.heads:
        raise InterbasisError(
            f"heads are told apart where one attention lies between two dictionaries; between {source.name} "
            f"and {target.name} there is none, or several"
        )
    batches = Batches(workspace.data(request.data, "train"))
    batches = batches.head(min(request.samples, len(batches)))
    with progress_bar(workspace.progress) as advance:
        chunks = batches.tracked(batches.chunks(1), "paths", advance)
        found = [
            parts
            for _, inputs in chunks
            for parts in split_sample(network, chain, (source, j), (target, i), inputs.to(network.device))
        ]
    if not found:
        raise InterbasisError(
            f"{request.source} and {request.target} are nowhere active together in the first "
            f"{len(batches):,} samples; give more with --samples, or choose another edge"
        )
    parts = torch.cat(found, dim=1)  # [1 + 3 H, tokens]
    strengths = [
        PathStrength(rms=row.square().mean().sqrt().item(), mean=row.mean().item())
        for row in (parts.sum(0), *parts)
    ]
    total, skip, *rest = strengths
    heads = [
        HeadPaths(head=h, value=value, key=key, query=query)
        for h, (value, key, query) in enumerate(zip(rest[::3], rest[1::3], rest[2::3], strict=True))
    ]
    return EdgePaths(
        source=request.source, target=request.target, tokens=parts.shape[1], total=total, skip=skip,
        heads=tuple(heads),
    )  # fmt: skip


@torch.no_grad()
def split_sample(
    network: Network,
    chain: Chain,
    source: tuple[DictionaryLayer, int],
    target: tuple[DictionaryLayer, int],
    inputs: Tensor,
) -> Iterator[Tensor]:  # [1 + 3 H, tokens]
    """Skip, then value, key and query of every head, at the tokens of one sample where the edge is active."""
    (before, j), (after, i) = source, target
    read = network.activations_at(before.index, inputs)
    f = network.activations_at(before.source_index, inputs)
    inner = [x[0] for x in chain.activations(f)]
    z = _values(before.encode(read), j)  # [T]
    out = _values(after.encode(inner[-1 - len(after.through)][None]), i)
    seen = (z != 0).cumsum(0).bool()
    positions = ((out != 0) & seen[len(z) - len(out) :]).nonzero()[:, 0]
    if not len(positions):
        return
    vectors = inner[0].new_zeros(len(z), 1, inner[0].shape[1])
    vectors[:, 0, before.source_columns] = z[:, None] * before.dictionary.decoder[j]
    pushed = chain.push(inner, vectors)
    rows = after.rows(torch.tensor(i, device=f.device)).expand(len(positions), 1, -1)
    parts: list[Tensor] = []
    for head in range(chain.heads):
        paths = chain.paths(inner, pushed, rows, positions, head=head)
        if not head:
            parts.append(paths["skip"][:, 0, 0])
        parts += [paths[name][:, 0, 0] if name == "query" else paths[name].sum((0, 1)) for name in PATHS[1:]]
    yield torch.stack(parts).double()


def _values(active: ActiveFeatures, feature: int) -> Tensor:  # [T]
    """Activations of one feature in one sample."""
    return torch.where((active.indices == feature) & active.real, active.values, 0.0).sum(-1)[0]
