"""The choice of experts: from scores to the chosen experts and their weights."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


class Visits(NamedTuple):
    """The experts that every token visits, in k slots."""

    experts: Tensor  # [tokens, k]
    weights: Tensor  # [tokens, k]


@dataclass(frozen=True, eq=False)
class Router:
    """Experts with the largest scores s = W u, and their weights: functions of all scores, chosen or not.

    A score's value is its sigmoid, or its softmax over all experts; the chosen ones' values, divided by their
    sum if ``normalised``, are the weights, times ``factor``. Normalised softmax is a softmax over the chosen
    scores. Experts after the routed ones are visited by all tokens, with weight 1 or, where they have a row
    of W, with the sigmoid of its score.
    """

    weight: Tensor  # W [scores, c_in]: a row per routed expert, then one per gate of a shared expert
    routed: int
    """Number of experts that are chosen from."""
    chosen: int
    """Number of experts that a token visits among them."""
    shared: int = 0
    """Number of experts that every token visits."""
    kind: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    factor: float = 1.0
    choice_bias: Tensor | None = None  # [routed], added to values for the choice alone
    choice_by_score: bool = False
    """Whether the choice is that of the largest scores, not values, with the bias."""
    groups: int = 1
    """Groups of neighbouring experts, of which some are left out before the choice."""
    kept_groups: int = 1
    best_in_group: int = 2
    """A group is worth the sum of so many of its largest values."""

    def __repr__(self) -> str:
        kind = f"{self.kind}{' over the chosen' if self.normalised else ''}"
        shared = f", {self.shared} shared" if self.shared else ""
        return f"{self.chosen} of {self.routed}{shared}, {kind}"

    def to(self, *args: Any, **kwargs: Any) -> "Router":
        tensors = {name: x.to(*args, **kwargs) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return Router(**{**vars(self), **tensors})

    def visits(self, scores: Tensor) -> Visits:  # [tokens, scores]
        """Chosen and shared experts; the weights can be differentiated by the scores, the choice cannot."""
        routed, gates = scores[:, : self.routed], scores[:, self.routed :].sigmoid()
        values = routed.softmax(-1) if self.kind == "softmax" else routed.sigmoid()
        chosen = self._choice((routed if self.choice_by_score else values).detach())
        weights = values.gather(1, chosen)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        shared = torch.arange(self.routed, self.routed + self.shared, device=scores.device)
        dense = gates if gates.shape[1] else scores.new_ones(len(scores), self.shared)
        experts = torch.cat([chosen, shared.expand(len(scores), -1)], dim=1)
        return Visits(experts, torch.cat([self.factor * weights, dense], dim=1))

    def _choice(self, values: Tensor) -> Tensor:  # [tokens, routed] -> [tokens, chosen]
        if self.choice_bias is not None:
            values = values + self.choice_bias
        if self.kept_groups < self.groups:
            grouped = values.unflatten(1, (self.groups, -1))
            worth = grouped.topk(min(self.best_in_group, grouped.shape[2]), dim=2).values.sum(2)
            kept = torch.zeros_like(worth, dtype=torch.bool)
            kept.scatter_(1, worth.topk(self.kept_groups, dim=1).indices, True)
            values = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(1)
        return values.topk(self.chosen, dim=1).indices

    def slopes(self, scores: Tensor) -> tuple[Visits, Tensor]:
        """`visits`, and the weights' derivatives by all scores, [tokens, k, scores]."""
        with torch.enable_grad():
            scores = scores.detach().requires_grad_()
            visits = self.visits(scores)
            rows = [
                torch.autograd.grad(weights.sum(), scores, retain_graph=True, allow_unused=True)[0]
                if weights.requires_grad
                else None
                for weights in visits.weights.unbind(1)
            ]
        filled = [torch.zeros_like(scores) if row is None else row for row in rows]
        return Visits(visits.experts, visits.weights.detach()), torch.stack(filled, dim=1).detach()
