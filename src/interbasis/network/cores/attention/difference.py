"""Change of attention between two sections with the same input: N = [[N_F, N_F − N_G], [0, N_G]].

The notation is that of `Attention`; a and b are patterns, y_st = b_st (v_t − z_s), and δ is F minus G. By
read-outs (Δ: of A_F − A_G; G: of A_G) and outputs (change: weight B_F; base: weight B_F − B_G), N_st is

    read-outs   output   on v         on k, times σ R_t on the right       on q, for t = s
    Δ           change   a_F          y_F q̃_Fᵀ                             Cov_F
    G           change   δa           δy q̃_Gᵀ + y_F δq̃ᵀ                    δCov
    G           base     a_G          y_G q̃_Gᵀ                             Cov_G.

With stacked outputs ν_F = (v_F; 0) and ν_1 = (δv; v_G) about their ζ, the two vectors that k-terms are made
of are

    ξ_1 = (δy; y_G) = δb ν_F + b_G ν_1,        ξ_2 = (y_F; 0) = b_F ν_F,

the first with q̃_G, the second with δq̃ (read-outs G) and with q̃_F (read-outs Δ). Their products
w_ij = ξ_iᵀ Q ξ_j for pairs of heads follow from four matrices of deviations (ν_t − ζ_s)ᵀ Q (ν′_t − ζ′_s),
[S, T] each. Patterns, values and covariances are subtracted before anything is squared.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.network.cores.attention.core import Attention
from interbasis.network.cores.attention.heads import AttentionShape, Heads
from interbasis.network.cores.attention.moments import covariances
from interbasis.network.cores.attention.rotary_moments import KEYS_PER_BLOCK, KeyBrackets, KeyTurns
from interbasis.network.cores.core import Counted, Moments, PassCore, Sums
from interbasis.numerics import autograd
from interbasis.numerics.integration import Rule

MAX_BLOCK_ELEMENTS = 2**22
"""Elements of the largest tensors of the queries handled at once."""
MAX_QUERIES_PER_BLOCK = 128
"""Queries handled at once, at most: causal attention skips keys that none of them sees."""
MIN_QUERIES_PER_BLOCK = 64
"""Queries handled at once, at least, where memory allows: fewer skip more keys, and run slower."""


class AttentionDifference(PassCore):
    """Reads [Δu | u_G] and puts out [z_F − z_G | z_G]; see the head of this file."""

    mixes_positions = True

    def __init__(self, shape: AttentionShape):
        self.shape, self.attention = shape, Attention(shape)

    def __repr__(self) -> str:
        return f"AttentionDifference({self.attention})"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        change, u_G = u.chunk(2, dim=-1)
        base = self.attention(u_G, outputs)
        return torch.cat([self.attention(u_G + change, outputs) - base, base], dim=-1)

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None = None
    ) -> Sums:
        """Compute exact sums, whatever the signs."""
        positions = torch.arange(outputs.start, outputs.stop, device=u.device).expand(len(u), -1)
        return self.sums_at(u, positions, metric, counted)

    def sums_at(self, u: Tensor, positions: Tensor, metric: Tensor, counted: Counted | None = None) -> Sums:
        """Compute sums over the queries at ``positions`` [n, S], each sample's own, and over all keys."""
        shape, metric = self.shape, metric.to(u)
        sums = _Sums.zero(shape, u)
        each = shape.heads * max(4 * shape.width**2, 4 * shape.shared * u.shape[1])
        few = max(MIN_QUERIES_PER_BLOCK, MAX_QUERIES_PER_BLOCK * positions.shape[1] // u.shape[1])
        queries = min(few, positions.shape[1], max(1, MAX_BLOCK_ELEMENTS // each))
        samples = max(1, MAX_BLOCK_ELEMENTS // (each * queries))
        multiple = 1 if shape.rotary is None else KEYS_PER_BLOCK
        change, u_G = u.chunk(2, dim=-1)
        for start in range(0, len(u), samples):
            here = slice(start, start + samples)
            masks = None if counted is None else Counted(*(mask[here].to(u) for mask in counted))
            pair = [
                replace(Heads.from_read_outs(shape, part[here], positions[here]), counted=masks).centred()
                for part in (u_G + change, u_G)
            ]
            for first in range(0, positions.shape[1], queries):
                block = _QueryBlock.from_heads(*(x.queries(first, first + queries, multiple) for x in pair))
                sums.add(block, metric)
        return sums.assembled(shape)

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(**sums)

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        return autograd.attributions(lambda u: self(u, outputs), u, f, read, rule)

    def rows(self, head: int) -> dict[str, Tensor]:
        """Read-outs of one head by path: query, key and value, those of Δu and those of u_G."""
        total = sum(self.shape.sizes)
        return {
            path: torch.cat([torch.arange(rows.start, rows.stop) + start for start in (0, total)])
            for path, rows in zip(("query", "key", "value"), self.shape.rows(head), strict=True)
        }


@dataclass(frozen=True, eq=False)
class _QueryBlock:
    """A block of queries in both attentions; patterns and covariances hold what counts alone."""

    first: Heads
    second: Heads
    a: tuple[Tensor, Tensor, Tensor]  # of F, δ and G [H, n, S, T]
    b: tuple[Tensor, Tensor, Tensor]
    z: tuple[Tensor, Tensor, Tensor]  # [H, n, S, h]
    cov: tuple[Tensor, Tensor, Tensor]  # [H, i, n·S, j]
    v: tuple[Tensor, Tensor, Tensor]  # [H, n, T, h]
    q: tuple[Tensor, Tensor, Tensor]  # turned [H, n, S, h]

    @classmethod
    def from_heads(cls, first: Heads, second: Heads) -> "_QueryBlock":
        patterns = [x.pattern() for x in (first, second)]
        z = [a @ x.v for (a, _), x in zip(patterns, (first, second), strict=True)]
        cov = [covariances(x, b, z) for x, (_, b), z in zip((first, second), patterns, z, strict=True)]
        pairs, counted = first.counted_pairs()
        if pairs is not None and counted is not None:
            patterns = [(a * pairs, b * pairs) for a, b in patterns]
            cov = [part * counted.flatten()[:, None] for part in cov]
        (a_F, b_F), (a_G, b_G) = patterns
        return cls(
            first, second, _three(a_F, a_G), _three(b_F, b_G), _three(*z), _three(*cov),
            _three(first.v, second.v), _three(first.turned_q, second.turned_q),
        )  # fmt: skip

    def deviations(self) -> tuple[Tensor, Tensor]:  # [H, n·S, 2h] each
        """ξ_1 and ξ_2 at the query's own position."""
        y_F, y_G = (
            x.diagonal_weights(b)[..., None] * (x.query_values() - z)
            for x, b, z in ((self.first, self.b[0], self.z[0]), (self.second, self.b[2], self.z[2]))
        )
        first = torch.cat([y_F - y_G, y_G], dim=-1).flatten(1, 2)
        return first, torch.cat([y_F, torch.zeros_like(y_F)], dim=-1).flatten(1, 2)

    def key_blocks(self) -> Iterator[tuple[int, slice]]:
        """Positions where blocks of keys begin, and where their keys are in the patterns."""
        first, count = self.first.first, self.first.k.shape[2]
        for start in range(0, count, KEYS_PER_BLOCK):
            yield first + start, slice(start, min(start + KEYS_PER_BLOCK, count))


def _three(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """F, δ and G."""
    return first, first - second, second


@dataclass
class _Sums:
    """Blocks of Σ NᵀQN by read-outs (Δ, G) and head or group, and Σ N_ss by output, in float64."""

    qq: Tensor  # [2, H, h, 2, H, h]
    kq: Tensor  # [2, G, h, 2, H, h]
    vq: Tensor
    kk: Tensor  # [2, G, h, 2, G, h]
    vk: Tensor
    vv: Tensor
    local_q: Tensor  # by output (change, base), head, read-outs [2, H, h, 2, h]
    local_k: Tensor
    local_v: Tensor  # [2, H, 2]

    @classmethod
    def zero(cls, shape: AttentionShape, like: Tensor) -> "_Sums":
        H, G, h = shape.heads, shape.groups, shape.width

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=like.device)

        by_heads, by_groups = (2, H, h), (2, G, h)
        return cls(
            qq=zeros(*by_heads, *by_heads), kq=zeros(*by_groups, *by_heads), vq=zeros(*by_groups, *by_heads),
            kk=zeros(*by_groups, *by_groups), vk=zeros(*by_groups, *by_groups),
            vv=zeros(*by_groups, *by_groups), local_q=zeros(2, H, h, 2, h), local_k=zeros(2, H, h, 2, h),
            local_v=zeros(2, H, 2),
        )  # fmt: skip

    def add(self, x: _QueryBlock, metric: Tensor) -> None:
        """Add a block of queries; metric Q [2·H·h, 2·H·h] by output, head and coordinate."""
        shape = x.first.shape
        Q = metric.unflatten(0, (2, shape.heads, -1)).unflatten(3, (2, shape.heads, -1))  # [o, h, i, o, g, j]
        by_pair = Q.permute(1, 0, 2, 4, 3, 5).flatten(4).flatten(1, 2)  # [h, 2i, g, 2j]
        self._add_query_pairs(x, by_pair)
        self._add_query_terms(x, Q, by_pair)
        self._add_value_terms(x, Q)
        self._add_key_pairs(x, by_pair)
        self._add_local(x)

    def _add_query_pairs(self, x: _QueryBlock, Q: Tensor) -> None:
        """q,q for h ≤ g: Covᵀ Q Cov over stacked outputs."""
        stacked = _stacked(x.cov)
        width, tokens = x.cov[0].shape[1:3]
        for g in range(len(Q)):
            for other, right in enumerate(stacked):
                pushed = Q[: g + 1, :, g, : right.shape[1]] @ right[g].flatten(1)  # [h, 2i, tokens·j]
                pushed = pushed.unflatten(2, (tokens, width))
                for read, left in enumerate(stacked):
                    rows = left.shape[1]
                    total = left[: g + 1].flatten(1, 2).mT @ pushed[:, :rows].flatten(1, 2)  # [h, j, j]
                    self.qq[read, : g + 1, :, other, g] += total
                    self.qq[other, g, :, read, :g] += total[:g].permute(2, 0, 1)

    def _add_query_terms(self, x: _QueryBlock, Q: Tensor, by_pair: Tensor) -> None:
        """v,q and k,q: the key at the query's own position."""
        shape, width = x.first.shape, x.first.shape.width
        diagonal = torch.stack([x.first.diagonal_weights(a).flatten(1) for a in x.a])  # [3, H, tokens]
        own = torch.zeros(2, 2, *diagonal.shape[1:], dtype=diagonal.dtype, device=diagonal.device)
        own[0, 0], own[1, 0], own[1, 1] = diagonal  # by read-outs, output
        xi = x.deviations()
        q_F, q_G = (heads.q.flatten(1, 2) for heads in (x.first, x.second))  # [H, tokens, h]
        stacked = _stacked(x.cov)
        for g in range(shape.heads):
            for other, cov in enumerate(stacked):
                cov_g = cov[g]  # [2i or i, tokens, j]
                rows = cov_g.shape[0]
                summed = torch.einsum("rohs,ksj->rohkj", own, cov_g)  # Σ_s a_ss Cov_s
                weight = by_pair[:, :, g, :rows].unflatten(1, (2, width))  # [h, o, i, k]
                self.vq[:, :, :, other, g] += _by_group(
                    torch.einsum("hoik,rohkj->rhij", weight, summed), shape, 1
                )
                at_tokens = cov_g.transpose(0, 1)  # [tokens, 2i, j]
                pushed = [
                    ((part @ by_pair[:, :, g, :rows]).transpose(0, 1) @ at_tokens).transpose(0, 1)
                    for part in xi
                ]  # [H, tokens, j]
                base = q_G.mT @ pushed[0] + (q_F - q_G).mT @ pushed[1]
                both = shape.sigma * torch.stack([q_F.mT @ pushed[1], base])  # [2, H, h, j]
                self.kq[:, :, :, other, g] += _by_group(both, shape, 1)

    def _add_value_terms(self, x: _QueryBlock, Q: Tensor) -> None:
        """v,v and v,k."""
        shape = x.first.shape
        patterns = torch.stack([x.a[1], x.a[2]])  # δ, G [2, H, n, S, T]
        flat = patterns.flatten(0, 1).flatten(1)
        sums = (flat @ flat.T).unflatten(0, (2, -1)).unflatten(2, (2, -1))  # [2, H, 2, H]
        both = _by_read_and_output(_by_read_and_output(sums, 0), 3)  # [r, o, h, r, o, g]
        vv = torch.einsum("ohipgj,rohspg->rhisgj", Q, both)
        self.vv += _by_group(_by_group(vv, shape, 1), shape, 4)
        for g in range(shape.heads):
            base, change = self._pulled(x, patterns, g)
            of_base = _value_sums(x, g, 2, base)
            of_change = _value_sums(x, g, 0, change) + _value_sums(x, g, 1, base)
            terms = torch.stack([
                torch.stack([of_change + of_base, torch.zeros_like(of_base)]),  # v_F = δv + v_G
                torch.stack([of_change, of_base]),
            ])  # by read-outs and output of the key, [2, 2, 2 patterns, H, i, j]  # fmt: skip
            by_reads = _by_read_and_output(terms.movedim(2, 0), 0)  # [r, o, s, p, h, k, j]
            by_reads = by_reads.permute(0, 1, 4, 2, 3, 5, 6)  # [r, o, h, s, p, k, j]
            vk = shape.sigma * torch.einsum("ohipk,rohspkj->rhisj", Q[:, :, :, :, g], by_reads)
            self.vk[:, :, :, :, g // shape.shared] += _by_group(vk, shape, 1)

    @staticmethod
    def _pulled(
        x: _QueryBlock, patterns: Tensor, g: int
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Σ_s a b R_tᵀq̃_s and Σ_t a b R_tᵀq̃_s for b_G q̃_G, and for δb q̃_F + b_G δq̃; a is δa, a_G.

        [2, H, n, T, h] and [2, H, n, S, h] each.
        """
        rotary, keys = x.first.shape.rotary, x.first.keys

        def pull(b: Tensor, *queries: Tensor) -> list[tuple[Tensor, Tensor]]:  # [n, S, T], [n, S, h]
            ab = patterns * b
            by_key = (ab.mT @ torch.cat(queries, dim=-1)).chunk(len(queries), dim=-1)
            total = ab.sum(-1, keepdim=True)
            if rotary is None:
                return [(pulled, total * q) for pulled, q in zip(by_key, queries, strict=True)]
            cos, sin = rotary.waves(keys, ab)  # [T, p]
            pairs = cos.shape[1]
            cos, sin = ab @ cos, ab @ sin
            results = []
            for pulled, q in zip(by_key, queries, strict=True):
                first, second, still = q[..., :pairs], q[..., pairs : 2 * pairs], q[..., 2 * pairs :]
                turned = first * cos + second * sin, second * cos - first * sin
                by_query = torch.cat([*turned, total * still], dim=-1)
                results.append((rotary.turn(pulled, keys, back=True), by_query))
            return results

        b, q = [part[g] for part in x.b], [part[g] for part in x.q]
        base, change = pull(b[2], q[2], q[1])
        (more,) = pull(b[1], q[0])
        return base, (change[0] + more[0], change[1] + more[1])

    def _add_key_pairs(self, x: _QueryBlock, Q: Tensor) -> None:
        """k,k of the heads of every group with those of it and of later groups."""
        shape = x.first.shape
        turns = None
        if shape.rotary is not None:
            turns = KeyTurns(shape, x.first.first + x.first.k.shape[2], x.v[0])
        for G in range(shape.groups):
            left, right = slice(G * shape.shared, (G + 1) * shape.shared), slice(G * shape.shared, None)
            weights = _key_weights(x, left, right, Q[left, :, right])
            if turns is None:
                weights = [[part.sum(-1) for part in row] for row in weights]
            for read, pieces in enumerate(_queries(x, left)):
                for other, other_pieces in enumerate(_queries(x, right)):
                    chosen = torch.stack([
                        torch.stack([weights[i][j] for j, _ in other_pieces], dim=1) for i, _ in pieces
                    ])  # [I, h, J, g, n, S] or [I, h, J, g, n, S, T]  # fmt: skip
                    q = torch.stack([q for _, q in pieces])  # [I, h, n, S, h]
                    other_q = torch.stack([q for _, q in other_pieces])
                    if turns is None:
                        kk = _outer_sums(shape, chosen, q, other_q)
                    else:
                        kk = _turned_outer_sums(x, turns, chosen, q, other_q)
                    kk = shape.sigma**2 * kk  # [groups from G on, h, h]
                    self.kk[read, G, :, other, G:] += kk.transpose(0, 1)
                    self.kk[other, G + 1 :, :, read, G] += kk[1:].mT

    def _add_local(self, x: _QueryBlock) -> None:
        cov_F, cov_δ, cov_G = (cov.sum(2) for cov in x.cov)  # [H, i, j]
        self.local_q[0, :, :, 0] += cov_F
        self.local_q[0, :, :, 1] += cov_δ
        self.local_q[1, :, :, 1] += cov_G
        for read, pattern in enumerate(x.a[:2]):
            self.local_v[0, :, read] += x.first.diagonal_weights(pattern).sum((1, 2))
        self.local_v[1, :, 1] += x.first.diagonal_weights(x.a[2]).sum((1, 2))
        first, second = x.deviations()  # [H, tokens, 2h]
        width, sigma = x.first.shape.width, x.first.shape.sigma
        q_F, q_G = (heads.q.flatten(1, 2) for heads in (x.first, x.second))
        y_F = second[..., :width]
        self.local_k[0, :, :, 0] += sigma * y_F.mT @ q_F
        self.local_k[0, :, :, 1] += sigma * (first[..., :width].mT @ q_G + y_F.mT @ (q_F - q_G))
        self.local_k[1, :, :, 1] += sigma * first[..., width:].mT @ q_G

    def assembled(self, shape: AttentionShape) -> Sums:
        """Σ N_ss [2·H·h, 2·c_in] and Σ NᵀQN [2·c_in, 2·c_in]."""
        total, (queries, keys, _) = sum(shape.sizes), shape.sizes
        parts = {
            "q": slice(0, queries),
            "k": slice(queries, queries + keys),
            "v": slice(queries + keys, total),
        }
        gram = self.qq.new_zeros(2, total, 2, total)
        for rows, columns in ("qq", "kq", "vq", "kk", "vk", "vv"):
            block = getattr(self, rows + columns).flatten(4).flatten(1, 2)  # [2, rows, 2, columns]
            gram[:, parts[rows], :, parts[columns]] = block
            if rows != columns:
                gram[:, parts[columns], :, parts[rows]] = block.permute(2, 3, 0, 1)
        H, h = shape.heads, shape.width
        local = gram.new_zeros(2, H, h, 2, total)
        identity = torch.eye(h, dtype=gram.dtype, device=gram.device)
        for head in range(H):
            q, k, v = shape.rows(head)
            local[:, head, :, :, q] = self.local_q[:, head]
            local[:, head, :, :, k] = self.local_k[:, head]
            local[:, head, :, :, v] = self.local_v[:, head, None, :, None] * identity[:, None]
        return {"local": local.flatten(3).flatten(0, 2), "gram": gram.flatten(2).flatten(0, 1)}


def _stacked(cov: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Cov by read-outs, outputs stacked: of Δ the change alone [H, i, tokens, j], of G both [H, 2i, …]."""
    return cov[0], torch.cat([cov[1], cov[2]], dim=1)


def _value_sums(x: _QueryBlock, head: int, part: int, pulled: tuple[Tensor, Tensor]) -> Tensor:
    """Σ_st a b (v_t − z_s)(R_tᵀq̃_s)ᵀ for v of F, δ or G and sums of `_Sums._pulled`, [2, H, i, j]."""
    by_key, by_query = pulled
    return (x.v[part][head].mT @ by_key - x.z[part][head].mT @ by_query).sum(2)


def _by_read_and_output(x: Tensor, dim: int) -> Tensor:
    """(δ, G) in a dimension to read-outs (Δ, G) and output (change, base): a_F, none; δa, a_G."""
    change, base = x.unbind(dim)
    first = torch.stack([change + base, torch.zeros_like(base)], dim)
    return torch.stack([first, torch.stack([change, base], dim)], dim)


def _by_group(x: Tensor, shape: AttentionShape, dim: int) -> Tensor:
    """Sums over the heads of every group."""
    return x if shape.shared == 1 else x.unflatten(dim, (shape.groups, shape.shared)).sum(dim + 1)


def _queries(x: _QueryBlock, heads: slice) -> tuple[list[tuple[int, Tensor]], list[tuple[int, Tensor]]]:
    """Number of ξ (from 0) and its queries, for read-outs Δ and G."""
    q_F, q_δ, q_G = (part[heads] for part in x.q)
    return [(1, q_F)], [(0, q_G), (1, q_δ)]


def _key_weights(x: _QueryBlock, left: slice, right: slice, Q: Tensor) -> list[list[Tensor]]:
    """ξ_iᵀ Q ξ_j for the heads of one group and other heads, [h, g, n, S, T] each; Q [h, 2i, g, 2j]."""
    b_F, δb, b_G = (part[left][:, None] for part in x.b)
    other_b_F, other_δb, other_b_G = (part[right] for part in x.b)
    (F, one), (other_F, other_one) = (_values(x, heads) for heads in (left, right))
    width = F[0].shape[-1]
    D_FF = _deviations(F, other_F, Q[:, :width, :, :width])
    D_F1 = _deviations(F, other_one, Q[:, :width])
    D_1F = _deviations(one, other_F, Q[..., :width])
    D_11 = _deviations(one, other_one, Q)
    onto_F = (δb * D_FF).addcmul_(b_G, D_1F)  # ξ_1ᵀ Q ν_F
    onto_1 = D_11.mul_(b_G).addcmul_(δb, D_F1)
    from_F = D_F1.mul_(other_b_G).addcmul_(D_FF, other_δb)  # ν_Fᵀ Q ξ_1
    return [
        [onto_1.mul_(other_b_G).addcmul_(onto_F, other_δb), onto_F * other_b_F],
        [from_F.mul_(b_F), D_FF.mul_(b_F).mul_(other_b_F)],
    ]


def _values(x: _QueryBlock, heads: slice) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(ν [h, n, T, ·], ζ [h, n, S, ·]) of some heads, F and 1."""
    v, z = ([part[heads] for part in parts] for parts in (x.v, x.z))
    return (v[0], z[0]), (torch.cat([v[1], v[2]], dim=-1), torch.cat([z[1], z[2]], dim=-1))


def _deviations(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], Q: Tensor) -> Tensor:
    """(ν_t − ζ_s)ᵀ Q (ν′_t − ζ′_s), [h, g, n, S, T]; Q [h, i, g, j]. The heads h share ν."""
    (v, z), (w, y) = left, right
    by_head = Q.transpose(1, 2)[:, :, None]  # [h, g, 1, i, j]
    by_key = ((v[0] @ by_head) * w).sum(-1)  # [h, g, n, T]
    from_left = z[:, None] @ by_head  # [h, g, n, S, j]
    from_right = y @ by_head.mT  # [h, g, n, S, i]
    by_query = (from_left * y).sum(-1)
    shape = by_key.shape
    rows = torch.cat([from_left, from_right, by_query[..., None], torch.ones_like(by_query)[..., None]], -1)
    columns = torch.cat([(-w).expand(*shape, -1), (-v[0]).expand(*shape, -1)], dim=-1)
    columns = torch.cat([columns, torch.ones_like(by_key)[..., None], by_key[..., None]], dim=-1)
    return rows @ columns.mT


def _outer_sums(shape: AttentionShape, weights: Tensor, q: Tensor, other_q: Tensor) -> Tensor:
    """Σ_s w_s q_s q′_sᵀ by groups of the second heads, [groups, h, h].

    weights [I, h, J, g, n, S], q [I, h, n, S, h], other_q [J, g, n, S, h].
    """
    mixed = torch.einsum("ahbgns,ahnsi->gbnsi", weights, q).flatten(1, 3)
    by_head = mixed.mT @ other_q.transpose(0, 1).flatten(1, 3)  # [g, h, h]
    return by_head.unflatten(0, (-1, shape.shared)).sum(1)


def _turned_outer_sums(
    x: _QueryBlock, turns: KeyTurns, weights: Tensor, q: Tensor, other_q: Tensor
) -> Tensor:  # [groups, h, h]
    """Σ_st w_st (R_tᵀq̃_s)(R_tᵀq̃′_s)ᵀ by groups of the second heads; weights [I, h, J, g, n, S, T]."""
    shared = x.first.shape.shared
    ordered = turns.ordered(q.flatten(0, 1)).permute(3, 0, 1, 2).flatten(2)  # [2p′, h, n·S]
    results = []
    for start in range(0, weights.shape[3], shared):
        heads = slice(start, start + shared)
        part = weights[:, :, :, heads].flatten(2, 3).flatten(0, 1)  # [h, g, n, S, T]
        other_part = other_q[:, heads].flatten(0, 1)
        other_ordered = turns.ordered(other_part).permute(3, 0, 1, 2).flatten(2)
        total: Tensor | None = None
        for first, keys in x.key_blocks():
            by_key = part[..., keys].permute(4, 0, 1, 2, 3).flatten(3)  # [B, h, g, n·S]
            brackets = KeyBrackets(turns, first, len(by_key), same=False)
            brackets.add(by_key, ordered, other_ordered)
            total = brackets.turned() if total is None else total + brackets.turned()
        assert total is not None
        results.append(turns.restored(total))
    return torch.stack(results)
