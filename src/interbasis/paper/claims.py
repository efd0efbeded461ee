"""From the finished pieces to a verdict per claim."""

from collections.abc import Callable, Sequence
from typing import Any

from interbasis.paper import cifar10_verdicts as images
from interbasis.paper import modadd_verdicts as addition
from interbasis.paper.paper import ATTENTION, MLP
from interbasis.paper.plan import Task
from interbasis.paper.verdicts import Verdict, open_verdict

Piece = dict[str, Any]
SEVERAL = 3
"""Seeds that claims about how seeds differ need, M3 and M7."""


class Pieces:
    """Finished pieces by basis and seed."""

    def __init__(self, pieces: Sequence[Piece]):
        self.all = sorted(pieces, key=lambda piece: piece["seed"])

    def of(self, *bases: str) -> list[tuple[Piece, ...]]:
        """The pieces of some bases, for every seed that has all of them."""
        by_seed: dict[int, dict[str, Piece]] = {}
        for piece in self.all:
            by_seed.setdefault(piece["seed"], {})[piece["basis"]] = piece
        return [
            tuple(found[basis] for basis in bases)
            for found in by_seed.values()
            if all(basis in found for basis in bases)
        ]

    def models(self) -> list[Piece]:
        """One piece per seed: for what belongs to the model and not to a basis."""
        return list({piece["seed"]: piece for piece in reversed(self.all)}.values())[::-1]


def verdicts(task: Task, pieces: Sequence[Piece]) -> list[Verdict]:
    """All claims of a task, those whose numbers are not there yet as open."""
    found = Pieces(pieces)
    rows = _modadd(found) if task == "modadd" else _cifar10(found)
    return [rule(*columns) if columns else open_verdict(*about) for about, rule, columns in rows]


Row = tuple[tuple[str, str, str, str], Callable[..., Verdict], list[Any]]


def _modadd(found: Pieces) -> list[Row]:
    both, gib = found.of("lib", "pca"), found.of("gib", "lib")
    pair = [[piece[place] for piece in both] for place in (0, 1)]
    usable = [piece for (piece,) in found.of("lib") if "frequencies" in piece["modules"][0]]
    counted = all(row["count"] for pieces in both for piece in pieces for row in piece["nodes"])
    return [
        _row("M1", "the models solve the task", "100 %", "a model", addition.solved, [
            [piece[f"{split}_accuracy"] for piece in found.models()] for split in ("train", "test")]),
        _row("M2", "attention: LIB needs fewer edges than PCA", "5 of 5", "LIB and PCA",
             addition.attention_edges, [_edges(pieces, ATTENTION) for pieces in pair]),
        _row("M3", "MLP: LIB sparser in 3 of 5 seeds", "3 : 2", f"LIB and PCA of {SEVERAL} seeds",
             addition.mlp_edges, [_edges(pieces, MLP) for pieces in pair] if len(both) >= SEVERAL else [[]]),
        _row("M4", "nodes: LIB needs slightly fewer", "curves", "nodes required in LIB and PCA",
             addition.nodes, [_nodes(pieces) for pieces in pair] if counted else [[]]),
        _row("M5", "functional relevance", "PCA 14 or 15, LIB 3", "LIB and PCA", addition.relevance,
             [tuple([len(piece["idle"][layer]["features"]) for piece in pieces] for layer in (0, 1))
              for pieces in pair] if both else [[]]),
        _row("M6", "monosemantic features", "LIB 14.8, PCA 13.6 on average", "LIB and PCA",
             addition.monosemanticity,
             [[sum(row["paper"] for row in piece["monosemantic"]) for piece in pieces] for pieces in pair]),
        _row("M7", "modules separate frequencies in one seed", "seed 3", f"LIB of {SEVERAL} seeds",
             addition.modules, [[len(piece["modules"][0]["frequencies"]["own"]) for piece in usable]]
             if len(usable) >= SEVERAL else [[]]),
        _row("M8", "GIB is about as sparse as LIB", "131, 82 against 133, 82", "GIB and LIB", addition.gib,
             [[[row["count"] for row in pieces[place]["edges"][:2]] for pieces in gib] for place in (0, 1)]),
    ]  # fmt: skip


def _cifar10(found: Pieces) -> list[Row]:
    both, lib = found.of("lib", "pca"), [piece for (piece,) in found.of("lib")]
    pair = [[piece[place] for piece in both] for place in (0, 1)]
    counts = [[[row["count"] for row in piece["edges"]] for piece in pieces] for pieces in pair]
    areas = [[[row["auroc"] for row in piece["directions"][:-1]] for piece in pieces] for pieces in pair]
    last = [piece["directions"][-2] for piece in lib]
    return [
        _row("C1", "test accuracy", "46.6–48.4 %", "a model", images.accuracy,
             [[piece["test_accuracy"] for piece in found.models()]]),
        _row("C2", "LIB sparser than PCA everywhere", "all", "LIB and PCA", images.sparser, counts),
        _row("C3", "very few edges suffice", "about 25", "LIB", images.few_edges,
             [[[row["count"] for row in piece["edges"]] for piece in lib]]),
        _row("C4", "one LIB direction carries animal against vehicle", "0.932 of 0.946", "LIB and PCA",
             images.one_direction, [*areas, [piece["whole"]["auroc"] for piece in pair[0]]]),
        _row("C5", "the label explains part of that direction's variance", "54 %", "LIB", images.explained,
             [[row["explained"] for row in last]]),
        _row("C6", "setting that direction raises accuracy", "47.6 → 54.6 %", "LIB", images.intervention,
             [[row[f"accuracy_{when}"] for row in last] for when in ("before", "after")]),
    ]  # fmt: skip


def _row(
    claim: str, statement: str, paper: str, needs: str, rule: Callable[..., Verdict], columns: list[Any]
) -> Row:
    """The arguments of a rule; none where there is no seed to speak of."""
    return (claim, statement, paper, needs), rule, columns if all(columns) else []


def _edges(pieces: Sequence[Piece], section: int) -> list[int]:
    return [piece["edges"][section]["count"] for piece in pieces]


def _nodes(pieces: Sequence[Piece]) -> list[int]:
    return [sum(row["count"] for row in piece["nodes"]) for piece in pieces]
