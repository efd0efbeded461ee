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

    def push(self, activations: Sequence[Tensor], vectors: Tensor) -> "PushedVectors":
        """Push vectors [T, M, d_0] at one sample's tokens forward to the attention of the chain.

        ``activations`` are the sample's [T, d_l] at every node layer of the chain. With several attentions in
        the chain, or a section of another kind that mixes positions, vectors stay where they are.
        """
        place = self._mixing[0]
        attention = self.sections[place]
        if len(self._mixing) != 1 or not isinstance(attention.core, Attention):
            return PushedVectors(vectors, None)
        for section, f in zip(self.sections[:place], activations, strict=False):
            vectors = section.push_forward(f, vectors, self.rule)
        return PushedVectors(vectors, attention.read_outs(vectors))

    def attributions(
        self, activations: Sequence[Tensor], pushed: "PushedVectors", rows: Tensor, positions: Tensor
    ) -> dict[str, Tensor]:
        """Attributions in one sample: from all positions, and the part that only a row's own position has.

        Args:
            activations: Activations [T, d_l] of the sample at every node layer of the chain.
            pushed: Vectors at the first of them, as `push` returns them.
            rows: Rows [S, k, d_L] at positions of the last.
            positions: These positions [S], in ascending order.

        Returns:
            "anywhere" [T', M, S·k] from the T' ≤ T positions that some row sees, and "own" [S, k, M].
        """
        paths = self.paths(activations, pushed, rows, positions)
        if "total" in paths:
            return {"anywhere": paths["total"], "own": rows.new_zeros(*rows.shape[:2], pushed.at.shape[1])}
        return {"anywhere": paths["value"] + paths["key"], "own": paths["skip"] + paths["query"]}

    @property
    def heads(self) -> int:
        """Heads of the one attention in the chain; 0 where there is none, or several."""
        core = self.sections[self._mixing[0]].core if len(self._mixing) == 1 else None
        return core.shape.heads if isinstance(core, Attention) else 0

    def paths(
        self,
        activations: Sequence[Tensor],
        pushed: "PushedVectors",
        rows: Tensor,
        positions: Tensor,
        *,
        head: int | None = None,
    ) -> dict[str, Tensor]:
        """`attributions` by path: "value", "key" [T', M, S·k], "skip", "query" [S, k, M]; or "total".

        With ``head``, the parts through attention are those of one head.
        """
        if pushed.read is None:
            return {"total": self._pulled(activations, pushed.at, rows, positions)}
        place = self._mixing[0]
        later = self.sections[place + 1 :]
        for section, f in zip(reversed(later), reversed(activations[place + 1 : -1]), strict=True):
            positions = positions + section.positions_out(len(f)).start
            rows = section.pull_back(f[positions], rows, self.rule)
        attention, f = self.sections[place], activations[place]
        core, queries = attention.core, positions + attention.positions_out(len(f)).start
        assert isinstance(core, Attention)
        visible = int(queries.max()) + 1 if core.shape.causal else len(f)
        count, cotangents = rows.shape[1], (rows @ attention.write).flatten(0, 1)
        if head is not None:
            columns = torch.arange(cotangents.shape[1], device=rows.device)
            cotangents = cotangents * (columns // core.shape.width == head)
        paths = QueryPaths.from_cotangents(
            core.shape, attention.read_outs(f[None, :visible])[0], cotangents,
            queries.repeat_interleave(count), self.rule,
        )  # fmt: skip
        value, key = paths.on_tangents(pushed.read[:visible])
        skip = (rows @ attention.skip) @ pushed.at[queries].mT
        of_query = paths.query.unflatten(1, (-1, count)).permute(1, 2, 0, 3).flatten(2)  # [S, k, H·h]
        query = of_query @ pushed.read[queries][..., : of_query.shape[-1]].mT
        return {"skip": skip, "query": query, "value": value, "key": key}

    def _pulled(
        self, activations: Sequence[Tensor], vectors: Tensor, rows: Tensor, positions: Tensor
    ) -> Tensor:  # [T, M, S·k]
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
            blocks.append(torch.einsum("rtd,tmd->tmr", pulled, vectors))
        return torch.cat(blocks, dim=2)


@dataclass(frozen=True, eq=False)
class PushedVectors:
    """Vectors at the tokens of a sample, pushed forward to an attention."""

    at: Tensor  # [T, M, d] at the attention's node layer, or at the chain's first
    read: Tensor | None  # [T, M, c_in], what attention reads of them


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
