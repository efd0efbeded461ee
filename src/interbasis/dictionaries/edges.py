"""Edges between the features of two dictionaries at the ends of a section, over data.

At a node layer with a dictionary, f = D f̂ with f̂ = [1; z; e] exactly: z the sparse activations, e the
error; decoding is linear. For a section F(f) = P f + B · core(A f), target pre-activations u′ = W′ F(f) + b′
and mean slopes N̄ along the straight line from 0, the attribution of an active feature i to an active feature
j is

    A_ij = W′_i (P + B N̄ A) W_d,j z_j,

to the error the same with e in place of W_d,j z_j, and to the constant with what D gives for it, plus b′_i.
Together they add up to u′_i. At a token only the rows of active i and the columns of active j are taken:

    h_i = N̄ᵀ (W′B)_i [c_in],    A_ij = ((W′ P W_d)_ij + h_i · (A W_d)_j) z_j.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.dictionaries.layers import ActiveFeatures, DictionaryLayer
from interbasis.network.network import Section
from interbasis.numerics.integration import Rule

MAX_GATHERED_ELEMENTS = 2**23
"""Numbers that the gathered rows and columns of one block of tokens may hold."""


@dataclass(frozen=True, eq=False)
class SectionInDictionaries:
    """A section that does not mix positions between two dictionaries, with its products precomputed."""

    section: Section
    source: DictionaryLayer
    target: DictionaryLayer
    rule: Rule
    skip: Tensor  # W′ P W_dᵀ [K_out, K_in]
    read: Tensor  # (A W_dᵀ)ᵀ [K_in, c_in]
    write: Tensor  # W′ B [K_out, c_out]
    target_skip: Tensor  # W′ P [K_out, d_in]

    @classmethod
    def from_layers(
        cls, source: DictionaryLayer, target: DictionaryLayer, section: Section, rule: Rule
    ) -> "SectionInDictionaries":
        """Take the section from the node layer of the source's vectors to what the target reads."""
        W, D = target.dictionary.encoder, source.dictionary.decoder
        target_skip = W @ section.skip[target.columns]
        return cls(
            section, source, target, rule,
            skip=target_skip[:, source.source_columns] @ D.T,
            read=D @ section.read[:, source.source_columns].T,
            write=W @ section.write[target.columns],
            target_skip=target_skip,
        )  # fmt: skip

    @torch.no_grad()
    def attributions(
        self, f: Tensor, z: ActiveFeatures, remainders: Tensor, out: ActiveFeatures
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield (tokens, A [tokens, k_out, k_in + 3]) in blocks: features of the source, then its remainders.

        Args:
            f: Activations [n, d_in] of the section's source.
            z: Active features [n, k_in] of the source.
            remainders: What f holds beside them, [n, 3, d_in].
            out: Active features [n, k_out] of the target.
        """
        k = max(z.indices.shape[1], out.indices.shape[1])
        size = max(1, MAX_GATHERED_ELEMENTS // (2 * k * max(self.read.shape[1], self.write.shape[1])))
        for start in range(0, len(f), size):
            tokens = slice(start, start + size)
            u = self.section.read_outs(f[None, tokens])[0]
            rows, columns = out.indices[tokens], z.indices[tokens]
            h = self.section.core.pull_back(u, self.write[rows], self.rule)  # [n, k_out, c_in]
            direct = self.skip[rows[:, :, None], columns[:, None]]
            features = (direct + h @ self.read[columns].mT) * z.values[tokens, None]
            x = remainders[tokens]
            beside = self.target_skip[rows] @ x.mT + h @ self.section.read_outs(x).mT
            yield tokens, torch.cat([features, beside], dim=-1)
