"""Which expert carries an edge: the attributions of a pair of features by expert of the mixture between them.

The attribution of a token is the sum of a part that passes the mixture by (skip) and, for every expert that
the token visits, of what changes its weighted output w_e (D_e h_e + b_e) while those of all others are held.
The share of an expert is Σ A_e A / Σ A², over tokens; the shares of all experts and of the skip add up to 1.
"""

from typing import TYPE_CHECKING

import torch

from interbasis.analysis.prompts import parse_feature
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Record
from interbasis.data.batches import Batches, Data
from interbasis.lib.coordinates import in_basis, section_in_bases, source_transforms
from interbasis.network.cores import Experts

if TYPE_CHECKING:
    from interbasis.analysis.workspace import Workspace


class ExpertShare(Record):
    """Part of an edge through one expert."""

    expert: int
    """Number of the expert; those that all tokens visit come after the others."""
    tokens: int
    """Tokens that visit it."""
    share: float
    """Share of Ê², negative where it acts against the whole."""


class EdgeExperts(Record):
    """An edge by expert, over the tokens of some samples."""

    source: str
    target: str
    tokens: int
    rms: float
    """Ê over these tokens."""
    skip: float
    """Share of what passes the experts by."""
    experts: tuple[ExpertShare, ...]
    """The largest share first; experts that no token visits are left out."""


@torch.no_grad()
def edge_experts(
    workspace: "Workspace", source: str, target: str, data: Data | None, samples: int
) -> EdgeExperts:
    """Split an edge by expert, by the edge method of the graph, over the first samples of the data.

    Raises:
        InterbasisError: The features are not of neighbouring layers with experts between them.
    """
    graph, network = workspace.graph, workspace.network
    (layer, j), (end, i) = (parse_feature(graph, name) for name in (source, target))
    k = graph.layer_names.index(layer.name)
    core = network.sections[k].core if k < len(network.sections) else None
    if not isinstance(core, Experts) or graph.layer_names[k + 1] != end.name:
        mixtures = [s.source.name for s in network.sections if isinstance(s.core, Experts)]
        raise InterbasisError(
            f"expected an edge across experts, from a feature of {' or '.join(mixtures) or 'a mixture'} to "
            f"the layer after it, received {source} → {target}"
        )
    integral = graph.config.edge_rule
    if integral is None:
        raise InterbasisError("the graph was built without edges; build it with an edge method")
    section = section_in_bases(network, graph.layers, k)
    transform = source_transforms(network, graph.layers)[k]
    batches = Batches(workspace.data(None, "train") if data is None else data)
    batches = batches.head(min(samples, len(batches)))
    chunks, visits = [], torch.zeros(len(core.experts), dtype=torch.int64)
    for _, inputs in batches.chunks(1):
        f = in_basis(network.activations(inputs.to(network.device))[k], transform)
        u, f = (x[:, section.outputs(f)].flatten(0, 1) for x in (section.read_outs(f), f))
        parts = core.attributions_by_expert(u, f[:, j], section.read[:, j], section.write[i], integral)
        chunks.append(torch.cat([section.skip[i, j] * f[None, :, j], parts]).double().cpu())
        visited = core.router.visits(u @ core.router.weight.T).experts.flatten()
        visits += visited.bincount(minlength=len(visits)).cpu()
    parts = torch.cat(chunks, dim=1)  # [1 + experts, tokens]
    whole = parts.sum(0)
    shares = (parts @ whole) / whole.square().sum().clamp_min(1e-300)
    rows = [
        ExpertShare(expert=e, tokens=count, share=share)
        for e, (count, share) in enumerate(zip(visits.tolist(), shares[1:].tolist(), strict=True))
        if count
    ]
    return EdgeExperts(
        source=source, target=target, tokens=parts.shape[1], rms=whole.square().mean().sqrt().item(),
        skip=shares[0].item(), experts=tuple(sorted(rows, key=lambda row: -abs(row.share))),
    )  # fmt: skip
