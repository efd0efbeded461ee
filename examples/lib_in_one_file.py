"""The Local Interaction Basis in one file: plain PyTorch and autograd, for a reader of the paper.

Nothing here is fast and nothing imports interbasis, whose tests compare the library with this file. Sections
1 to 3 of the paper (arXiv 2405.10928) in the order in which they are computed:

    1. a network as a chain of sections between node layers       mlp_sections, transformer_sections
    2. the basis of every node layer, from the last to the first  lib (principal, jacobian_gram)
    3. the interaction edges between neighbouring layers          edges
    4. the fewest edges that keep the accuracy                    edges_required

Activations are f [samples, positions, width], with the constant 1 as coordinate 0: a bias is the column of
the constant, so every section maps 0 to 0 and centring is a matrix product.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

Section = Callable[[Tensor], Tensor]  # [n, T, d_in] -> [n, S, d_out]

FLOOR = 1e-15
"""Variances and Λ up to here are rounding errors, and so are those below width · 2.2e-16 of the largest."""


# 1. Networks


def with_constant(x: Tensor) -> Tensor:  # [n, T, d] -> [n, T, 1 + d]
    return torch.cat([torch.ones_like(x[..., :1]), x], dim=-1)


def mlp_sections(layers: list[nn.Linear], activation: Callable[[Tensor], Tensor]) -> list[Section]:
    """Node layers are the inputs of all linear layers, and the output."""

    def run(layer: nn.Linear, f: Tensor) -> Tensor:
        u = f[..., 1:] @ layer.weight.T + f[..., :1] * layer.bias
        return torch.cat([f[..., :1], u if layer is layers[-1] else activation(u)], dim=-1)

    return [partial(run, layer) for layer in layers]


def transformer_sections(weights: dict[str, Tensor]) -> list[Section]:
    """One block of causal attention and a ReLU MLP, as in modular addition; the last position alone goes on.

    Weights are [heads, d, h] for W_Q, W_K, W_V, [heads, h, d] for W_O and [in, out] elsewhere. Node layers
    are the stream before attention, before the MLP and before the unembedding, and the logits, which have no
    constant.
    """

    def attention(f: Tensor) -> Tensor:
        one, x = f[..., :1], f[..., 1:]
        q, k, v = (
            torch.einsum("ntd,hde->nhte", x, weights[f"W_{name}"])
            + torch.einsum("nto,he->nhte", one, weights[f"b_{name}"])
            for name in "QKV"
        )
        scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
        visible = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
        z = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v
        written = torch.einsum("nhte,hed->ntd", z, weights["W_O"]) + one * weights["b_O"]
        return torch.cat([one, x + written], dim=-1)[:, -1:]

    def mlp(f: Tensor) -> Tensor:
        one, x = f[..., :1], f[..., 1:]
        hidden = torch.relu(x @ weights["W_in"] + one * weights["b_in"])
        return torch.cat([one, x + hidden @ weights["W_out"] + one * weights["b_out"]], dim=-1)

    def unembed(f: Tensor) -> Tensor:
        return f[..., 1:] @ weights["W_U"] + f[..., :1] * weights["b_U"]

    return [attention, mlp, unembed]


def activations(sections: list[Section], f: Tensor) -> list[Tensor]:
    """f at every node layer."""
    layers = [f]
    for section in sections:
        layers.append(section(layers[-1]))
    return layers


# 2. The basis


@dataclass
class Basis:
    """f̂ = C f and back by C⁺, which puts dropped directions at their mean; feature 0 is the constant."""

    C: Tensor  # [features, width]
    C_plus: Tensor  # [width, features]
    eigenvalues: Tensor  # Λ, or the variance in the last layer, [features]; 1 for the constant


def lib(sections: list[Section], f: Tensor, rotate_last: bool = True) -> list[Basis]:
    """The basis of every node layer, from the last to the first."""
    layers = activations(sections, f)
    width = layers[-1].shape[2]
    unit = torch.eye(width, dtype=f.dtype)
    bases = [Basis(unit, unit, torch.ones(width, dtype=f.dtype))]
    if rotate_last:
        mean, D, U = principal(layers[-1], cut=False)
        bases = [centred(U, U.T, mean, D)]
    for section, f_l in zip(reversed(sections), reversed(layers[:-1]), strict=True):
        mean, D, U = principal(f_l)
        M = jacobian_gram(section, f_l, bases[0].C)[1:, 1:]  # the constant is kept out
        spread = D.sqrt()[:, None] * U  # rows of D^½ U: one unit of each whitened direction
        Λ, V = above_floor(spread @ M @ spread.T)
        forward = Λ.sqrt()[:, None] * V @ (U / D.sqrt()[:, None])
        back = (U.T * D.sqrt()) @ (V.T / Λ.sqrt())
        bases.insert(0, centred(forward, back, mean, Λ))
    return bases


def principal(f: Tensor, cut: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, and the centred Gram G = Uᵀ D U without the constant."""
    x = f[..., 1:].flatten(0, 1)
    mean = x.mean(0)
    G = (x - mean).T @ (x - mean) / len(x)
    return mean, *above_floor(G, cut)


def above_floor(symmetric: Tensor, cut: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues in descending order and eigenvectors as rows, without those at the noise floor."""
    values, vectors = torch.linalg.eigh(symmetric)
    values, vectors = values.flip(0), vectors.flip(1).T
    kept = values > max(FLOOR, (1 + len(values)) * 2.2e-16 * values[0].item()) if cut else values > -torch.inf
    return values[kept], vectors[kept]


def centred(forward: Tensor, back: Tensor, mean: Tensor, eigenvalues: Tensor) -> Basis:
    """With H, which takes the mean times the constant away and leaves the constant alone."""
    width, features = len(mean) + 1, len(forward) + 1
    C, C_plus = torch.zeros(features, width).to(mean), torch.zeros(width, features).to(mean)
    C[0, 0] = C_plus[0, 0] = 1
    C[1:, 0], C[1:, 1:] = -forward @ mean, forward
    C_plus[1:, 0], C_plus[1:, 1:] = mean, back
    return Basis(C, C_plus, torch.cat([torch.ones(1).to(mean), eigenvalues]))


def jacobian_gram(section: Section, f: Tensor, C_next: Tensor) -> Tensor:  # [d_in, d_in]
    """M′ = (1/nT) Σ_x Σ_s,t J_stᵀ C_nextᵀ C_next J_st, T the number of input positions."""
    J = torch.einsum("io,nsotj->nsitj", C_next, jacobians(section, f))
    return torch.einsum("nsitj,nsitk->jk", J, J) / (f.shape[0] * f.shape[1])


def jacobians(section: Section, f: Tensor) -> Tensor:  # [n, S, d_out, T, d_in]
    return vmap(jacrev(lambda sample: section(sample[None])[0]))(f)


# 3. The edges


def edges(
    section: Section, f: Tensor, source: Basis, target: Basis, alphas: tuple[float, ...] = (1.0,)
) -> Tensor:  # [features_out, features_in]
    """Ê_ij² = (1/nT) Σ_x Σ_s (Σ_t f̂_jt mean_α ∂F̂_is/∂z_jt at z = α f̂)²; α = 1 alone is the paper's rule."""
    f̂ = f @ source.C.T
    f = f̂ @ source.C_plus.T
    J = sum(jacobians(section, alpha * f) for alpha in alphas) / len(alphas)
    A = torch.einsum("io,nsotd,dj,ntj->nsij", target.C, J, source.C_plus, f̂)
    return (A.square().sum((0, 1)) / (f.shape[0] * f.shape[1])).sqrt()


# 4. How few are enough


def edges_required(
    sections: list[Section],
    bases: list[Basis],
    k: int,
    ranking: Tensor,
    f: Tensor,
    labels: Tensor,
    *,
    lost: int,
) -> int:
    """The paper's bisection on the number of ablated edges of section k; ``lost`` more answers may be wrong.

    The largest edges of ``ranking`` [features_out, features_in] are kept; those of the constant are free.
    """
    layers = activations(sections, f)
    constant = bool((layers[-1][..., 0] == 1).all())  # is no answer

    def wrong(f: Tensor) -> int:
        outputs = activations(sections[k + 1 :], f)[-1][:, -1, int(constant) :]
        return int((outputs.argmax(-1) != labels).sum())

    order = ranking[:, 1:].flatten().argsort(descending=True, stable=True)
    mask = torch.ones_like(ranking, dtype=torch.bool)
    most = layers[k].shape[2] * layers[k + 1].shape[2]
    allowed = wrong(layers[k + 1]) + lost
    passing, failing = 0, most
    while failing - passing > 1:
        middle = (passing + failing) // 2
        kept = torch.zeros(len(order), dtype=torch.bool)
        kept[order[: most - middle]] = True
        mask[:, 1:] = kept.view(len(ranking), -1)
        if wrong(masked(sections[k], layers[k], bases[k], bases[k + 1], mask)) <= allowed:
            passing = middle
        else:
            failing = middle
    return min(most - passing, len(order))


def masked(section: Section, f: Tensor, source: Basis, target: Basis, mask: Tensor) -> Tensor:
    """Output feature i sees the input features that row i of the mask keeps, the others at 0, their mean."""
    f̂ = f @ source.C.T
    rows = [section(f̂ * row @ source.C_plus.T) @ target.C[i] for i, row in enumerate(mask.to(f))]
    return torch.stack(rows, dim=-1) @ target.C_plus.T


def main() -> None:
    """Digits by a small MLP: how many edges of each section its accuracy needs."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    x, labels = torch.tensor(pixels / 16), torch.tensor(digits)
    torch.manual_seed(0)
    layers = [nn.Linear(64, 12).double(), nn.Linear(12, 10).double()]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=0.03)
    for _ in range(200):
        loss = nn.functional.cross_entropy(layers[1](torch.relu(layers[0](x[:400]))), labels[:400])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        sections, f = mlp_sections(layers, torch.relu), with_constant(x[:, None])
        bases, fitted = lib(sections, f[:400]), activations(sections, f[:400])
        for k, section in enumerate(sections):
            Ê = edges(section, fitted[k], bases[k], bases[k + 1])
            count = edges_required(sections, bases, k, Ê, f[400:800], labels[400:800], lost=4)
            print(f"section {k}: {len(bases[k].C) - 1} features, {count} of {Ê[:, 1:].numel()} edges suffice")


if __name__ == "__main__":
    main()
