"""Interaction edges: integrated-gradient attributions between the features of neighbouring layers.

In the coordinates of two bases a section is F̂(f̂) = P̂ f̂ + B̂ · core(Â f̂), and for a sample x

    A_is,j(x) = Σ_t f̂_jt ∫₀¹ dα [∂F̂_is/∂z_jt] at z = α f̂        attribution of output i, s to input j
    Ê_ij² = (1/nT) Σ_x Σ_s A_is,j(x)²                            edge, T the number of input positions.

The core gives Σ_t N̄_st Â_j f̂_jt for all tokens at once; the rest is one matrix product. Cheaper and
unbiased for Ê²: give every token (sample and output position) a random sign φ, and square signed sums over
groups of tokens, Σ_x,s A² = E_φ Σ_groups (Σ φ A)².
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interbasis.data.batches import Batches, Data
from interbasis.fit.statistics import check_finite, chunks
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.cores.core import into_groups
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import Rule, rule
from interbasis.numerics.random_signs import Sources, random_positions, random_signs
from interbasis.runtime.checkpoints import NO_CHECKPOINTS, Checkpoints, State
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Method
from interbasis.runtime.progress import Progress, silent

BUDGET = 2**19
"""Elements that one block of attributions may hold: few enough to stay in the cache while squared."""

AT_LEAST = 8
"""Tokens in a block, however large they are."""


@dataclass(frozen=True)
class EdgeSettings:
    """How edges are measured: the integration rule, and stochastic sources or None for exact sums."""

    rule: Rule
    sources: Sources | None = None


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of one section."""

    rms: Tensor
    """Ê [features_out, features_in]."""
    error: Tensor | None = None
    """Standard error of Ê from the stochastic sources, same shape; None where the sum was exact."""


@dataclass
class EdgeSums:
    """Sums over data from which edges follow; those of other data can be merged in."""

    square: Tensor  # Σ A² or its estimate  [r_out, r_in]
    variance: Tensor | None  # of that estimate, None where it is exact
    tokens: int = 0  # n·T, input positions

    @classmethod
    def zero(cls, section: Section, estimated: bool) -> "EdgeSums":
        zeros = torch.zeros_like(section.skip, dtype=torch.float64)
        return cls(zeros, zeros.clone() if estimated else None)

    def merge(self, other: "EdgeSums") -> None:
        self.square = self.square + other.square
        self.tokens += other.tokens
        if self.variance is not None and other.variance is not None:
            self.variance = self.variance + other.variance

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any], k: int) -> None:
        """Take up the sums of section k from a state, where there is one."""
        if not tensors:
            return
        self.square = tensors[f"square.{k}"].to(self.square)
        self.tokens = values["tokens"][k]
        if self.variance is not None:
            self.variance = tensors[f"variance.{k}"].to(self.variance)

    @property
    def edges(self) -> Edges:
        rms = (self.square / self.tokens).sqrt().cpu()
        if self.variance is None:
            return Edges(rms)
        # error of a root: σ(Ê) = σ(Ê²) / 2Ê
        error = (self.variance.sqrt() / self.tokens).cpu() / (2 * rms)
        return Edges(rms, torch.where(rms > 0, error, 0.0))


def edges(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data,
    method: Method = "gradient",
    *,
    points: int = 16,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Ê of every section, [features_out, features_in] each, for any bases of the network's node layers.

    ``method`` is ``gradient`` (the integrand at α = 1, as in the paper), ``exact`` (the closed form of the
    integral where a core has one), ``quadrature`` (Gauss–Legendre with ``points`` nodes) or ``trapezoid``.
    """
    sums = measure(network.to(dtype), layers, Batches(data), EdgeSettings(rule(method, points)))
    return [section.edges.rms for section in sums]


def estimate_edges(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data,
    sources: Sources,
    method: Method = "gradient",
    *,
    points: int = 16,
    dtype: torch.dtype = torch.float64,
) -> list[Edges]:
    """Ê of every section estimated with stochastic sources, each with its standard error."""
    sums = measure(network.to(dtype), layers, Batches(data), EdgeSettings(rule(method, points), sources))
    return [section.edges for section in sums]


@torch.no_grad()
def measure(
    network: Network,
    layers: Sequence[LayerBasis],
    batches: Batches,
    settings: EdgeSettings,
    progress: Progress = silent,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> list[EdgeSums]:
    """Sums for the edges of all sections in one pass over the data, exact or with stochastic sources.

    Of data split over processes every part but the last should hold a whole number of groups.
    """
    integral, sources = settings.rule, settings.sources
    if sources is not None:
        require_fixed_order(batches)
    sections = sections_in_bases(network, layers)
    sums = [EdgeSums.zero(section, sources is not None) for section in sections]
    whole = _whole_groups(network, batches, sources)
    checkpoint = checkpoints.checkpoint("edges", len(batches))
    for k, total in enumerate(sums):
        total.restore(checkpoint.tensors, checkpoint.values, k)
    transforms = _transforms(network, layers)
    longest = network.prefix(batches.first().to(network.device)).shape[1]
    for first, activations in _passes(network, batches, whole, checkpoint.done):
        for k, (section, f) in enumerate(zip(sections, activations, strict=True)):
            _add(sums[k], section, f, integral, sources, (k, first, longest), transforms[k])
        done = first + len(activations[0]) - batches.offset
        checkpoint.save(done, lambda: _state(sums))
        progress("edges", done, len(batches))
    return sums


def _state(sums: Sequence[EdgeSums]) -> State:
    """All sums, to go on from."""
    tensors = {f"square.{k}": total.square for k, total in enumerate(sums)}
    tensors |= {f"variance.{k}": v for k, total in enumerate(sums) if (v := total.variance) is not None}
    return tensors, {"tokens": [total.tokens for total in sums]}


def _whole_groups(network: Network, batches: Batches, sources: Sources | None) -> int:
    """The fewest samples that hold a whole number of groups in every section."""
    if sources is None or sources.group == "positions":
        return 1
    outputs = [f.shape[1] for f in network.activations(batches.first().to(network.device))[1:]]
    if sources.positions is not None:  # or all of them, where positions cannot be sampled
        outputs += [min(sources.positions, count) for count in outputs]
    return math.lcm(*(math.lcm(sources.group, count) // count for count in outputs))


def require_fixed_order(batches: Batches) -> None:
    """Stochastic sources want data in a fixed order."""
    if batches.shuffled:
        raise InterbasisError(
            f"{batches.name}: signs belong to samples by their place in the data, which a shuffling "
            "DataLoader changes with every pass; turn shuffling off"
        )


@torch.no_grad()
def completeness(
    network: Network,
    layers: Sequence[LayerBasis],
    data: Data,
    method: Method = "exact",
    *,
    points: int = 16,
    dtype: torch.dtype = torch.float64,
) -> list[float]:
    """How far the attributions are from adding up, Σ_j A_ij = F̂_i: RMS(Σ_j A_ij − F̂_i) / RMS(F̂), per section.

    It is 0 up to rounding where the integral is exact, and says how much a ``gradient`` edge leaves out.
    """
    network, batches, integral = network.to(dtype), Batches(data), rule(method, points)
    sections = sections_in_bases(network, layers)
    missing, size = [0.0] * len(sections), [0.0] * len(sections)
    transforms = _transforms(network, layers)
    for _, activations in _passes(network, batches, 1):
        for k, (section, f) in enumerate(zip(sections, activations, strict=True)):
            f = _in_basis(f, transforms[k])
            residual = section(f).permute(2, 0, 1).contiguous()  # F̂ [r_out, n, S]
            size[k] += residual.square().sum().item()
            for samples, outputs, block in token_attributions(section, f, integral):
                checkpoint = residual[:, samples, outputs]
                checkpoint -= block.sum(2).view_as(checkpoint)
            missing[k] += residual.square().sum().item()
    return [(m / s) ** 0.5 if s else 0.0 for m, s in zip(missing, size, strict=True)]


def sections_in_bases(network: Network, layers: Sequence[LayerBasis]) -> list[Section]:
    """Every section from the features of its source to those of its target."""
    nodes = network.nodes
    if len(layers) != len(nodes):
        raise InterbasisError(
            f"expected a basis for each of the {len(nodes)} node layers {', '.join(network.layers)}, "
            f"received {len(layers)}"
        )
    for node, layer in zip(nodes, layers, strict=True):
        if layer.width != node.width:
            raise InterbasisError(
                f"the basis {layer.name!r} acts on {layer.width} coordinates, node layer {node.name!r} has "
                f"{node.width}{' (the constant first)' if node.constant else ''}"
            )
    like = network.sections[0].skip
    return [
        section.in_basis(
            None if source.identity else source.inverse.to(like),
            None if target.identity else target.transform.to(like),
        )
        for section, source, target in zip(network.sections, layers, layers[1:], strict=False)
    ]


def token_attributions(section: Section, f: Tensor, integral: Rule) -> Iterator[tuple[slice, slice, Tensor]]:
    """A_is,j in blocks that fit in memory: (samples, outputs, block [r_out, tokens, r_in]).

    ``section`` and f [n, T, r_in] are in the coordinates of the bases. A block holds several samples, or some
    of one sample's output positions.
    """
    at = section.outputs(f)
    tokens = max(AT_LEAST, BUDGET // (sum(section.write.shape) * f.shape[2]))
    positions = min(tokens, at.stop - at.start)
    samples = max(1, tokens // (at.stop - at.start))
    for start in range(0, len(f), samples):
        some = f[start : start + samples]
        u = some @ section.read.T
        for left in range(at.start, at.stop, positions):
            here = slice(left, min(left + positions, at.stop))
            inner = section.core.attributions(u, some, section.read, here, integral)
            block = _write(section.write, inner)
            block.addcmul_(section.skip[:, None], some[:, here].flatten(0, 1)[None])
            yield slice(start, start + len(some)), slice(here.start - at.start, here.stop - at.start), block


def _write(write: Tensor, inner: Tensor) -> Tensor:  # [r_out, c_out], [c_out, n, r] -> [r_out, n, r]
    return (write @ inner.flatten(1)).view(len(write), *inner.shape[1:])


def _add(
    total: EdgeSums,
    section: Section,
    f: Tensor,
    integral: Rule,
    sources: Sources | None = None,
    place: tuple[int, int, int] = (0, 0, 0),
    transform: Tensor | None = None,
) -> None:
    """Add a batch; ``place`` is the number of the section, that of the batch's first sample, and how many
    positions the longest sample of the data has.

    f [n, T, ·] is in the coordinates of the source's basis, or ``transform`` C takes it there.
    """
    if section.core.has_squares:  # exact, and cheaper than any estimate
        f = _in_basis(f, transform)
        total.tokens += f.shape[0] * f.shape[1]
        total.square += section.core.squared_attributions(section, f, integral)
        return
    positions = None if sources is None else _positions(section, f, sources, place)
    total.tokens += f.shape[0] * f.shape[1]
    weight = 1.0 if positions is None else f.shape[1] / positions.shape[1]
    if positions is not None and not section.core.mixes_positions:  # the others do not matter to these
        f = _at(f, positions)
    f = _in_basis(f, transform)
    at = section.outputs(f)
    outputs = at.stop - at.start if positions is None else positions.shape[1]
    group = 1 if sources is None else outputs if sources.group == "positions" else sources.group
    if sources is None or (group == 1 and positions is None):
        for _, _, block in token_attributions(section, f, integral):
            total.square += block.square_().sum(1, dtype=torch.float64)
    else:
        k, first, longest = place
        most = min(longest, sources.positions or longest) * sources.count
        signs = random_signs(("edges", sources.seed, k), first, len(f), outputs * sources.count, most).to(f)
        groups = into_groups(signs.view(-1, sources.count), group)  # [groups, g, R]
        _add_groups(total, section, f, integral, groups, positions, weight)


def _positions(section: Section, f: Tensor, sources: Sources, place: tuple[int, int, int]) -> Tensor | None:
    """The output positions of every sample that are looked at, [n, Q]; None is all of them."""
    k, first, _ = place
    core, wanted = section.core, sources.positions
    if wanted is None or section.last_only or wanted >= f.shape[1]:
        return None
    if core.mixes_positions and not core.samples_queries:
        return None
    return random_positions(("edge positions", sources.seed, k), first, len(f), wanted, f.shape[1]).to(
        f.device
    )


def _at(f: Tensor, positions: Tensor) -> Tensor:  # [n, T, r], [n, Q] -> [n, Q, r]
    return f.gather(1, positions[..., None].expand(-1, -1, f.shape[2]))


def _add_groups(
    total: EdgeSums,
    section: Section,
    f: Tensor,
    integral: Rule,
    signs: Tensor,
    positions: Tensor | None,
    weight: float,
) -> None:
    """Squares of signed sums, a few groups at a time; signs [groups, g, R].

    ``weight`` is how many positions each one stands for that is looked at.
    """
    _, group, count = signs.shape
    at = section.outputs(f)
    outputs = at.stop - at.start if positions is None else positions.shape[1]
    per_group = count * (sum(section.write.shape) * f.shape[2] + group * section.write.shape[1])
    whole = math.lcm(group, outputs)  # tokens in the smallest number of samples that holds whole groups
    tokens = max(1, BUDGET * group // (per_group * whole)) * whole
    together = tokens // outputs
    for start in range(0, len(f), together):
        some = slice(start, start + together)
        first = start * outputs // group
        block = _squared_sums(
            section, f[some], integral, signs[first : first + tokens // group],
            None if positions is None else positions[some],
        )  # fmt: skip
        total.square += weight * block.mean(2).sum(1)
        assert total.variance is not None
        if positions is not None:
            variance = block.mean(2).square().sum(1)
        elif count > 1:
            variance = block.var(2).sum(1) / count
        else:
            variance = 2 / 3 * block.square().sum((1, 2))
        total.variance += weight**2 * variance


def _squared_sums(
    section: Section, f: Tensor, integral: Rule, signs: Tensor, positions: Tensor | None
) -> Tensor:
    """X = (Σ φ A)² for every group and set of signs, [r_out, groups, R, r_in]."""
    core, u = section.core, f @ section.read.T
    if positions is None or not core.mixes_positions:
        at = section.outputs(f)
        inner = core.signed_attributions(u, f, section.read, at, integral, signs)
        own = f[:, at]
    else:
        inner = core.signed_attributions_at(u, f, section.read, positions, integral, signs)
        own = _at(f, positions)
    tokens = into_groups(own.flatten(0, 1), signs.shape[1])  # [groups, g, r_in]
    signed = torch.einsum("gtj,gtr->grj", tokens, signs)
    block = _write(section.write, inner)
    block.addcmul_(section.skip[:, None], signed.flatten(0, 1)[None])
    return block.square_().double().unflatten(1, signs.shape[::2])


@torch.no_grad()
def _passes(
    network: Network, batches: Batches, whole: int, start: int = 0
) -> Iterator[tuple[int, list[Tensor]]]:
    """(index of the first sample, f at every section's source) over the data, in multiples of ``whole``."""
    for first, inputs in chunks(network, batches, whole, fine=True, start=start):
        activations = network.activations(inputs)[:-1]
        for name, f in zip(network.layers, activations, strict=False):
            if not f.isfinite().all():
                check_finite(name, f, batches.name, first)
        yield first, activations


def _transforms(network: Network, layers: Sequence[LayerBasis]) -> list[Tensor | None]:
    """C of every section's source; None is the identity."""
    like = network.sections[0].skip
    return [None if layer.identity else layer.transform.to(like) for layer in layers[:-1]]


def _in_basis(f: Tensor, transform: Tensor | None) -> Tensor:
    return f if transform is None else f @ transform.T
