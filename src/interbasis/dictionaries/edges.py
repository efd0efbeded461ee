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

from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import Rule

MAX_GATHERED_ELEMENTS = 2**23
"""Numbers that the gathered rows and columns of one block of tokens may hold."""


@dataclass(frozen=True, eq=False)
class DictionaryLayer:
    """A dictionary of one stream of a node layer; other coordinates are carried as they are."""

    index: int
    """Number of the node layer."""
    columns: slice
    """Coordinates of the stream."""
    dictionary: Dictionary

    @classmethod
    def from_network(cls, network: Network, layer: str, dictionary: Dictionary) -> "DictionaryLayer":
        """Place a dictionary at the stream that the section after a node layer reads.

        Raises:
            InterbasisError: There is no such layer, or the stream has another width.
        """
        if layer not in network.layers[:-1]:
            raise InterbasisError(
                f"there is no node layer {layer!r} with a section after it; expected one of "
                f"{', '.join(network.layers[:-1])}"
            )
        index = network.layers.index(layer)
        columns = slice(*network.sections[index].columns_read)
        width = columns.stop - columns.start
        if dictionary.encoder.shape[1] != width or dictionary.is_transcoder or dictionary.scaling != "none":
            raise InterbasisError(
                f"expected a dictionary of {width} coordinates at {layer!r}, without scaling of tokens, "
                f"received {dictionary.encoder.shape[1]}"
            )
        return cls(index, columns, dictionary.to(network.dtype).to(network.device))

    def encode(self, f: Tensor) -> "ActiveFeatures":  # [tokens, width]
        """Active features of tokens."""
        u = self.dictionary.preactivations(f[:, self.columns])
        active = self.dictionary.is_active(u)
        most = max(1, int(active.sum(1).max())) if len(u) else 1
        indices = active.to(torch.uint8).topk(most, 1).indices
        values = torch.where(active, u, 0.0).gather(1, indices)
        return ActiveFeatures(indices, values, active.gather(1, indices))


@dataclass(frozen=True, eq=False)
class ActiveFeatures:
    """Active features of tokens, filled up to as many as the token with most of them has."""

    indices: Tensor  # [tokens, k]
    values: Tensor  # [tokens, k]; 0 where filled up
    real: Tensor  # [tokens, k], bool

    def decode(self, dictionary: Dictionary) -> Tensor:  # [tokens, d]
        z = self.values.new_zeros(len(self.values), dictionary.features)
        return dictionary.decode(z.scatter(1, self.indices, self.values))


@dataclass(frozen=True, eq=False)
class TokenEdges:
    """Attributions of the active target features at tokens."""

    source: ActiveFeatures
    target: ActiveFeatures
    features: Tensor  # [tokens, k_out, k_in]
    error: Tensor  # [tokens, k_out]
    constant: Tensor  # [tokens, k_out]
    """With everything that is carried beside the stream."""


@dataclass(frozen=True, eq=False)
class SectionInDictionaries:
    """A section between two dictionaries, with its products precomputed."""

    section: Section
    source: DictionaryLayer
    target: DictionaryLayer
    skip: Tensor  # W′ P W_d [K_out, K_in]
    read: Tensor  # (A W_d)ᵀ [K_in, c_in]
    write: Tensor  # W′ B [K_out, c_out]
    target_skip: Tensor  # W′ P [K_out, d_in]

    @classmethod
    def from_layers(
        cls, network: Network, source: DictionaryLayer, target: DictionaryLayer
    ) -> "SectionInDictionaries":
        """Take the section between neighbouring node layers.

        Raises:
            InterbasisError: The layers are no neighbours, or the section mixes positions.
        """
        if target.index != source.index + 1:
            raise InterbasisError("expected dictionaries of neighbouring node layers")
        section = network.sections[source.index]
        if section.core.mixes_positions or not section.reads_per_position or section.last_only:
            raise InterbasisError(
                f"the section from {section.source.name!r} mixes positions; expected one that does not"
            )
        W, D = target.dictionary.encoder, source.dictionary.decoder
        target_skip = W @ section.skip[target.columns]
        return cls(
            section, source, target,
            skip=target_skip[:, source.columns] @ D.T,
            read=D @ section.read[:, source.columns].T,
            write=W @ section.write[target.columns],
            target_skip=target_skip,
        )  # fmt: skip

    @torch.no_grad()
    def token_edges(self, f: Tensor, rule: Rule) -> Iterator[TokenEdges]:  # [tokens, d_in]
        """Yield attributions in blocks of tokens."""
        k = max(self.source.dictionary.active or 32, self.target.dictionary.active or 32)
        size = max(1, MAX_GATHERED_ELEMENTS // (2 * k * max(self.read.shape[1], self.write.shape[1])))
        for block in f.split(size):
            yield self._block(block, rule)

    def _block(self, f: Tensor, rule: Rule) -> TokenEdges:
        source, target, section = self.source, self.target, self.section
        z = source.encode(f)
        following = section(f[:, None])[:, 0]
        out = target.encode(following)
        tokens, k_out = out.indices.shape
        u = section.read_outs(f[:, None])[:, 0]
        rows = out.indices.flatten()
        h = section.core.pull_back(u.repeat_interleave(k_out, 0), self.write[rows], rule)
        h = h.view(tokens, k_out, -1)  # [tokens, k_out, c_in]
        direct = self.skip[out.indices[:, :, None], z.indices[:, None]]  # [tokens, k_out, k_in]
        through = h @ self.read[z.indices].mT
        features = (direct + through) * z.values[:, None]
        remaining = f.clone()  # the constant, what is carried, and the decoder's bias
        stream = f[:, source.columns]
        error = stream - z.decode(source.dictionary)
        remaining[:, source.columns] = source.dictionary.decoder_bias
        read = section.read
        skips = self.target_skip[out.indices]  # [tokens, k_out, d_in]
        return TokenEdges(
            z, out, features * out.real[..., None],
            error=_along(skips[..., source.columns], h, error, error @ read[:, source.columns].T) * out.real,
            constant=(
                _along(skips, h, remaining, remaining @ read.T) + target.dictionary.encoder_bias[out.indices]
            ) * out.real,
        )  # fmt: skip


def _along(skips: Tensor, h: Tensor, x: Tensor, read: Tensor) -> Tensor:  # [tokens, k_out]
    """Attribution to one vector per token: W′P x + h · A x."""
    return (skips @ x[..., None])[..., 0] + (h @ read[..., None])[..., 0]
