"""The slope D of the target in every activation, along all paths at once: one walk back through the network.

With the gradient rule D is the gradient; with an exact rule every section's mean Jacobian stands in its place, and
Σ D · f is the target's value at every layer, the constant included. Features see D C⁺, dropped directions D.
"""

import torch
from torch import Tensor

from interbasis.network.cores.attention import Attention
from interbasis.network.cores.attention.paths import QueryPaths
from interbasis.network.network import Section
from interbasis.numerics.integration import Rule
from interbasis.traces.rows import MAX_ROW_ELEMENTS


def slope_before(section: Section, f: Tensor, slope: Tensor, rule: Rule) -> Tensor:
    """D at a section's source from D at its target; f [T, d_in], slope [S, d_out] -> [T, d_in]."""
    outputs = section.positions_out(len(f))
    back = torch.zeros_like(f)
    back[outputs] = slope @ section.skip
    inner = slope @ section.write
    if isinstance(section.core, Attention):
        return back + _through_attention(section, f, inner, rule)
    if section.core.mixes_positions:
        return back + _by_autograd(section, f, inner, rule)
    back[outputs] += section.core.pull_back(section.read_outs(f[outputs]), inner, rule) @ section.read
    return back


def _through_attention(section: Section, f: Tensor, inner: Tensor, rule: Rule) -> Tensor:
    core = section.core
    assert isinstance(core, Attention)
    shape, u = core.shape, section.read_outs(f)
    q, k, v = u.new_zeros(3, shape.heads, len(f), shape.width)
    touched = inner.ne(0).any(1).nonzero()[:, 0]  # queries that the target depends on
    start = section.positions_out(len(f)).start
    for some in touched.split(max(1, MAX_ROW_ELEMENTS // (3 * shape.heads * len(f)))):
        paths = QueryPaths.of(shape, u, inner[some], some + start, rule)
        on_values, on_keys, on_queries = paths.gradients()
        v += on_values
        k += on_keys
        q[:, some + start] += on_queries
    return torch.cat([part.transpose(0, 1).flatten(1) for part in (q, k, v)], dim=1) @ section.read


def _by_autograd(section: Section, f: Tensor, inner: Tensor, rule: Rule) -> Tensor:
    u, outputs = section.read_outs(f), section.positions_out(len(f))
    total = torch.zeros_like(u)
    for node, weight in zip(rule.nodes, rule.weights, strict=True):
        with torch.enable_grad():
            at = (node * u).detach().requires_grad_()
            output = section.core(at[None], outputs)[0]
        total += weight * torch.autograd.grad(output, at, inner)[0]
    return total @ section.read
