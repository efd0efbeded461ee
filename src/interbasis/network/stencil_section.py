"""Sections that read a stencil: u_s = A p_s, F_s = P p_s + B · core(u_s), with p_s the patch of output s.

    p_s = (1, f at tap 0, f at tap 1, …)                            see `stencil.py`

A and P are matrices [·, 1 + K·d_in] over patches: column 0 is the bias, then come d_in columns per tap. The
core acts on every output position by itself. Both node layers know their grid, which all their streams
share.

- Convolution + activation: `Stencil.sliding`, A the kernel (`kernel_taps`), `Elementwise`, B into the
  target's rows. Without an activation P is the kernel and the core `Linear`. Groups and depthwise are zeros
  in A.
- Residual sum after the second convolution of a block: the node layer before it holds [h; x]; A has the
  kernel in the columns of h and the identity in the columns of x at the centre tap. A shortcut that strides
  (1×1, stride 2) is in P of the first convolution, at the tap that it shares with the kernel
  (`Stencil.with_taps`).
- Average and global pooling: `Stencil.average`, `Stencil.adaptive`: one tap, P the identity, `Linear`.
- Max pooling: `maximum_section`: a row of A per tap and channel; the Jacobian of `Largest` is a selection.
- Flatten → linear: `Stencil.flattened`, one output position (grid ()), P or A from `flattened_taps`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from interbasis.base.devices import near_sums
from interbasis.base.errors import InterbasisError
from interbasis.network.attributions import AttributionBlock, SignedTokens
from interbasis.network.cores import (
    Counted,
    Elementwise,
    Largest,
    Linear,
    Moments,
    PassCore,
    StatisticsCore,
    Sums,
    take_positions,
)
from interbasis.network.cores.squares import Squares
from interbasis.network.masked import written_rows
from interbasis.network.network import NodeLayer, Section
from interbasis.network.section_jacobian import SectionJacobian
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_jacobian import StencilJacobian
from interbasis.network.stencil_matmul import stencil_applier
from interbasis.numerics.integration import Rule

MAX_BLOCK_ELEMENTS = 2**20
"""Elements that one block of attributions may hold on the way."""


@dataclass(frozen=True, eq=False)
class StencilSection(Section):
    """The map between node layers on two grids; skip P [d_out, 1 + K·d_in], read A [c_in, 1 + K·d_in]."""

    stencil: Stencil = field(kw_only=True)
    reads_per_position = False

    def __post_init__(self) -> None:
        stencil, source, target = self.stencil, self.source, self.target
        if (source.grid, target.grid) != (stencil.source, stencil.target):
            raise InterbasisError(
                f"section {source.name} → {target.name}: expected node layers on the grids of {stencil}, "
                f"received {source.grid} and {target.grid}"
            )
        if not source.constant or self.last_only or self.core.mixes_positions:
            raise InterbasisError(
                f"section {source.name} → {target.name}: a stencil requires a source with a constant and a "
                f"core that acts on every position by itself, received {self.core}"
            )
        for name, matrix in (("skip", self.skip), ("read", self.read)):
            if (matrix.shape[1] - 1) % stencil.taps:
                raise InterbasisError(
                    f"section {source.name} → {target.name}: expected {name} with 1 + {stencil.taps} taps × "
                    f"width columns, received {list(matrix.shape)}"
                )

    def __repr__(self) -> str:
        shape = f"{self.features_in} → {self.skip.shape[0]}, {self.stencil}"
        return f"StencilSection({self.source.name} → {self.target.name}: {self.core}, {shape})"

    @property
    def features_in(self) -> int:
        """Coordinates or features of the source, at one position."""
        return (self.skip.shape[1] - 1) // self.stencil.taps

    def by_tap(self, matrix: Tensor) -> Tensor:  # [c, 1 + K·d] -> [c, K, d]
        """A_k or P_k by tap, without the bias."""
        return matrix[:, 1:].unflatten(1, (self.stencil.taps, -1))

    def patches(self, f: Tensor) -> Tensor:  # [n, T, d] -> [n, S, 1 + K·d]
        """p, whose constant is that of position 0."""
        inner = self.stencil.patches(f).flatten(2)
        constant = f[:, :1, :1].expand(-1, inner.shape[1], -1)
        return torch.cat([constant, inner], dim=2)

    def over_patches(self) -> Section:
        """Return the matrices and core as a section whose positions are patches."""
        return Section(self.source, self.target, self.skip, self.read, self.write, self.core)

    def folded(self, values: Tensor) -> Tensor:  # [..., 1 + K·d] -> [..., d]
        """Sum over taps what belongs to coordinates of patches; the bias belongs to the constant."""
        result = values[..., 1:].unflatten(-1, (self.stencil.taps, -1)).sum(-2)
        result[..., 0] += values[..., 0]
        return result

    def from_read_outs(self, f: Tensor, u: Tensor) -> Tensor:  # [n, T, d_in], [n, S, c_in] -> [n, S, d_out]
        """P p + B · core(u)."""
        if isinstance(self.core, Linear):
            return self._apply_skip(f)
        return self._apply_skip(f) + self._apply_write(self.core(u, self.outputs(f)))

    def direct(self, f: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:  # [d_in], [..., d_in]
        """P p and P δp where f is the same, and moves alike, at all positions."""
        weights = self.stencil.weight.sum(2).mean(0).to(f)  # [K]
        matrix = near_sums(self.skip).to(f)
        skip = torch.einsum("okd,k->od", self.by_tap(matrix), weights)
        skip[:, 0] += matrix[:, 0]
        return skip @ f, moved @ skip.T

    @cached_property
    def _apply_skip(self) -> Callable[[Tensor], Tensor]:
        return stencil_applier(self.stencil, self.skip)

    @cached_property
    def _apply_read(self) -> Callable[[Tensor], Tensor]:
        return stencil_applier(self.stencil, self.read)

    def soft_skip(self, f: Tensor, mask: Tensor) -> Tensor:  # [n, T, d_in], [n, d_out, d_in] -> [n, S, d_out]
        """Σ_δ P_δ f_{s+δ} with a real number for every feature, alike at all taps; column 0 is the bias."""
        by_tap = torch.cat([mask[..., :1], mask.repeat(1, 1, self.stencil.taps)], dim=2)
        return torch.einsum("nsj,nij,ij->nsi", self.patches(f), by_tap, self.skip)

    @property
    def reads_windows(self) -> bool:
        return True

    def pull_back_windows(self, f: Tensor, positions: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        """Gradients tap by tap; the bias is position 0's constant."""
        stencil, taken = self.stencil, self.patches(f[None])[0, positions]
        pulled = self.over_patches().pull_back(taken, cotangents[:, None], rule)[:, 0]  # [k, 1 + K·d]
        taps = self.by_tap(pulled)[:, :, None] * stencil.weight[positions, ..., None].to(f)  # [k, K, L, d]
        gradients = f.new_zeros(len(positions), *f.shape)
        rows = torch.arange(len(positions))[:, None, None].expand(stencil.index[positions].shape)
        gradients.index_put_((rows, stencil.index[positions]), taps, accumulate=True)
        gradients[:, 0, 0] += pulled[:, 0]
        return gradients

    def positions_out(self, positions: int) -> slice:
        """All positions of the target's grid."""
        return slice(0, self.stencil.positions)

    def in_basis(self, inverse: Tensor | None, transform: Tensor | None) -> "StencilSection":
        """Return the map between features: every tap of A and P takes C_in⁺."""
        skip, read, write = self.skip, self.read, self.write
        if inverse is not None:
            skip, read = (
                torch.cat([matrix[:, :1], (self.by_tap(matrix) @ inverse).flatten(1)], dim=1)
                for matrix in (skip, read)
            )
        if transform is not None:
            skip, write = transform @ skip, transform @ write
        return replace(self, skip=skip, read=read, write=write)

    @cached_property
    def copies(self) -> tuple[Tensor, Tensor]:
        """No coordinates: the positions of source and target differ."""
        empty = torch.zeros(0, dtype=torch.int64, device=self.skip.device)
        return empty, empty

    @property
    def columns_seen(self) -> int:
        """All coordinates of the source."""
        return self.source.width

    @property
    def is_narrow(self) -> bool:
        return False

    def statistics(self, rows: Tensor) -> Sums:  # u [samples · S, c_in]
        assert isinstance(self.core, StatisticsCore)
        compute = partial(self.core.statistics, outputs=slice(0, 1))
        return self._sums_by_class(rows.unflatten(0, (-1, self.stencil.positions)), compute)

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None
    ) -> Sums:  # u [n, S, c_in]
        """Compute exact sums, whatever the signs; all positions of a grid count."""
        assert isinstance(self.core, PassCore)
        compute = partial(self.core.batch_sums, outputs=slice(0, 1), metric=metric, signs=None)
        return self._sums_by_class(u, compute)

    def _sums_by_class(self, u: Tensor, compute: Callable[[Tensor], Sums]) -> Sums:  # [n, S, c_in]
        """Sums over the outputs of every class, as CLASS.NAME, from a function of rows [tokens, 1, c_in]."""
        result: Sums = {}
        for number, outputs in enumerate(self.stencil.classes):
            rows = u if len(outputs.positions) == u.shape[1] else u[:, outputs.positions]
            sums = compute(rows.flatten(0, 1)[:, None])
            result |= {f"{number}.{name}": total for name, total in sums.items()}
        return result

    def moments_by_class(self, sums: Sums, metric: Tensor) -> list[Moments]:
        """Moments of the core over the outputs of every class, from `statistics` or `batch_sums`."""
        result = []
        for number in range(len(self.stencil.classes)):
            start = f"{number}."
            class_sums = {
                name.removeprefix(start): total.to(metric.device)
                for name, total in sums.items()
                if name.startswith(start)
            }
            result.append(self.core.moments(class_sums, metric))
        return result

    def jacobian(self, transform: Tensor | None) -> SectionJacobian:
        return StencilJacobian.from_section(self, transform)

    def attributions(
        self, f: Tensor, integral: Rule, counted: Counted | None = None
    ) -> Iterator[AttributionBlock]:
        """Yield attributions by a closed form of the whole section or, for other cores, patch by patch."""
        if isinstance(self.core, (Elementwise, Linear)):
            yield from self._closed_form_attributions(f, integral)
            return
        for samples, outputs, block in self.over_patches().attributions(self.patches(f), integral):
            yield samples, outputs, self.folded(block)

    def _closed_form_attributions(self, f: Tensor, integral: Rule) -> Iterator[AttributionBlock]:
        """Attributions as matrix products, with v_s,mj = Σ_k A_k,mj p_s,kj,

        A_is,j = Σ_m B_im d̄_s,m v_s,mj + Σ_k P_k,ij p_s,kj.
        """
        outputs = self.stencil.positions
        per_token = self.features_in * (sum(self.write.shape) + self.stencil.taps)
        tokens = max(1, MAX_BLOCK_ELEMENTS // per_token)
        samples = max(1, tokens // outputs)
        read = self.by_tap(self.read).permute(2, 0, 1)  # [r_in, c_in, K]
        used = self.by_tap(self.skip).any(2).any(0).nonzero()[:, 0]
        skip = self.by_tap(self.skip)[:, used].permute(2, 0, 1)  # [r_in, r_out, taps]
        for start in range(0, len(f), samples):
            chunk = f[start : start + samples]
            patches, constant = self.stencil.patches(chunk), chunk[:, :1, :1]  # [n, S, K, r]
            slopes = None
            if isinstance(self.core, Elementwise):
                slopes = self.core.mean_slopes(self.read_outs(chunk), integral)  # [n, S, m]
            for left in range(0, outputs, tokens):
                here = slice(left, min(left + tokens, outputs))
                p = patches[:, here].flatten(0, 1).permute(2, 1, 0)  # [r_in, K, tokens]
                bias = constant.expand(-1, here.stop - here.start, -1).flatten()  # [tokens]
                block = skip @ p[:, used]  # [r_in, r_out, tokens]
                block[0] += self.skip[:, :1] * bias
                if slopes is not None:
                    v = torch.bmm(read, p)
                    v[0] += self.read[:, :1] * bias
                    v *= slopes[:, here].flatten(0, 1).T
                    block += self.write @ v
                yield slice(start, start + len(chunk)), here, block.permute(1, 2, 0)

    def signed_attributions(self, f: Tensor, integral: Rule, tokens: SignedTokens) -> Tensor:
        patches = self.patches(f)
        if tokens.positions is not None:
            patches = take_positions(patches, tokens.positions)
        return self.folded(self.over_patches().signed_attributions(patches, integral, tokens))

    def needed_inputs(self, f: Tensor, positions: Tensor | None) -> Tensor:
        return f

    @property
    def exact_is_cheapest(self) -> bool:
        return isinstance(self.core, Linear)

    def squares(self, integral: Rule) -> Squares | None:
        return None

    def aligned(self) -> "StencilSection":
        return self

    def masked(self, f: Tensor, mask: Tensor) -> Tensor:
        """Compute masked outputs; a feature that is masked is so at all taps."""
        result = stencil_applier(self.stencil, self._masked_matrix(self.skip, mask))(f).contiguous()
        if isinstance(self.core, Linear):
            return result
        outputs, unmasked = self.outputs(f), None
        if isinstance(self.core, Elementwise) and (self.write != 0).sum(0).max() <= 1:
            seen_by = (self.write != 0).int().argmax(0)  # one output for every unit, as in the neuron basis
            read = self._masked_matrix(self.read, mask[seen_by])
            u = stencil_applier(self.stencil, read)(f)
            return result + self.core(u, outputs) @ self.write.T
        for columns, rows in written_rows(self, mask):
            row = mask[rows[0]]
            if 2 * len(columns) <= mask.shape[1]:
                u = self._masked_read_outs(f, row)
            else:
                unmasked = self.read_outs(f) if unmasked is None else unmasked
                u = unmasked if row.all() else unmasked - self._masked_read_outs(f, ~row)
            result[..., rows] += self.core(u, outputs) @ self.write[rows].T
        return result

    def _masked_matrix(self, matrix: Tensor, mask: Tensor) -> Tensor:  # [c, 1 + K·r], [c, r]
        """A matrix over patches whose rows see some of the features; the bias belongs to the constant."""
        by_tap = self.by_tap(matrix) * mask[:, None]
        return torch.cat([matrix[:, :1] * mask[:, :1], by_tap.flatten(1)], dim=1)

    def _masked_read_outs(self, f: Tensor, mask: Tensor) -> Tensor:  # [n, T, r], [r] -> [n, S, c_in]
        """Read-outs of some features; the bias belongs to the constant, feature 0."""
        columns = torch.cat([mask.new_zeros(1, dtype=torch.int64), 1 + mask[1:].nonzero()[:, 0]])
        by_tap = self.by_tap(self.read)[..., columns]
        bias = self.read[:, :1]
        if not mask[0]:
            by_tap, bias = by_tap.clone(), torch.zeros_like(bias)
            by_tap[..., 0] = 0
        matrix = torch.cat([bias, by_tap.flatten(1)], dim=1)
        return stencil_applier(self.stencil, matrix)(f[..., columns])

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), self.stencil.index, self.stencil.weight]


def patch_matrix(stencil: Stencil, rows: int, width: int, like: Tensor) -> Tensor:  # [rows, 1 + K·width]
    """Zeros, to which `add_taps` adds."""
    return like.new_zeros(rows, 1 + stencil.taps * width)


def add_taps(
    matrix: Tensor, stencil: Stencil, taps: Tensor, row: int, column: int, places: Sequence[int] | None = None
) -> None:
    """Add taps [c, k, d] to a matrix over patches, at a row and at a column of the node layer.

    Args:
        matrix: From `patch_matrix`.
        stencil: Its stencil.
        taps: Matrices by tap; `kernel_taps`, `flattened_taps` and `one_tap` make them.
        row: The first row; 1 of a target with a constant.
        column: Where the stream begins in the source node layer; 1 is after the constant.
        places: The numbers of the taps in the stencil; default: the first ones.
    """
    by_tap = matrix[:, 1:].unflatten(1, (stencil.taps, -1))
    numbers = list(places) if places is not None else list(range(taps.shape[1]))
    by_tap[row : row + len(taps), numbers, column : column + taps.shape[2]] += taps


def kernel_taps(
    weight: Tensor, groups: int = 1
) -> Tensor:  # [c_out, c_in / groups, kernel…] -> [c_out, K, c_in]
    """A convolution's weight by tap; what lies in other groups is 0."""
    taps = weight.flatten(2).mT  # [c_out, K, c_in / groups]
    if groups == 1:
        return taps
    size = taps.shape[2]
    result = taps.new_zeros(*taps.shape[:2], groups * size)
    for group, rows in enumerate(torch.arange(len(taps)).chunk(groups)):
        result[rows, :, group * size : (group + 1) * size] = taps[rows]
    return result


def flattened_taps(weight: Tensor, channels: int) -> Tensor:  # [out, channels·T] -> [out, T, channels]
    """A linear layer's weight after `torch.flatten` of [channels, grid…]."""
    return weight.unflatten(1, (channels, -1)).mT


def one_tap(weight: Tensor) -> Tensor:  # [out, d] -> [out, 1, d]
    """A matrix at a single tap."""
    return weight[:, None]


def maximum_section(source: NodeLayer, target: NodeLayer, stencil: Stencil, like: Tensor) -> StencilSection:
    """Max pooling of all streams of a node layer; the stencil has a tap per pixel of a window.

    ``stencil`` is `Stencil.sliding` with mode ``inside`` or `Stencil.adaptive` with ``maximum``.
    """
    d = source.width - 1
    skip, read = (patch_matrix(stencil, rows, source.width, like) for rows in (d + 1, stencil.taps * d))
    identity = torch.eye(d, dtype=like.dtype, device=like.device)
    for k in range(stencil.taps):
        add_taps(read, stencil, one_tap(identity), k * d, 1, [k])
    skip[0, 0] = 1
    write = torch.eye(d + 1, dtype=like.dtype, device=like.device)[:, 1:]
    return StencilSection(source, target, skip, read, write, Largest(stencil.taps), stencil=stencil)


def linear_section(source: NodeLayer, target: NodeLayer, skip: Tensor, stencil: Stencil) -> StencilSection:
    """A section without a core, P [d_out, 1 + K·d_in]: a convolution alone, pooling, flatten → linear."""
    return StencilSection(source, target, skip, skip[:0], skip[:, :0], Linear(), stencil=stencil)


def averaging_section(source: NodeLayer, target: NodeLayer, stencil: Stencil, like: Tensor) -> StencilSection:
    """Average or global pooling of all streams; the stencil has one tap."""
    skip = patch_matrix(stencil, source.width, source.width, like)
    identity = torch.eye(source.width - 1, dtype=like.dtype, device=like.device)
    add_taps(skip, stencil, one_tap(identity), 1, 1)
    skip[0, 0] = 1
    return linear_section(source, target, skip, stencil)
