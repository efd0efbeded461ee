"""Closed forms for sections that read a stencil (`network/stencil_section.py`).

With p_s the patch of output s, the Jacobian by pixel t is J_st = Σ_k W_k[s, t] (P_k + B N_s A_k). Summed over
all pixels, products of two taps carry their overlap o_kk′(s), equal for all outputs of a class c, hence

    Σ_st J_stᵀG J_st = Σ_c Σ_kk′ o_kk′(c) [ n_c P_kᵀGP_k′ + P_kᵀGB ΣN A_k′ + (…)ᵀ + A_kᵀ ΣNᵀQN A_k′ ],

the sums over N running over the outputs of the class: one pass over the data for all of them. With zero
padding only k = k′ remains, and the classes are the interior and the strips along the border.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.lib.jacobian_gram import JacobianGram, Terms
from interbasis.network.cores import Elementwise, Linear, Moments, Sums
from interbasis.network.stencil_section import StencilSection
from interbasis.numerics.integration import Rule
from interbasis.numerics.linalg import square_root_factor, transposed_product

MAX_BLOCK_ELEMENTS = 2**20
"""Elements that one block of attributions may hold on the way."""


def by_class(section: StencilSection, u: Tensor, sums: Callable[[Tensor], Sums]) -> Sums:  # [n, S, c_in]
    """Sums over the outputs of every class, as CLASS.NAME, from a function of rows [tokens, 1, c_in]."""
    result: Sums = {}
    for number, one in enumerate(section.stencil.classes):
        rows = u if len(one.positions) == u.shape[1] else u[:, one.positions]
        own = sums(rows.flatten(0, 1)[:, None])
        result |= {f"{number}.{name}": total for name, total in own.items()}
    return result


def class_moments(section: StencilSection, sums: Sums, metric: Tensor) -> list[Moments]:
    """The core's moments over the outputs of every class."""
    result = []
    for number in range(len(section.stencil.classes)):
        start = f"{number}."
        own = {
            name.removeprefix(start): total.to(metric.device)
            for name, total in sums.items()
            if name.startswith(start)
        }
        result.append(section.core.moments(own, metric))
    return result


@dataclass(frozen=True, eq=False)
class StencilJacobian:
    """A section into the features Ĉ of its target layer, and the identity at the head of this file."""

    section: StencilSection
    skip: Tensor  # ĈP by tap [K, r, w], the constant left out
    read: Tensor  # A by tap [K, c_in, w]
    write: Tensor  # ĈB [r, c_out]

    @classmethod
    def of(cls, section: StencilSection, transform: Tensor | None) -> "StencilJacobian":
        skip, read, write = (matrix.cpu().double() for matrix in (section.skip, section.read, section.write))
        if transform is not None:
            skip, write = transform.cpu() @ skip, transform.cpu() @ write
        first = section.source.first_coordinate
        by_tap = [section.taps_of(matrix)[..., first:].movedim(1, 0) for matrix in (skip, read)]
        return cls(section, by_tap[0], by_tap[1], write)

    @property
    def metric(self) -> Tensor:  # [c_out, c_out]
        """Q = BᵀĈᵀĈB."""
        return self.write.T @ self.write

    def gram(
        self, moments: Sequence[Moments], samples: int, inputs: int, weight: Tensor | None = None
    ) -> JacobianGram:
        """M′ from the core's moments over every class and the number of input positions.

        ``weight`` [r, r] stands between Ĉᵀ and Ĉ, in the metric that the moments were made with too.
        """
        rows = [self._used(k) for k in range(self.section.stencil.taps)]
        starts = torch.tensor([0, *(len(X) for X, _, _ in rows)]).cumsum(0).tolist()
        width = self.read.shape[2]
        small = starts[-1] < width
        size = starts[-1] if small else width
        K = torch.zeros(size, size, dtype=torch.float64)
        sizes = torch.zeros(width, width, dtype=torch.float64)
        for (k, other), block in self._blocks(moments, samples, weight).items():
            (X, P, A), (Y, R, C) = rows[k], rows[other]
            whole = torch.cat([P, len(self.write) + A]), torch.cat([R, len(self.write) + C])
            inner = block[whole[0]][:, whole[1]] / inputs
            if small:
                K[starts[k] : starts[k + 1], starts[other] : starts[other + 1]] += inner
                continue
            K += transposed_product(Y, transposed_product(X, inner).T).T
            if k == other:
                sizes += transposed_product(X, inner.diagonal()[:, None] * X)
        if small:
            return JacobianGram(torch.cat([X for X, _, _ in rows]), K)
        terms = Terms(slice(None), square_root_factor(sizes), torch.ones(width, dtype=torch.float64))
        return JacobianGram(None, K, terms=(terms,))

    def _used(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """X = [ĈP_k; A_k] without the rows that are 0, and the numbers of those that are kept of both."""
        P, A = (matrix[k].any(1).nonzero()[:, 0] for matrix in (self.skip, self.read))
        return torch.cat([self.skip[k, P], self.read[k, A]]), P, A

    def _blocks(
        self, moments: Sequence[Moments], samples: int, weight: Tensor | None
    ) -> dict[tuple[int, int], Tensor]:
        """For every pair of taps that overlap, Σ_c o_kk′(c) [[n_c G, GB ΣN], [(GB ΣN)ᵀ, ΣNᵀQN]]."""
        blocks: dict[tuple[int, int], Tensor] = {}
        identity = torch.eye(len(self.write), dtype=torch.float64)
        middle = identity if weight is None else weight.cpu()
        for one, own in zip(self.section.stencil.classes, moments, strict=True):
            cross = middle @ self.write @ own.local.cpu()  # [r, c_in]
            skips = samples * len(one.positions) * middle
            block = torch.cat([torch.cat([skips, cross], 1), torch.cat([cross.T, own.gram.cpu()], 1)])
            for k, other, overlap in one.pairs:
                if (k, other) in blocks:
                    blocks[k, other].add_(block, alpha=overlap)
                else:
                    blocks[k, other] = overlap * block
        return blocks


def stencil_attributions(
    section: StencilSection, f: Tensor, integral: Rule
) -> Iterator[tuple[slice, slice, Tensor]]:
    """A_is,j in blocks that fit in memory: (samples, outputs, block [r_out, tokens, r_in]).

    For an elementwise core, and for none, with v_s,mj = Σ_k A_k,mj p_s,kj they are matrix products,

        A_is,j = Σ_m B_im d̄_s,m v_s,mj + Σ_k P_k,ij p_s,kj.

    ``section`` and f [n, T, r_in] are in the coordinates of the bases.
    """
    core, outputs, features = section.core, section.stencil.positions, section.features_in
    per_token = features * (sum(section.write.shape) + section.stencil.taps)
    tokens = max(1, MAX_BLOCK_ELEMENTS // per_token)
    samples = max(1, tokens // outputs)
    read = section.taps_of(section.read).permute(2, 0, 1)  # [r_in, c_in, K]
    used = section.taps_of(section.skip).any(2).any(0).nonzero()[:, 0]
    skip = section.taps_of(section.skip)[:, used].permute(2, 0, 1)  # [r_in, r_out, taps]
    for start in range(0, len(f), samples):
        some = f[start : start + samples]
        patches, one = section.stencil.patches(some), some[:, :1, :1]  # [n, S, K, r]
        slopes = None
        if isinstance(core, Elementwise):
            slopes = core.mean_slope(section.read_outs(some), integral)  # [n, S, m]
        for left in range(0, outputs, tokens):
            here = slice(left, min(left + tokens, outputs))
            p = patches[:, here].flatten(0, 1).permute(2, 1, 0)  # [r_in, K, tokens]
            bias = one.expand(-1, here.stop - here.start, -1).flatten()  # [tokens]
            block = skip @ p[:, used]  # [r_in, r_out, tokens]
            block[0] += section.skip[:, :1] * bias
            if slopes is not None:
                v = torch.bmm(read, p)
                v[0] += section.read[:, :1] * bias
                v *= slopes[:, here].flatten(0, 1).T
                block += section.write @ v
            yield slice(start, start + len(some)), here, block.permute(1, 2, 0)


def has_closed_form(section: StencilSection) -> bool:
    """Whether `stencil_attributions` serves this section's core."""
    return isinstance(section.core, (Elementwise, Linear))
