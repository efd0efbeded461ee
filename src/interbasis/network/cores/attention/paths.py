"""Contributions to the outputs of single queries: through values, through keys, through the query itself.

For a cotangent g on the output z_s of one query, with b_st the pattern times cap′ and σ the scale, the
Jacobian of `Attention` gives

    value  ∂/∂v_t = a_st g                       what is moved from t
    key    ∂/∂k_t = σ c_st R_tᵀ q̃_s              why s attends to t, by what stands at t
    query  ∂/∂q_s = σ R_sᵀ Σ_t c_st k̃_t          why s attends as it does, by what stands at s

with c_st = b_st g·(v_t − z_s), all averaged along the line from 0. a and c are one number per query, head and
key; without rotary positions the key's direction is the same for all t, so that nothing of size keys × head
width is made and no pattern of all pairs is ever held.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape, Heads
from interbasis.numerics.integration import Rule


@dataclass(frozen=True)
class QueryPaths:
    """N̄ᵀg for k queries of one sample, in its three parts."""

    shape: AttentionShape
    cotangents: Tensor  # g [H, k, h]
    moved: Tensor  # ā [H, k, T]
    attended: Tensor  # σ c̄ [H, k, T], for the queries as they stand
    turned_q: Tensor  # q̃ [H, k, h]
    query: Tensor  # [H, k, h]

    @classmethod
    def from_cotangents(
        cls, shape: AttentionShape, u: Tensor, cotangents: Tensor, positions: Tensor, rule: Rule
    ) -> "QueryPaths":
        """u [T, c_in], cotangents [k, H·h] at the queries' positions [k]."""
        g = cotangents.unflatten(1, (shape.heads, shape.width)).transpose(0, 1).contiguous()
        moved = u.new_zeros(shape.heads, len(positions), len(u))
        attended, query = torch.zeros_like(moved), torch.zeros_like(g)
        whole = Heads.from_read_outs(shape, u[None], positions[None])
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            x = Heads.from_read_outs(shape, node * u[None], positions[None])
            a, b = (pattern[:, 0] for pattern in x.pattern())  # [H, k, T]
            v, k = x.v[:, 0], x.k[:, 0]
            by_key = g @ v.mT  # g·v_t
            c = shape.sigma * b * (by_key - (a * by_key).sum(-1, keepdim=True))
            moved += weight * a
            attended += weight * node * c
            pulled = c @ k
            if shape.rotary is not None:
                pulled = shape.rotary.turn(pulled, positions, back=True)
            query += weight * pulled
        return cls(shape, g, moved, attended, whole.turned_q[:, 0], query)

    def onto(self, read: Tensor) -> "PathCoefficients":  # A [c_in, r]
        """Return the coefficients of each of r input features, at every key."""
        return PathCoefficients(self, *self.shape.parts(read, 0))

    def key_directions(self, positions: Tensor) -> Tensor:  # [K] -> [H, k, K, h]
        """σ c̄_st R_tᵀ q̃_s at some keys."""
        q = self.turned_q[:, :, None].expand(-1, -1, len(positions), -1)
        if self.shape.rotary is not None:
            q = self.shape.rotary.turn(q, positions, back=True)
        return self.attended[..., positions, None] * q

    def on_vectors(self, u: Tensor) -> Tensor:  # [T, c_in] -> [k, T]
        """Contributions of a vector of read-outs at every key; the query's own counts at its position."""
        _, k, v = (part.transpose(0, 1) for part in self.shape.parts(u, 1))  # [H, T, h]
        if self.shape.rotary is not None:
            k = self.shape.rotary.turn(k, torch.arange(k.shape[1], device=k.device))
        total = (self.moved * (self.cotangents @ v.mT)).sum(0)
        return total + (self.attended * (self.turned_q @ k.mT)).sum(0)

    def on_tangents(self, u: Tensor) -> tuple[Tensor, Tensor]:  # [T, M, c_in] -> [T, M, k] each
        """Contributions of M vectors of read-outs at every key, through values and through keys."""
        _, k, v = (part.permute(2, 0, 1, 3) for part in self.shape.parts(u, 2))  # [H, T, M, h]
        if self.shape.rotary is not None:
            keys = torch.arange(k.shape[1], device=k.device)[:, None].expand(-1, k.shape[2])
            k = self.shape.rotary.turn(k, keys)
        value = u.new_zeros(*u.shape[:2], self.moved.shape[1])
        key = torch.zeros_like(value)
        for h in range(self.shape.heads):
            for total, x, g, weights in (
                (value, v, self.cotangents, self.moved),
                (key, k, self.turned_q, self.attended),
            ):
                total.addcmul_((x[h].flatten(0, 1) @ g[h].T).view_as(total), weights[h].T[:, None])
        return value, key

    def on_query_vectors(self, u: Tensor) -> Tensor:  # [k, c_in] at the queries' positions -> [k]
        """Contributions through the queries, of read-outs at their positions."""
        q = self.shape.parts(u, 1)[0].transpose(0, 1)  # [H, k, h]
        return (self.query * q).sum((0, 2))


@dataclass(frozen=True)
class PathCoefficients:
    """The three parts for input features with columns W_Q c_j, W_K c_j, W_V c_j, [H, h, r] each."""

    paths: QueryPaths
    read_q: Tensor
    read_k: Tensor
    read_v: Tensor

    def query(self) -> Tensor:  # [k, r]
        """Coefficients at the queries' own positions."""
        return torch.einsum("hki,hij->kj", self.paths.query, self.read_q)

    def value_at(self, features: Tensor, positions: Tensor) -> Tensor:  # [K], [K] -> [k, K]
        table = self.paths.cotangents @ self.read_v[..., features]  # [H, k, K]
        return (self.paths.moved[..., positions] * table).sum(0)

    def key_at(self, features: Tensor, positions: Tensor) -> Tensor:  # [K], [K] -> [k, K]
        if self.paths.shape.rotary is None:
            table = self.paths.turned_q @ self.read_k[..., features]
            return (self.paths.attended[..., positions] * table).sum(0)
        directions = self.paths.key_directions(positions)  # [H, k, K, h]
        return torch.einsum("hkci,hic->kc", directions, self.read_k[..., features])

    def dense(self) -> Tensor:  # [k, T, r]
        """Values and keys at every key, for few queries at once."""
        paths = self.paths
        value = paths.cotangents @ self.read_v  # [H, k, r]
        total = torch.einsum("hkt,hkj->ktj", paths.moved, value)
        if paths.shape.rotary is None:
            key = paths.turned_q @ self.read_k
            return total + torch.einsum("hkt,hkj->ktj", paths.attended, key)
        keys = torch.arange(paths.moved.shape[2], device=total.device)
        directions = paths.key_directions(keys)  # [H, k, T, h]
        return total + directions.permute(1, 2, 0, 3).flatten(2) @ self.read_k.flatten(0, 1)
