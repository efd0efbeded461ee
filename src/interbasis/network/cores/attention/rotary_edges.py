"""Attributions through attention with rotary positions.

R_t turns coordinates by angles that grow with the position t; q̃_s = R_s q_s and k̃_t = R_t k_t. The effect of
a feature on a score through a key depends on both positions, q̃_sᵀR_t W_K c_j, so sums over queries go in
another order than in `edges.py`. Two orders serve signed sums over queries s, with w_st = σ b_st:

- `add_brackets`, for many queries: a matrix [h, h] per key and per query, about 2 T h² + 2 r h²
  multiplications per token.
- `FewQueries`: R_t = Σ_m U_m(t) D_m with N ≤ h + 1 functions U_m of the position and constant matrices D_m,
  so that sums over keys go as without rotary positions, once per function: N T r per query.
"""

from functools import cached_property, lru_cache

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape, CausalBlocks, FeatureColumns, Heads

MAX_PRODUCT_ELEMENTS = 2**19
"""Elements of a product that is used at once: few enough to stay in the cache."""
QUERIES_PER_PRODUCT = 8
"""Queries whose sums over keys are one product for all functions: fewer skip more keys that none of them
sees."""
POSITIONS_PER_TABLE = 64
"""Functions are tabulated for a multiple of so many positions, so that few tables are made."""


def moved_by_keys(x: Heads, weighted: Tensor, f: Tensor, columns: Tensor) -> Tensor:
    """Compute Σ_t b_st (v_t − z_s)_i f_jt (R_tᵀq̃_s)ᵀ W_K c_j for every query of one head.

    weighted b_st (v_t − z_s)_i [n, S, h, T], f [n, T, r], columns W_K c_j [h, r] -> [n, S, h, r]. Twice the
    multiplications that are needed without rotary positions: one product makes the factor of
    b_st (v_t − z_s)_i, the other sums over the keys.
    """
    assert x.shape.rotary is not None
    n, queries, _, keys = weighted.shape
    result = f.new_zeros(n, queries, columns.shape[0], f.shape[2])
    key_step = max(1, min(keys, MAX_PRODUCT_ELEMENTS // f.shape[2]))
    query_step = max(1, MAX_PRODUCT_ELEMENTS // (n * key_step * f.shape[2]))
    for start in range(0, queries, query_step):
        rows = slice(start, start + query_step)
        for first in range(0, keys, key_step):
            at = slice(first, first + key_step)
            turned = x.turned_q[0][:, rows, None].expand(-1, -1, len(x.keys[at]), -1)
            turned = x.shape.rotary.turn(turned, x.keys[at], back=True)  # R_tᵀq̃_s [n, S, T, h]
            product = (turned @ columns).mul_(f[:, None, at])
            result[:, rows] += weighted[:, rows, :, at] @ product
    return result


def add_brackets(result: Tensor, x: Heads, weights: Tensor, z: Tensor, columns: FeatureColumns) -> None:
    """Add the sum over all queries, with signs, of the changes through turned coordinates.

    x is one head and one sample, weights φ_s w_st [S, T], z [S, h]; result [h, r] grows by

        Σ_t X_t W_K c_j f_jt + Σ_s Y_s W_Q c_j f_js,
        X_t = (Σ_s φ_s w_st (v_t − z_s) q̃_sᵀ) R_t,    Y_s = (Σ_t φ_s w_st (v_t − z_s) k̃_tᵀ) R_s.

    Each is a product [h·2p, T] × [T, r] for p pairs of coordinates, and nothing of size [queries, h, r] is
    made; causality saves half of the products with w.
    """
    assert x.shape.rotary is not None
    order = torch.arange(x.shape.turned).view(2, -1).T.flatten()  # the two coordinates of a pair side by side
    at_queries, at_keys = columns.at_queries.T.contiguous(), columns.at_keys.T.contiguous()
    read_q, read_k = columns.read_q[order].T.contiguous(), columns.read_k[order].T.contiguous()
    k, q, v = x.k[0, 0][:, order], x.turned_q[0, 0][:, order], x.v[0, 0]
    pulled, pushed = weights.T @ q, weights @ k  # Σ_s w_st q̃_s [T, 2p], Σ_t w_st k̃_t [S, 2p]
    query_waves, key_waves = (
        torch.complex(cos, -sin)[:, None]
        for cos, sin in (x.shape.rotary.waves(positions, v) for positions in (x.positions[0], x.keys))
    )
    blocks = CausalBlocks(x, weights)
    rows = max(1, MAX_PRODUCT_ELEMENTS // (len(order) * max(len(v), len(at_queries))))
    for start in range(0, len(result), rows):
        values, mixed = v[:, start : start + rows, None], z[:, start : start + rows, None]
        by_key = blocks.over_queries(mixed * q[:, None]).addcmul_(values, pulled[:, None], value=-1)  # −X_t
        _turn_back(by_key, key_waves)
        result[start : start + rows] -= _contract(by_key, at_keys, read_k)
        by_query = blocks.over_keys(values * k[:, None]).addcmul_(mixed, pushed[:, None], value=-1)  # Y_s
        _turn_back(by_query, query_waves)
        result[start : start + rows] += _contract(by_query, at_queries, read_q)


def _turn_back(x: Tensor, waves: Tensor) -> None:
    """Replace x_t by x_t R_t; x [T, h, 2p], the coordinates of a pair side by side."""
    torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(waves)


def _contract(brackets: Tensor, f: Tensor, columns: Tensor) -> Tensor:
    """Compute Σ_t X_t c_j f_jt from brackets X_t [T, h, k], f [r, T] and columns c_j [r, k], [h, r]."""
    product = (f @ brackets.flatten(1)).unflatten(1, brackets.shape[1:])  # [r, h, k]
    return product.mul_(columns[:, None]).sum(-1).T  # a batched product with one column is slower


def are_few(shape: AttentionShape, queries: int) -> bool:
    """Whether `FewQueries` takes fewer multiplications than brackets for all keys.

    Functions take N T r per query with N ≤ h + 1, brackets h² T r however few queries there are.
    """
    return shape.rotary is not None and queries <= shape.width


class FewQueries:
    """Signed sums over few queries of one head and one sample."""

    def __init__(self, x: Heads, weights: Tensor, z: Tensor, columns: FeatureColumns):
        """Take weights w_st [S, T] and z [S, h]."""
        assert x.shape.rotary is not None
        self.rotary, self.x, self.weights, self.z, self.columns = x.shape.rotary, x, weights, z, columns
        self.blocks = CausalBlocks(x, weights)
        self.q, self.k, self.v = x.turned_q[0, 0], x.k[0, 0], x.v[0, 0]

    def add(self, result: Tensor, sign: Tensor) -> None:
        """Add the changes through queries and keys, with signs φ_s [S], to result [h, r]:

        Σ_t v_t f_jt (wᵀφq̃)_tᵀR_tW_K c_j − Σ_s φ_s z_s (`by_query`)_sj + Σ_s φ_s f_js Y_s W_Q c_j.
        """
        columns = self.columns
        pulled = self.rotary.turn(self.blocks.over_queries(self.q, sign), self.x.keys, back=True)
        result += self.v.T @ (columns.at_keys * (pulled @ columns.read_k))
        result -= (sign[:, None] * self.z).T @ self.by_query
        at_queries = (columns.at_queries * sign[:, None])[:, None]
        for rows in self._value_coordinates():
            moved = self.brackets[:, rows].flatten(0, 1) @ columns.read_q
            result[rows] += moved.view(len(at_queries), -1, moved.shape[1]).mul_(at_queries).sum(0)

    @cached_property
    def by_query(self) -> Tensor:  # [S, r]
        """Σ_t w_st f_jt q̃_sᵀR_tW_K c_j = Σ_m q̃_sᵀD_mW_K c_j (w U_m f)_sj."""
        columns = self.columns
        functions, matrices = position_functions(self.x.shape, self.x.first + len(self.k), self.q)
        functions = functions[self.x.keys].T.contiguous()  # [N, T]
        turned = torch.einsum("sk,mkl->sml", self.q, matrices)  # q̃_sᵀD_m
        result = columns.at_keys.new_empty(len(self.q), columns.at_keys.shape[1])
        for start in range(0, len(self.q), QUERIES_PER_PRODUCT):
            queries = slice(start, min(start + QUERIES_PER_PRODUCT, len(self.q)))
            keys = self.x.keys_seen_by(queries)
            products = self.weights[queries, None, keys] * functions[:, keys]  # [s, N, t]
            sums = products.flatten(0, 1) @ columns.at_keys[keys]  # [s·N, r]
            pairs = turned[queries].flatten(0, 1) @ columns.read_k
            result[queries] = sums.mul_(pairs).view(*products.shape[:2], -1).sum(1)
        return result

    @cached_property
    def brackets(self) -> Tensor:  # [S, h, h]
        """Y_s = (Σ_t w_st (v_t − z_s) k̃_tᵀ) R_s."""
        result = self.z.new_empty(*self.z.shape, self.k.shape[1])
        for rows in self._value_coordinates():
            deviations = self.v.T[rows] - self.z[:, rows, None]  # (v_t − z_s)_i [S, rows, T]
            products = deviations.mul_(self.weights[:, None]).flatten(0, 1) @ self.k
            result[:, rows] = products.unflatten(0, deviations.shape[:2])
        return self.rotary.turn(result, self.x.positions[0, :, None], back=True)

    def _value_coordinates(self) -> list[slice]:
        """Coordinates of the values in runs that stay in the cache."""
        width = self.v.shape[1]
        step = max(1, MAX_PRODUCT_ELEMENTS // (len(self.q) * max(len(self.v), self.columns.at_keys.shape[1])))
        return [slice(start, min(start + step, width)) for start in range(0, width, step)]


def function_count(shape: AttentionShape, end: int, dtype: torch.dtype) -> int:
    """Number N of functions that R_t is a combination of, for positions below ``end``."""
    return _functions(shape, end + -end % POSITIONS_PER_TABLE, dtype)[0].shape[1]


def position_functions(shape: AttentionShape, end: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return U [positions, N] and D [N, h, h] with R_t = Σ_m U_m(t) D_m for positions below ``end``."""
    pairs, still = shape.turned // 2, shape.width - shape.turned
    functions, coefficients = _functions(shape, end + -end % POSITIONS_PER_TABLE, like.dtype)
    cos, sin, constant = coefficients.T.tensor_split([pairs, 2 * pairs], dim=1)  # [N, p], [N, p], [N, 1]
    cos, sin = torch.diag_embed(cos), torch.diag_embed(sin)
    matrices = coefficients.new_zeros(len(cos), shape.width, shape.width)
    matrices[:, : 2 * pairs, : 2 * pairs] = torch.cat(
        [torch.cat([cos, -sin], dim=2), torch.cat([sin, cos], dim=2)], dim=1
    )
    matrices[:, 2 * pairs :, 2 * pairs :] = constant[:, :, None] * torch.eye(still, dtype=torch.float64)
    return functions.to(like), matrices.to(like)


@lru_cache(maxsize=64)
def _functions(shape: AttentionShape, end: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Orthonormal U [end, N], and the coordinates in it of cos and sin of all pairs and of 1, [2p + 1, N].

    Singular vectors of these functions, as many as the dtype can tell from rounding; the constant is one of
    them if some coordinates are not turned.
    """
    rotary = shape.rotary
    assert rotary is not None
    positions = torch.arange(end, dtype=torch.float64)
    angle = positions[:, None] * torch.tensor(rotary.frequencies, dtype=torch.float64)
    constant = torch.full_like(positions, float(shape.turned < shape.width))[:, None]
    waves = torch.cat([rotary.stretch * angle.cos(), rotary.stretch * angle.sin(), constant], dim=1)
    vectors, values, _ = torch.linalg.svd(waves, full_matrices=False)
    functions = vectors[:, (values > torch.finfo(dtype).eps / 16 * values[0]) & (values > 0)]
    return functions, (functions.T @ waves).T
