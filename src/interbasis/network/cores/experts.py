"""A mixture of experts: every token visits a few of many MLPs, weighted by a router."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interbasis.base.devices import batch_sums
from interbasis.network.cores.core import Counted, Moments, PassCore, Sums
from interbasis.network.cores.elementwise import ActivationCore
from interbasis.network.cores.router import Router
from interbasis.numerics.integration import Rule


@dataclass(frozen=True, eq=False)
class Expert:
    """An MLP u ↦ D act(R u) + b u₀, u₀ being the constant; biases of R are its column 0."""

    read: Tensor  # R [c, 1 + d]
    core: ActivationCore
    write: Tensor  # D [d, m]
    bias: Tensor  # b [d]

    def tensors(self) -> list[Tensor]:
        return [self.read, self.write, self.bias, *self.core.tensors()]

    def to(self, *args: Any, **kwargs: Any) -> "Expert":
        read, write, bias = (x.to(*args, **kwargs) for x in (self.read, self.write, self.bias))
        return Expert(read, self.core.to(*args, **kwargs), write, bias)

    def hidden(self, r: Tensor) -> Tensor:  # [tokens, c] -> [tokens, m]
        """act(r)."""
        return self.core(r[:, None], slice(0, 1))[:, 0]

    def output(self, u: Tensor, hidden: Tensor) -> Tensor:  # [tokens, 1 + d], [tokens, m] -> [tokens, d]
        return hidden @ self.write.T + u[:, :1] * self.bias


@dataclass(frozen=True, eq=False)
class ExpertTokens:
    """The tokens that visit one expert."""

    tokens: Tensor  # [v]
    slots: Tensor  # [v]
    slopes: Tensor  # of the weighted hidden layer by its read-outs [v, c]
    bias: Tensor  # factor of the expert's bias [v, 1]


@dataclass(frozen=True, eq=False)
class TokenJacobians:
    """Jacobians of tokens in parts, N = Σ_e D_e diag(s_e) R_e + Yᵀ M W."""

    visited: dict[int, ExpertTokens]
    """By expert."""
    outputs: Tensor  # Y [tokens, k + 1, d]: by slot ∂/∂weight, then the weighted sum of biases b
    mixing: Tensor  # M [tokens, k + 1, scores + 1]


class Experts(PassCore):
    """core(u) = Σ_e w_e (D_e h_e + b_e u₀), h_e = act(R_e u), over the experts e that a token visits.

    u = [u₀ | x] begins with the constant, which biases multiply, so that core(0) = 0. The weights w are
    functions of the scores W_r u (`Router`). Which experts are visited is piecewise constant: derivatives are
    those of the pieces, and integrals along the line from 0 leave out the jumps between them
    (`changed_choices` counts tokens that have any). With s_e the slopes of w_e h_e by its read-outs,

        N = Σ_e D_e diag(s_e) R_e + Yᵀ M W,

    where the rows of Y are D_e h_e + b_e u₀ by slot and Σ w_e b_e, W = [W_r; (1, 0 …)] and M holds ∂w/∂scores
    and a 1 for the constant. Σ NᵀQN falls into pairs of experts that some token visits both of,

        R_eᵀ [ (D_eᵀ Q D_e′) ∘ Σ s_e s_e′ᵀ ] R_e′,

    made and summed one pair after the other, and terms with Y, which are as narrow as there are scores.

    *Weights before the expert* (Llama 4): h_e = act(w_e R_e u), and Y has ∂h_e/∂w_e in place of h_e.

    Per token the sums take about k² c²/2 + 2 k² m d multiplications; each pair of experts that tokens of a
    batch share takes c² d + m² d, whatever the number of tokens: large batches are quicker.
    """

    def __init__(self, router: Router, experts: Sequence[Expert], weights_before: bool = False):
        self.router, self.experts, self.weights_before = router, tuple(experts), weights_before
        self._read: tuple[Tensor, list[Tensor]] | None = None

    def __repr__(self) -> str:
        first = self.experts[0]
        before = ", weights before experts" if self.weights_before else ""
        return f"Experts({self.router}, {first.core}, width {first.write.shape[1]}{before})"

    def to(self, *args: Any, **kwargs: Any) -> "Experts":
        experts = [expert.to(*args, **kwargs) for expert in self.experts]
        return Experts(self.router.to(*args, **kwargs), experts, self.weights_before)

    def tensors(self) -> list[Tensor]:
        router = [x for x in (self.router.weight, self.router.choice_bias) if x is not None]
        return [*router, *(x for expert in self.experts for x in expert.tensors())]

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        here = u[:, outputs]
        x = here.flatten(0, 1)
        visits = self.router.visits(x @ self.router.weight.T)
        total = x.new_zeros(len(x), len(self.experts[0].bias))
        for number, tokens, slots in self._visitors(visits.experts):
            expert, weight = self.experts[number], visits.weights[tokens, slots, None]
            r = x[tokens] @ expert.read.T
            if self.weights_before:
                part = expert.output(x[tokens], expert.hidden(weight * r))
            else:
                part = weight * expert.output(x[tokens], expert.hidden(r))
            total = total.index_add(0, tokens, part)
        return total.unflatten(0, here.shape[:2])

    def _visitors(self, visited: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (expert, its tokens, their slots) of all experts that are visited."""
        for number in visited.unique().tolist():
            yield number, *(visited == number).nonzero(as_tuple=True)

    def changed_choices(self, u: Tensor, outputs: slice, rule: Rule) -> Tensor:  # [n, T, c_in] -> [n, S]
        """Whether tokens visit other experts at some node of a rule than at the end of the line."""
        scores = u[:, outputs].flatten(0, 1) @ self.router.weight.T
        there = self.router.visits(scores).experts.sort(1).values
        changed = torch.zeros(len(scores), dtype=torch.bool, device=u.device)
        for node in rule.nodes:
            here = self.router.visits(node * scores).experts.sort(1).values
            changed |= (here != there).any(1)
        return changed.view(len(u), -1)

    def _jacobians(self, x: Tensor) -> TokenJacobians:  # [tokens, 1 + d]
        (visited, weights), by_scores = self.router.slopes(x @ self.router.weight.T)
        parts, (count, slots, scores) = {}, by_scores.shape
        Y = x.new_zeros(count, slots + 1, len(self.experts[0].bias))
        for number, tokens, slot in self._visitors(visited):
            expert, weight = self.experts[number], weights[tokens, slot, None]
            r, here = x[tokens] @ expert.read.T, x[tokens]
            if self.weights_before:
                inner = expert.core.slopes(weight * r)
                Y[tokens, slot] = expert.core.joined(inner * r, 1) @ expert.write.T
                factor = torch.ones_like(weight)
            else:
                inner = expert.core.slopes(r)
                Y[tokens, slot] = expert.output(here, expert.hidden(r))
                factor = weight
            Y[:, -1].index_add_(0, tokens, factor * expert.bias)
            parts[number] = ExpertTokens(tokens, slot, weight * inner, factor)
        M = x.new_zeros(count, slots + 1, scores + 1)
        M[:, :slots, :scores] = by_scores
        M[:, -1, -1] = 1
        return TokenJacobians(parts, Y, M)

    def _narrow_read(self) -> Tensor:  # W [scores + 1, 1 + d]
        constant = torch.zeros_like(self.router.weight[:1])
        constant[:, 0] = 1
        return torch.cat([self.router.weight, constant])

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None = None
    ) -> Sums:
        """Compute exact sums, whatever the signs."""
        x = u[:, outputs].flatten(0, 1)
        J, Q, W = self._jacobians(x), metric.to(u), self._narrow_read()
        local, gram = batch_sums(len(Q), u.shape[2], like=u), batch_sums(u.shape[2], u.shape[2], like=u)
        local += torch.einsum("tki,tks->is", J.outputs, J.mixing) @ W
        pushed = J.outputs @ Q  # Y Q [tokens, k + 1, d]
        narrow = (pushed @ J.outputs.mT @ J.mixing).flatten(0, 1)
        gram += W.T @ (J.mixing.flatten(0, 1).T @ narrow) @ W
        half = torch.zeros_like(gram)
        place = torch.full((len(x),), -1, device=u.device)
        for number, visit in J.visited.items():
            expert = self.experts[number]
            local += expert.write @ expert.core.joined(visit.slopes.sum(0)[:, None] * expert.read, 0)
            inner = self._by_scores(expert, visit, pushed, J.mixing) @ W  # [c, 1 + d]
            seen, place = expert.write.T @ Q, place.fill_(-1)
            place[visit.tokens] = torch.arange(len(visit.tokens), device=u.device)
            for second, other in J.visited.items():
                if second < number:
                    continue
                mine = place[other.tokens]
                both = mine >= 0
                if not both.any():
                    continue
                weights = visit.slopes[mine[both]].T @ other.slopes[both]  # Σ s s′ᵀ [c, c′]
                weights *= _tiled(seen @ self.experts[second].write, weights)
                # the transpose of a pair with itself is the other half
                inner = inner.addmm(weights, self.experts[second].read, alpha=0.5 if second == number else 1)
            half += expert.read.T @ inner
        return {"local": local, "gram": gram + half + half.T}

    def _by_scores(self, expert: Expert, visit: ExpertTokens, pushed: Tensor, M: Tensor) -> Tensor:
        """Σ diag(s_e) D_eᵀQYᵀM over the visitors of an expert, [c, scores + 1]."""
        seen = pushed[visit.tokens] @ expert.write  # [v, k + 1, m]
        times = visit.slopes.shape[1] // seen.shape[2]
        weighted = seen.tile(times) * visit.slopes[:, None]  # [v, k + 1, c]
        return weighted.flatten(0, 1).T @ M[visit.tokens].flatten(0, 1)

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(**sums)

    def _reads(self, read: Tensor) -> list[Tensor]:
        """R_e A of all experts and W A, kept while A is the same."""
        if self._read is None or self._read[0] is not read:
            self._read = read, [*(expert.read @ read for expert in self.experts), self._narrow_read() @ read]
        return self._read[1]

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        signs = u.new_ones(f[:, outputs].shape[:2].numel(), 1, 1)
        return self.signed_attributions(u, f, read, outputs, rule, signs)

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule, signs: Tensor
    ) -> Tensor:
        """Sums over the tokens of a group that visit an expert go first: Σ φ s_e fᵀ, then ∘ R_e A, D_e."""
        x, f, reads = u[:, outputs].flatten(0, 1), f[:, outputs].flatten(0, 1), self._reads(read)
        groups, size, sources = signs.shape
        result = f.new_zeros(groups, sources, len(self.experts[0].bias), f.shape[1])
        group, signs = torch.arange(len(x), device=u.device) // size, signs.flatten(0, 1)
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            J = self._jacobians(node * x)
            for place in range(groups):
                inside = slice(place * size, (place + 1) * size)
                spread = (J.mixing[inside] @ reads[-1]) * f[inside, None]  # [g, k + 1, r]
                for source in range(sources):
                    sign = weight * signs[inside, source][: len(spread), None, None]
                    result[place, source] += (sign * J.outputs[inside]).flatten(0, 1).T @ spread.flatten(0, 1)
            for number, visit in J.visited.items():
                expert = self.experts[number]
                for place in group[visit.tokens].unique().tolist():
                    here = group[visit.tokens] == place
                    tokens = visit.tokens[here]
                    for source in range(sources):
                        slopes = weight * signs[tokens, source, None] * visit.slopes[here]
                        products = (slopes.T @ f[tokens]) * reads[number]  # [c, r]
                        result[place, source] += expert.write @ expert.core.joined(products, 0)
        return result.flatten(0, 1).transpose(0, 1).contiguous()

    def attributions_by_expert(
        self, u: Tensor, f: Tensor, read: Tensor, write: Tensor, rule: Rule
    ) -> Tensor:  # [experts, tokens]
        """B N̄ A f of one output and one input, in the parts that pass through each expert and its weight.

        u [tokens, 1 + d], f [tokens], read [1 + d], write [d]. An expert's part is what changes its weighted
        output while those of all others are held.
        """
        result = f.new_zeros(len(self.experts), len(f))
        for node, share in zip(rule.nodes, rule.weights, strict=True):
            J = self._jacobians(node * u)
            by_weight = (J.outputs @ write) * (J.mixing @ (self._narrow_read() @ read))  # [tokens, k + 1]
            for number, visit in J.visited.items():
                expert, tokens = self.experts[number], visit.tokens
                inner = expert.core.joined(visit.slopes * (expert.read @ read), 1) @ (write @ expert.write)
                bias = visit.bias[:, 0] * (expert.bias @ write) * read[0]
                result[number, tokens] += share * f[tokens] * (inner + bias + by_weight[tokens, visit.slots])
        return result


def _tiled(products: Tensor, like: Tensor) -> Tensor:
    """Products of hidden coordinates, repeated for every diagonal of the slopes."""
    rows, columns = (like.shape[k] // products.shape[k] for k in (0, 1))
    return products if rows == columns == 1 else products.tile(rows, columns)
