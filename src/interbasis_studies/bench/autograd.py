"""The usual way to the Jacobian Gram and to edges: backward passes over output features, looped or batched.

Both forms of the Gram accumulate M′ = Σ JᵀJ of Σ_s φ_s f̂_is by f_t, one random sign per output position and
sample (one stochastic source, as in the paper; exact where positions do not mix). Chunk sizes are tuned by
the caller.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from interbasis.network.cores import Attention, AttentionShape
from interbasis.network.network import Section


class FusedAttention(Attention):
    """Causal attention by torch's fused kernel, forward and backward: no pattern is ever written down.

    It cannot be batched over output features, nor differentiated twice.
    """

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        q, *shared = (part.unflatten(2, (-1, self.shape.width)) for part in u.split(self.shape.sizes, 2))
        return self.mixed(q, *shared)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor | None = None) -> Tensor:
        """z [n, Q, H·h]; q [n, Q, H, h] at some positions [Q], or at all, k and v [n, T, groups, h]."""
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        keys = torch.arange(k.shape[2])
        queries = keys if positions is None else positions
        if self.shape.rotary is not None:
            q, k = self.shape.rotary.turn(q, queries), self.shape.rotary.turn(k, keys)
        k, v = (self.shape.for_all_heads(part, 1) for part in (k, v))
        seen = None if positions is None else queries[:, None] >= keys
        z = scaled_dot_product_attention(q, k, v, seen, is_causal=seen is None, scale=self.shape.sigma)
        return z.transpose(1, 2).flatten(2)


def fused(section: Section) -> Section:
    """The section as a user of torch would write it to be fast; others than attention's are so already."""
    if not isinstance(section.core, Attention):
        return section
    shape = section.core.shape
    plain = AttentionShape(
        shape.heads, shape.width, scale=shape.scale, rotary=shape.rotary, key_heads=shape.key_heads
    )
    if shape != plain:
        raise ValueError(f"expected causal attention without window or cap, received {section.core}")
    return replace(section, core=FusedAttention(plain))


def signed_output(section: Section, transform: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """(f with gradient, Σ_s φ_s f̂_is summed over a batch, [r]); samples do not mix."""
    f = f.detach().requires_grad_()
    features = section(f) @ transform.T  # [n, S, r]
    signs = torch.randint(0, 2, features.shape[:2], generator=torch.Generator().manual_seed(0)).to(f) * 2 - 1
    return f, (signs[..., None] * features).sum(1).sum(0)


def looped(section: Section, transform: Tensor, f: Tensor) -> Tensor:
    """One backward pass per output feature."""
    f, summed = signed_output(section, transform, f)
    total = torch.zeros(f.shape[2], f.shape[2], dtype=f.dtype)
    for i in range(len(summed)):
        (gradient,) = torch.autograd.grad(summed[i], f, retain_graph=True)
        rows = gradient.flatten(0, 1)
        total.addmm_(rows.T, rows)
    return total


def batched(section: Section, transform: Tensor, f: Tensor, at_once: int) -> Tensor:
    """Backward passes vectorised over ``at_once`` output features."""
    f, summed = signed_output(section, transform, f)
    total = torch.zeros(f.shape[2], f.shape[2], dtype=f.dtype)
    for rows_at_once in torch.eye(len(summed), dtype=f.dtype).split(at_once):
        (gradient,) = torch.autograd.grad(summed, f, rows_at_once, retain_graph=True, is_grads_batched=True)
        rows = gradient.flatten(0, 2)
        total.addmm_(rows.T, rows)
    return total


def looped_edges(section: Section, f: Tensor, positions: Tensor | None = None) -> Tensor:
    """Squares of signed sums over output positions, [r_out, r_in]: one backward pass per output feature.

    A sign per output position; of fused attention, some ``positions`` [Q] alone may be summed over.
    """
    f = f.detach().requires_grad_()
    if positions is None:
        outputs = section(f)
    else:
        assert isinstance(section.core, FusedAttention)
        queries, shape = f[:, positions], section.core.shape
        read = zip((queries, f, f), section.read.split(shape.sizes), strict=True)
        q, k, v = ((x @ rows.T).unflatten(2, (-1, shape.width)) for x, rows in read)
        z = section.core.mixed(q, k, v, positions)
        outputs = queries @ section.skip.T + z @ section.write.T
    signs = torch.randint(0, 2, outputs.shape[:2]).to(f) * 2 - 1
    rows = []
    for feature in (signs[..., None] * outputs).sum((0, 1)):
        (gradient,) = torch.autograd.grad(feature, f, retain_graph=True)
        product = gradient * f
        product = product.sum(1) if section.core.mixes_positions else product
        rows.append(product.detach().square().flatten(0, -2).sum(0))
    return torch.stack(rows)
