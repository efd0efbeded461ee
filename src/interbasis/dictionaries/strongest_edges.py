"""Choice of the edges of a pair of dictionaries that are stored, from sums that may come in slices.

The strongest edges are stored, up to a share of Σ Ê² or a number. Sums are over tokens, [K_out, K_in + 3];
slices of target features come in their order, and what is chosen does not depend on where they are cut:
totals are those of rows, and of equal edges the first come first.
"""

import torch
from torch import Tensor

from interbasis.dictionaries.graph import SparseEdges
from interbasis.dictionaries.layers import REMAINDERS

MAX_STORED_EDGES = 2**22
"""Edges that are stored of one pair of dictionaries at most."""
STORED_SHARE = 0.999
"""Share of Σ Ê² at which no further edges are stored."""
MAX_SEARCHED = 2**21
"""Sums that are looked through at once."""
MAX_HELD = 1.25
"""Edges that are held before the weakest are dropped, in multiples of those that are stored."""


class StrongestEdges:
    """The strongest edges of a pair of dictionaries, while slices of its target features are added."""

    def __init__(self) -> None:
        self._chosen: dict[str, Tensor] = {}
        """Sums, source and target [E] of the edges that may be stored."""
        self._least = 0.0
        """Squares up to which no edge is stored any more."""
        self._rows: list[tuple[Tensor, ...]] = []
        """By slice of targets: Σ A² and Σ A over features, Σ A² of all sources, Σ A² of the remainders."""
        self._targets, self._nonzero, self._tokens = 0, 0, 0.0

    def add(self, sums: dict[str, Tensor]) -> None:
        """Add the sums [rows, K_in + 3] of the target features that follow."""
        self._tokens = sums["tokens"].item()
        width = sums["squares"].shape[1]
        for start in range(0, len(sums["squares"]), max(1, MAX_SEARCHED // width)):
            rows = slice(start, start + max(1, MAX_SEARCHED // width))
            self._add({name: total[rows] for name, total in sums.items() if total.ndim == 2})
        self._keep_some()

    def _add(self, sums: dict[str, Tensor]) -> None:
        features = sums["squares"][:, : -len(REMAINDERS)]
        remainders = sums["squares"][:, -len(REMAINDERS) :].clone()
        signed = sums["signed"][:, : -len(REMAINDERS)].sum(1)
        totals = features.sum(1), signed, sums["squares"].sum(1), remainders
        self._rows.append(tuple(total.cpu() for total in totals))
        self._nonzero += int((features > 0).sum())
        target, source = (features > self._least).nonzero().unbind(1)
        found = {"source": source, "target": target + self._targets}
        found |= {name: total[target, source] for name, total in sums.items()}
        for name, new in found.items():
            new = new.cpu()
            self._chosen[name] = torch.cat([self._chosen.get(name, new[:0]), new])
        self._targets += len(features)
        if len(self._chosen["source"]) > MAX_HELD * MAX_STORED_EDGES:
            self._keep_some()

    def _keep_some(self) -> None:
        """Keep the strongest of those that may be stored, in descending order."""
        order = self._chosen["squares"].argsort(descending=True, stable=True)[:MAX_STORED_EDGES]
        self._chosen = {name: values[order] for name, values in self._chosen.items()}
        if len(order) == MAX_STORED_EDGES:
            self._least = self._chosen["squares"][-1].item()

    def edges(self) -> tuple[SparseEdges, dict[str, float | int]]:
        """Return the edges that are stored, and what they leave out."""
        count = max(self._tokens, 1.0)
        squares, signed, everything, remainders = (
            torch.cat(parts) for parts in zip(*self._rows, strict=True)
        )
        total, whole = squares.sum().item(), everything.sum().item()
        covered = self._chosen["squares"].cumsum(0)
        stored = int((covered < STORED_SHARE * total).sum()) + 1
        stored = min(self._nonzero, len(covered), stored)
        chosen = {name: values[:stored] for name, values in self._chosen.items()}
        rms = (chosen["squares"] / count).sqrt()
        error = None
        if "variances" in chosen:
            error = (chosen["variances"].sqrt() / count / (2 * rms)).float()
        unstored = signed.index_add_(0, chosen["target"], -chosen["signed"])
        edges = SparseEdges(
            chosen["source"].int(), chosen["target"].int(), rms.float(),
            (chosen["squares"] / chosen["together"]).sqrt().float(), (chosen["signed"] / count).float(),
            (chosen["together"] / count).float(), error, (remainders / count).sqrt().float(),
            (unstored / count).float(),
        )  # fmt: skip
        return edges, {
            "tokens": round(self._tokens),
            "nonzero": self._nonzero,
            "stored": stored,
            "stored_share": covered[stored - 1].item() / total if stored else 1.0,
            "feature_share": total / whole if whole else 0.0,
        }
