"""Attributions along a chain of sections: from vectors at tokens of a node layer to features of a later one.

Every section F has a mean Jacobian along the straight line from 0 to its input, P + B N̄ A, which is complete:
applied to the input itself it gives the output. Along a chain their product is complete, too. With rows g of
the target (an encoder's rows) and vectors x that add up to the source, the attribution of a row at position s
to a vector at position t is

    A = g_s · (Π_l (P + B N̄ A)_l) x_t.

Sections that do not mix positions are cheap from both ends: vectors are pushed forward, rows pulled back, and
they meet at the attention between them, in its value, key and query paths (`QueryPaths`). With the rule
``gradient`` this is the gradient times the input of the whole chain; with ``exact`` it is complete section by
section, which is not integrated gradients of the chain as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from interbasis.network.cores.attention import Attention
from interbasis.network.cores.attention.paths import QueryPaths
from interbasis.network.network import Section
from interbasis.numerics.integration import Rule

PATHS = ("skip", "value", "key", "query")
"""Ways through attention: past it, what is moved, why it is attended to, why it attends."""
MAX_PULLED_ELEMENTS = 2**25
"""Numbers that rows at all positions may hold while they are pulled back through several attentions."""


def is_positionwise(section: Section) -> bool:
    """Whether every output position depends on the input there alone."""
    return section.reads_per_position and not section.core.mixes_positions


@dataclass(frozen=True, eq=False)
class Chain:
    """Neighbouring sections, none or several."""

    sections: tuple[Section, ...]
    rule: Rule

    @cached_property
    def _mixing(self) -> list[int]:
        return [k for k, section in enumerate(self.sections) if not is_positionwise(section)]

    @property
    def mixes_positions(self) -> bool:
        """Whether an output position depends on other input positions."""
        return bool(self._mixing)

    @torch.no_grad()
    def activations(self, f: Tensor) -> list[Tensor]:  # [n, T, d]
        """f at every node layer of the chain, the first and the last among them."""
        result = [f]
        for section in self.sections:
            result.append(section(result[-1]))
        return result

    def attributions_at_tokens(
        self, activations: Sequence[Tensor], vectors: Tensor, rows: Tensor
    ) -> Tensor:  # [n, k, M]
        """Attributions where positions do not mix.

        Args:
            activations: Activations [n, d_l] of n tokens at every node layer of the chain.
            vectors: Vectors [n, M, d_0] at the first.
            rows: Rows [n, k, d_L] at the last.
        """
        for section, f in zip(reversed(self.sections), reversed(activations[:-1]), strict=True):
            rows = section.pull_back(f, rows, self.rule)
        return rows @ vectors.mT

    def attributions(
        self, activations: Sequence[Tensor], vectors: Tensor, rows: Tensor, positions: Tensor
    ) -> dict[str, Tensor]:
        """Attributions in one sample, by path; they add up.

        Args:
            activations: Activations [T, d_l] of the sample at every node layer of the chain.
            vectors: Vectors [T, M, d_0] at the first.
            rows: Rows [S, k, d_L] at positions of the last.
            positions: These positions [S].

        Returns:
            Through a single attention "value" and "key" [S, k, T, M] from all positions, "skip" and "query"
            [S, k, M] from the row's own; else "total" [S, k, T, M].
        """
        if len(self._mixing) != 1 or not isinstance(self.sections[self._mixing[0]].core, Attention):
            return {"total": self._pulled(activations, vectors, rows, positions)}
        place = self._mixing[0]
        for section, f in zip(self.sections[:place], activations, strict=False):
            vectors = section.push_forward(f, vectors, self.rule)
        attention = self.sections[place]
        later = self.sections[place + 1 :]
        for section, f in zip(reversed(later), reversed(activations[place + 1 : -1]), strict=True):
            positions = positions + section.positions_out(len(f)).start
            rows = section.pull_back(f[positions], rows, self.rule)
        core = attention.core
        assert isinstance(core, Attention)
        queries = positions + attention.positions_out(len(activations[place])).start
        count = rows.shape[1]
        u = attention.read_outs(activations[place][None])[0]
        cotangents = (rows @ attention.write).flatten(0, 1)
        paths = QueryPaths.from_cotangents(
            core.shape, u, cotangents, queries.repeat_interleave(count), self.rule
        )
        read = attention.read_outs(vectors)  # [T, M, c_in]
        value, key = paths.on_tangents(read)
        here = (rows @ attention.skip) @ vectors[queries].mT  # [S, k, M]
        own = paths.query.unflatten(1, (-1, count)).permute(1, 2, 0, 3).flatten(2)  # [S, k, H·h]
        query = own @ read[queries][..., : own.shape[-1]].mT
        shape = (len(queries), count)
        return {
            "skip": here,
            "query": query,
            "value": value.unflatten(0, shape),
            "key": key.unflatten(0, shape),
        }

    def _pulled(
        self, activations: Sequence[Tensor], vectors: Tensor, rows: Tensor, positions: Tensor
    ) -> Tensor:  # [S, k, T, M]
        """Attributions by pulling rows back at all positions, a backward pass of the chain for each row."""
        flat = rows.flatten(0, 1)
        places = positions.repeat_interleave(rows.shape[1])
        widest = max(f.numel() for f in activations)
        blocks = []
        size = max(1, MAX_PULLED_ELEMENTS // (2 * widest))
        for g, at in zip(flat.split(size), places.split(size), strict=True):
            pulled = g.new_zeros(len(g), *activations[-1].shape)
            pulled[torch.arange(len(g), device=g.device), at] = g
            for section, f in zip(reversed(self.sections), reversed(activations[:-1]), strict=True):
                pulled = _pull_at_all_positions(section, f, pulled, self.rule)
            blocks.append(torch.einsum("rtd,tmd->rtm", pulled, vectors))
        return torch.cat(blocks).unflatten(0, rows.shape[:2])


def _pull_at_all_positions(section: Section, f: Tensor, rows: Tensor, rule: Rule) -> Tensor:
    """(P + B N̄ A)ᵀ g for rows g [r, S, d_out] at all positions, [r, T, d_in]; f [T, d_in]."""
    if is_positionwise(section) and not section.last_only:
        return section.pull_back(f, rows.transpose(0, 1), rule).transpose(0, 1)
    total = rows.new_zeros(len(rows), *f.shape)
    for node, weight in zip(rule.nodes, rule.weights, strict=True):
        with torch.enable_grad():
            at = (node * f).detach().requires_grad_()
            output = section(at[None])[0]
        total += weight * torch.autograd.grad(output, at, rows, is_grads_batched=True)[0]
    return total
