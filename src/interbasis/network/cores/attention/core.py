"""Multi-head softmax attention on queries, keys and values that were read already."""

from dataclasses import replace

import torch
from torch import Tensor

from interbasis.base.memory import elements_within
from interbasis.network.cores.attention import edges, rotary_moments
from interbasis.network.cores.attention.heads import AttentionShape, Heads
from interbasis.network.cores.attention.mixing import mixed_values
from interbasis.network.cores.attention.moments import HeadSums, add_block, value_products
from interbasis.network.cores.attention.short_cuts import ShortCuts
from interbasis.network.cores.core import Counted, Moments, PassCore, SamplesQueries, Sums
from interbasis.numerics.integration import Rule

MAX_QUERIES_PER_BLOCK = 128
"""Queries handled at once: bounds the memory, and lets causal attention skip keys that none of them sees."""

MIN_QUERIES_PER_BLOCK = 16
"""Sampled queries handled at once, at least: fewer skip more keys, and run slower."""

MAX_QUERIES_PER_SUM = 512
"""Queries summed with signs at once: more share what is done per key, fewer skip more keys."""

MAX_TURNED_QUERIES_PER_SUM = 4096
"""Queries summed with signs at once with rotary positions, where much more is done per key."""

MAX_BLOCK_ELEMENTS = 2**22
"""Elements that the covariances, or the patterns, of the queries handled at once may hold."""

MAX_PATTERN_ELEMENTS = 2**25
"""Elements of the patterns that are held at once where rotary positions turn queries and keys."""


class Attention(ShortCuts, PassCore, SamplesQueries):
    """u = [q | k | v], queries heads · h wide, keys and values groups · h; core(u) = z, heads · h wide.

    For one head, query s and key t, with a = softmax pattern, z_s = Σ_u a_su v_u, k̄_s = Σ_u a_su k_u,
    σ the scale (1/√h) and Cov_s = σ (Σ_u a_su v_u k_uᵀ − z_s k̄_sᵀ), the Jacobian is

        N_st = a_st [ I on v  +  σ (v_t − z_s) q_sᵀ on k ]  +  δ_st [ Cov_s on q ].

    For a pair of heads (h, g), with aa = a^h ∘ a^g and Q the pair's block of the metric, the blocks of
    Σ_st N_stᵀQN_st, the sum over *all* pairs of positions, are

        v,v  Q Σ_st aa_st
        v,k  σ Q Σ_s (aa v^g − rowsum(aa) z^g)_s q^g_sᵀ
        v,q  Q Σ_s a^h_ss Cov^g_s
        k,k  σ² Σ_s w_s q^h_s q^g_sᵀ,   w_s = Σ_t aa_st (v^h_t − z^h_s)ᵀ Q (v^g_t − z^g_s)
        k,q  σ Σ_s a^h_ss q^h_s (v^h_s − z^h_s)ᵀ Q Cov^g_s
        q,q  Σ_s Cov^h_sᵀ Q Cov^g_s.

    *Rotary positions*: scores are made of R_s q_s and R_t k_t; a key sees R_tᵀR_s q_s in place of q_s, and
    Cov_s, made from turned keys, has R_s on its right. *Soft-capped scores*: the k and q terms carry
    b_st = a_st cap′(score_st) in place of a_st. *Local windows*: a_st = 0 outside. *Grouped keys and
    values*: several heads read the same k and v, and the blocks above are summed over the heads of a group.
    *Biases of scores* and *sinks*, keys without values, change the pattern alone.

    Cost per token about 4H²Th + 2Th²H + 2H²h³ multiplications and additions; the memory is that of one
    block of queries.
    """

    mixes_positions = True

    def __init__(self, shape: AttentionShape):
        self.shape = shape

    def __repr__(self) -> str:
        shape = self.shape
        words = [f"{shape.heads} heads of {shape.width}", "causal" if shape.causal else "bidirectional"]
        if shape.shared > 1:
            words.append(f"{shape.groups} of keys")
        if shape.sigma != shape.width**-0.5:
            words.append(f"scale {shape.sigma:.6g}")
        if shape.window is not None:
            words.append(f"window {shape.window}")
        if shape.cap is not None:
            words.append(f"cap {shape.cap:.6g}")
        if shape.sinks is not None:
            words.append("sinks")
        words += [repr(part) for part in (shape.rotary, shape.bias) if part is not None]
        return f"Attention({', '.join(words)})"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        if self.shape.has_odd_scores or torch.is_grad_enabled():
            return self._heads(u, outputs).mixed_values().permute(1, 2, 0, 3).flatten(2)
        return mixed_values(self.shape, u, outputs)

    def at(self, u: Tensor, positions: Tensor) -> Tensor:
        return Heads.from_read_outs(self.shape, u, positions).mixed_values().permute(1, 2, 0, 3).flatten(2)

    def _heads(self, u: Tensor, outputs: slice) -> Heads:
        seen = outputs.stop if self.shape.causal else u.shape[1]
        return Heads.from_read_outs(self.shape, u[:, :seen], _positions(u, outputs))

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None = None
    ) -> Sums:
        """Compute exact sums, whatever the signs: the closed form needs no sources."""
        return self.sums_at(u, _positions(u, outputs), metric, counted)

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return HeadSums(**sums).assemble(metric, self.shape)

    def sums_at(self, u: Tensor, positions: Tensor, metric: Tensor, counted: Counted | None = None) -> Sums:
        """Compute sums over the queries at ``positions`` [n, S], each sample's own, and over all keys.

        Of ``counted`` tokens: N_st of queries that count as outputs and keys that count as inputs, with
        patterns over all keys.
        """
        heads, width = self.shape.heads, self.shape.width
        sums = HeadSums.zero(self.shape, u)
        block, keys = self._queries_at_once(u, positions), u.shape[1]
        largest = max(heads * block * width**2, keys * width**2, heads * block * keys)
        samples = max(1, elements_within(MAX_BLOCK_ELEMENTS, u.element_size()) // largest)
        for start in range(0, len(u), samples):
            whole = self._whole(u, positions, counted, slice(start, start + samples))
            products = value_products(whole.v, metric)
            for first in range(0, positions.shape[1], block):
                x = whole.queries(first, first + block)
                add_block(sums, x, metric, products[..., x.first : x.first + x.k.shape[2]])
        if self.shape.rotary is not None:
            self._add_turned_key_terms(sums, u, positions, metric, counted)
        return vars(sums)

    def _queries_at_once(self, u: Tensor, positions: Tensor) -> int:
        """Queries in a block: as many as are quick, or as few as memory has room for.

        Queries that are sampled see keys as far apart as they are: a block of these holds fewer.
        """
        each = self.shape.heads * max(self.shape.width**2, u.shape[1])
        room = elements_within(MAX_QUERIES_PER_BLOCK * each, u.element_size()) // each
        few = max(MIN_QUERIES_PER_BLOCK, MAX_QUERIES_PER_BLOCK * positions.shape[1] // u.shape[1])
        return max(1, min(room, few, positions.shape[1]))

    def _whole(self, u: Tensor, positions: Tensor, counted: Counted | None, samples: slice) -> Heads:
        """Return heads of a few samples, with values about their mean."""
        whole = Heads.from_read_outs(self.shape, u[samples], positions[samples]).centred()
        if counted is None:
            return whole
        return replace(whole, counted=Counted(*(mask[samples].to(u) for mask in counted)))

    def _add_turned_key_terms(
        self, sums: HeadSums, u: Tensor, positions: Tensor, metric: Tensor, counted: Counted | None
    ) -> None:
        """Add the terms for as many samples, and queries of them, at once as fit in memory."""
        width = self.shape.width
        most = elements_within(MAX_PATTERN_ELEMENTS, u.element_size())
        # elements per query: of patterns, and of what all pairs of heads of two groups have
        patterns = self.shape.heads * u.shape[1]
        pairs = self.shape.shared**2 * 2 * (width + rotary_moments.KEYS_PER_BLOCK)
        block = max(1, min(self._queries_at_once(u, positions), most // pairs))
        few = most // (patterns * positions.shape[1])
        room = elements_within(MAX_BLOCK_ELEMENTS, u.element_size())
        samples = max(1, min(room // (block * max(width**2, pairs)), few))
        queries = max(1, most // (samples * patterns * block)) * block
        for first in range(0, len(u), samples):
            whole = self._whole(u, positions, counted, slice(first, first + samples))
            for start in range(0, positions.shape[1], queries):
                part = whole.queries(start, start + queries, rotary_moments.KEYS_PER_BLOCK)
                rotary_moments.add_key_terms(sums, part, metric, block)

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        """Compute attributions by gradient or quadrature; attention has no closed form along the line."""
        total = u.new_zeros(())
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            x = self._heads(node * u, outputs).centred().queries(0, outputs.stop - outputs.start)
            total = total + weight * edges.by_query(x, f, read)
        return total

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule, signs: Tensor
    ) -> Tensor:
        if signs.shape[1] == 1:  # tokens by themselves
            return super().signed_attributions(u, f, read, outputs, rule, signs)
        return self.signed_attributions_at(u, f, read, _positions(u, outputs), rule, signs)

    def signed_attributions_at(
        self, u: Tensor, f: Tensor, read: Tensor, positions: Tensor, rule: Rule, signs: Tensor
    ) -> Tensor:
        """Sums over a sample's queries go inside, run by run of queries that belong to one group."""
        groups, size, sources = signs.shape
        count = positions.shape[1]
        by_token = signs.flatten(0, 1)
        longest = MAX_QUERIES_PER_SUM if self.shape.rotary is None else MAX_TURNED_QUERIES_PER_SUM
        result = f.new_zeros(self.shape.heads * self.shape.width, groups, sources, f.shape[2])
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            for sample in range(len(u)):
                samples = slice(sample, sample + 1)
                x = Heads.from_read_outs(self.shape, node * u[samples], positions[samples]).centred()
                token, end = sample * count, (sample + 1) * count
                while token < end:
                    group = token // size
                    stop = min((group + 1) * size, end, token + longest)
                    part = x.queries(token - sample * count, stop - sample * count)
                    result[:, group] += weight * edges.signed(part, f[sample], read, by_token[token:stop])
                    token = stop
        return result.flatten(1, 2)


def _positions(u: Tensor, outputs: slice) -> Tensor:  # [n, S]
    return torch.arange(outputs.start, outputs.stop, device=u.device).expand(len(u), -1)
