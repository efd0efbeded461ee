"""Sections one after the other, two by two where torch has one kernel for both.

The two sections of a norm append the variance v of u = H x, and put out u / √(v + ε) beside the streams that
they carry. Where the node layer between them is not looked at, they are one layer norm (or RMS norm) of x.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.network.cores import Normalize, Variance
from interbasis.network.structured_matmul import applier, index_range

if TYPE_CHECKING:
    from interbasis.network.network import Section

Step = Callable[[Tensor], Tensor]  # [n, T, d_in] -> [n, T, d_out]


class SectionChain:
    """Sections that follow each other, with their norms as they are found when first passed."""

    def __init__(self, sections: "Sequence[Section]"):
        self._sections = sections
        self._norms: dict[int, Step | None] = {}

    def run(self, f: Tensor, first: int, last: int) -> Tensor:  # [n, T, width]
        """Return what comes after sections first … last − 1, from what is before them."""
        index = first
        while index < last:
            norm = self._norm(index) if index + 1 < last else None
            f = self._sections[index](f) if norm is None else norm(f)
            index += 1 if norm is None else 2
        return f

    def _norm(self, index: int) -> Step | None:
        if index not in self._norms:
            self._norms[index] = norm_step(*self._sections[index : index + 2])
        return self._norms[index]


def norm_step(first: "Section", second: "Section") -> Step | None:
    """Both sections of a norm as one function; None where they are not just that."""
    if not isinstance(first.core, Variance) or not isinstance(second.core, Normalize):
        return None
    if first.stored_block is not None or second.stored_block is not None or second.last_only:
        return None
    columns, width, epsilon = slice(*first.columns_read), first.core.width, second.core.epsilon
    H, identity = first.read[:, columns], torch.eye(width).to(first.read)
    is_centred = torch.equal(H, identity - 1 / width)
    rows = slice(*index_range(second.write.any(1)))
    carried = second.skip @ first.skip
    unit = torch.eye(width + 1)[0].to(identity)  # the first read-out is the variance, and it alone
    is_norm = (
        (is_centred or torch.equal(H, identity))
        and torch.equal((second.read @ first.write)[:, 0], unit)
        and torch.equal(second.read[1:] @ first.skip, first.read)
        and not (second.read[0] @ first.skip).any()
        and not (second.skip @ first.write).any()
        and torch.equal(second.write[rows], identity)
        and not (first.read[:, 0].any() or first.last_only or carried[rows].any())
    )
    if not is_norm:
        return None
    carry = applier(carried)

    def step(f: Tensor) -> Tensor:
        x, following = f[..., columns], carry(f)
        if is_centred:
            normalised = torch.nn.functional.layer_norm(x, (width,), eps=epsilon)
        else:
            normalised = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        following[..., rows] = normalised
        return following

    return step
