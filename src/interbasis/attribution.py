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
from typing import Literal

import torch
from torch import Tensor

from interbasis.basis import LayerBasis
from interbasis.data.batches import Batches, Data
from interbasis.errors import InterbasisError
from interbasis.integration import Method, Rule, rule
from interbasis.network import Network, Section
from interbasis.progress import Progress, silent
from interbasis.random_signs import random_signs
from interbasis.statistics import chunks

BUDGET = 2**19
"""Elements that one block of attributions may hold: few enough to stay in the cache while squared."""


@dataclass(frozen=True)
class Sources:
    """Stochastic sources for edges: squares of signed sums over groups instead of single tokens.

    ``group`` tokens are summed with ``count`` independent sets of signs; "positions" makes a group of every
    sample's output positions, as in the paper. From two sets on, their scatter is an unbiased estimate of
    the error; with one set it is estimated from Var X ≈ ⅔ E[X²], right where no token dominates its group.
    """

    group: int | Literal["positions"] = "positions"
    count: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or (self.group != "positions" and self.group < 1):
            raise InterbasisError(
                f"stochastic sources: group and count are at least 1, not {self.group} and {self.count}"
            )


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of one section."""

    rms: Tensor
    """Ê [features_out, features_in]."""
    error: Tensor | None = None
    """Standard error of Ê from the stochastic sources, same shape; None where the sum was exact."""


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
    batches = Batches(data)
    found = measure(network.to(dtype), layers, batches, rule(method, points))
    return [section.rms for section in found]


@torch.no_grad()
def measure(
    network: Network,
    layers: Sequence[LayerBasis],
    batches: Batches,
    integral: Rule,
    sources: Sources | None = None,
    progress: Progress = silent,
) -> list[Edges]:
    """The edges of all sections in one pass over the data: exact, or estimated with stochastic sources."""
    if sources is not None and batches.shuffled:
        raise InterbasisError(
            f"{batches.name}: signs belong to samples by their place in the data, which a shuffling "
            "DataLoader changes with every pass; turn shuffling off"
        )
    sections = sections_in_bases(network, layers)
    sums = [_Sum.zero(section) for section in sections]
    whole = 1 if sources is None or sources.group == "positions" else sources.group
    tokens = [0] * len(sections)
    for first, activations in _passes(network, layers, batches, whole):
        for k, (section, f) in enumerate(zip(sections, activations[:-1], strict=True)):
            tokens[k] += f.shape[0] * f.shape[1]
            if section.write.shape[1] == 0:  # linear: A_ij = P̂_ij f̂_j, for exact sums and for groups alike
                sums[k].square += section.skip.square() * section.kept(f).square().sum(
                    (0, 1), dtype=torch.float64
                )
            elif sources is None:
                for _, columns, block in token_attributions(section, f, integral):
                    sums[k].square[:, columns] += block.square_().sum(1, dtype=torch.float64)
            else:
                _add_groups(sums[k], section, f, integral, sources, (sources.seed, k), first)
        progress("edges", first + len(activations[0]), len(batches))
    return [
        total.edges(count, estimated=sources is not None) for total, count in zip(sums, tokens, strict=True)
    ]


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
    for _, activations in _passes(network, layers, batches, 1):
        for k, (section, f) in enumerate(zip(sections, activations[:-1], strict=True)):
            residual = section(f).permute(2, 0, 1).contiguous()  # F̂ [r_out, n, S]
            size[k] += residual.square().sum().item()
            for samples, _, block in token_attributions(section, f, integral):
                residual[:, samples] -= block.sum(2).view_as(residual[:, samples])
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
        section.in_basis(source.inverse.to(like), target.transform.to(like))
        for section, source, target in zip(network.sections, layers, layers[1:], strict=False)
    ]


def token_attributions(section: Section, f: Tensor, integral: Rule) -> Iterator[tuple[slice, slice, Tensor]]:
    """A_is,j in blocks that fit in memory: (samples, columns j, block [r_out, tokens, columns]).

    ``section`` and f [n, T, r_in] are in the coordinates of the bases.
    """
    width = f.shape[2]
    outputs = section.kept(f).shape[1]
    rows = section.write.shape[0] + section.write.shape[1]
    columns = max(1, min(width, BUDGET // (rows * outputs)))
    samples = max(1, BUDGET // (rows * outputs * columns))
    for start in range(0, len(f), samples):
        some = f[start : start + samples]
        u = some @ section.read.T
        kept = section.kept(some).flatten(0, 1)  # [tokens, r_in]
        for left in range(0, width, columns):
            part = slice(left, min(left + columns, width))
            inner = section.core.attributions(u, some[..., part], section.read[:, part], outputs, integral)
            block = _write(section.write, inner)
            block.addcmul_(section.skip[:, None, part], kept[None, :, part])
            yield slice(start, start + len(some)), part, block


def _write(
    write: Tensor, inner: Tensor
) -> Tensor:  # B̂ [r_out, c_out], [c_out, tokens, r] -> [r_out, tokens, r]
    return (write @ inner.flatten(1)).view(len(write), *inner.shape[1:])


@dataclass
class _Sum:
    square: Tensor  # Σ A² or its estimate  [r_out, r_in]
    variance: Tensor  # of that estimate     [r_out, r_in]

    @classmethod
    def zero(cls, section: Section) -> "_Sum":
        zeros = torch.zeros_like(section.skip, dtype=torch.float64)
        return cls(zeros, zeros.clone())

    def edges(self, tokens: int, estimated: bool) -> Edges:
        rms = (self.square / tokens).sqrt().cpu()
        if not estimated:
            return Edges(rms)
        # error of a root: σ(Ê) = σ(Ê²) / 2Ê
        error = (self.variance.sqrt() / tokens).cpu() / (2 * rms)
        return Edges(rms, torch.where(rms > 0, error, 0.0))


def _add_groups(
    total: _Sum,
    section: Section,
    f: Tensor,
    integral: Rule,
    sources: Sources,
    key: tuple[int, int],
    first: int,
) -> None:
    outputs = section.kept(f).shape[1]
    group = outputs if sources.group == "positions" else sources.group
    signs = random_signs(key, first, len(f), outputs * sources.count).to(f)
    signs = signs.view(-1, sources.count)  # [tokens, R]
    per_block = _samples_per_block(section, f, outputs, group, sources.count)
    for start in range(0, len(f), per_block):
        some = f[start : start + per_block]
        theirs = signs[start * outputs : (start + len(some)) * outputs]
        _add_block_of_groups(total, section, some, integral, _into_groups(theirs, group))


def _samples_per_block(section: Section, f: Tensor, outputs: int, group: int, count: int) -> int:
    """Samples whose groups' sums fit in memory, a whole number of groups."""
    per_group = count * (sum(section.write.shape) * f.shape[2] + group * section.write.shape[1])
    groups = max(1, BUDGET // max(1, per_group))
    whole = math.lcm(group, outputs) // outputs
    return max(1, groups * group // (outputs * whole)) * whole


def _into_groups(tokens: Tensor, group: int) -> Tensor:  # [tokens, ...] -> [groups, group, ...]
    groups = -(-len(tokens) // group)
    padding = [0, 0] * (tokens.ndim - 1) + [0, groups * group - len(tokens)]
    return torch.nn.functional.pad(tokens, padding).unflatten(0, (groups, group))


def _add_block_of_groups(total: _Sum, section: Section, f: Tensor, integral: Rule, signs: Tensor) -> None:
    """signs [groups, g, R]."""
    kept = section.kept(f)
    inner = section.core.signed_attributions(
        f @ section.read.T, f, section.read, kept.shape[1], integral, signs
    )  # [c_out, groups·R, r_in]
    signed = torch.einsum("gtj,gtr->grj", _into_groups(kept.flatten(0, 1), signs.shape[1]), signs)
    block = _write(section.write, inner)
    block.addcmul_(section.skip[:, None], signed.flatten(0, 1)[None])
    block = block.square_().double().unflatten(1, signs.shape[::2])  # X [r_out, groups, R, r_in]
    count = signs.shape[2]
    total.square += block.mean(2).sum(1)
    if count > 1:
        total.variance += block.var(2).sum(1) / count
    elif signs.shape[1] > 1:
        total.variance += 2 / 3 * block.square().sum((1, 2))


@torch.no_grad()
def _passes(
    network: Network, layers: Sequence[LayerBasis], batches: Batches, whole: int
) -> Iterator[tuple[int, list[Tensor]]]:
    """(index of the first sample, f̂ at every node layer) over the data; chunks are multiples of ``whole``."""
    transforms = [layer.transform.to(network.sections[0].skip) for layer in layers]
    for first, inputs in chunks(network, batches, whole):
        activations = network.activations(inputs)
        yield first, [f @ C.T for f, C in zip(activations, transforms, strict=True)]
