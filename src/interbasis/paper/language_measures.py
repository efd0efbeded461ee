"""What is measured of a language model's run for the claims L1 to L5, as plain data.

Edges Ê are [features out, features in]; feature 0 is the constant, and 1 the variance where a layer holds it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.cores import Attention, Core, Elementwise, Gated, Normalize, Variance
from interbasis.network.network import Network
from interbasis.runtime.errors import InterbasisError

KINDS: tuple[tuple[type[Core], str], ...] = (
    (Attention, "attention"), (Elementwise, "MLP"), (Gated, "MLP"), (Variance, "norm in"),
    (Normalize, "norm out"),
)  # fmt: skip
FIRST = 4
"""Directions that the paper found to be positional."""
SHOWN = 8
"""Features of a layer whose share of variance by position is listed."""
PICTURED = 50
"""Features of a layer in the paper's picture of a block, which its words on layer norms are about."""
STRONG = 0.01
"""An edge reaches an output if it is at least this part of the largest one that the output has."""
WAVES = tuple(k / 2 for k in range(1, 17))
"""Cycles over the context that a sinusoid is looked for with."""


def kinds(network: Network) -> list[str]:
    """What every section is: attention, MLP, norm in (the variance), norm out (the division), or other."""
    return [
        next((name for core, name in KINDS if isinstance(section.core, core)), "other")
        for section in network.sections
    ]


def block_of(name: str) -> int | None:
    """The block of a node layer, ln1.3 → 3; None for the last ones."""
    number = name.rpartition(".")[2]
    return int(number) if number.isdecimal() else None


def middle_block(network: Network) -> int:
    """The block in the middle: the paper's 6 of 12."""
    blocks = sorted({block for name in network.layers[:-1] if (block := block_of(name)) is not None})
    if not blocks:
        raise InterbasisError("the network has no blocks; expected a language model's node layers")
    return blocks[len(blocks) // 2]


def layers(summary: Sequence[dict[str, Any]], graph: InteractionGraph, features: dict[str, Any]) -> list[Any]:
    """Per node layer: width, features kept and dropped, variance, how positional its first features are."""
    rows = []
    for row, layer, described in zip(summary, graph.layers, features["layers"], strict=True):
        variances = layer.variances[1 if layer.constant else 0 :] if layer.variances is not None else None
        shares = {
            one["index"]: one["positions"]["share"] for one in described["features"] if one.get("positions")
        }
        first = [shares[j] for j in _leading(layer.isolated, SHOWN) if j in shares]
        rows.append(
            {key: row[key] for key in ("name", "width", "features", "dropped_as_noise", "dropped_as_unused")}
            | {
                "effective": row["effective_features"],
                "variance": None if variances is None else variances.sum().item(),
                "positional": first,
            }
        )
    return rows


def edges(ablation: dict[str, Any], network: Network, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Edges required, section by section, with what each is."""
    keys = ("from", "to", "count", "possible", "kept_fraction", "epsilon", "value", "interval", "curve")
    by_name = dict(zip(network.layers, kinds, strict=False))
    return [
        {key: row[key] for key in keys if key in row}
        | {"kind": by_name[row["from"]], "block": block_of(row["from"])}
        for row in ablation["sections"]
    ]


def layer_norms(graph: InteractionGraph, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Whether a layer norm's edges are 1-to-1, and what the variance hears and tells.

    ``own`` is the median over the first outputs of the largest edge's share of Σ_j Ê_ij², the variance's
    edges left out, ``own_of_all`` that over all outputs. ``first`` is the feature that drives the variance
    most (1 is the first), ``share`` its part, ``reaches`` the share of the outputs that the variance reaches.
    """
    rows = []
    for k, kind in enumerate(kinds):
        source, target = graph.layers[k], graph.layers[k + 1]
        if not kind.startswith("norm"):
            continue
        row: dict[str, Any] = {"from": source.name, "to": target.name, "kind": kind}
        squares = graph.edges[k].double().square()
        inner = squares[1 + target.isolated :, 1 + source.isolated :]
        row["own"] = _largest_share(inner[:PICTURED]).median().item()
        row["own_of_all"] = _largest_share(inner).median().item()
        if kind == "norm in" and target.isolated:
            heard = squares[1, 1:]
            row |= {"first": int(heard.argmax()) + 1, "share": _largest_share(heard[None]).item()}
        if kind == "norm out" and source.isolated:
            told = graph.edges[k].double()[1:, 1:]
            reached = told[:, 0] >= STRONG * told.amax(1)
            row["reaches"] = reached.double().mean().item()
        rows.append(row)
    return rows


def reach(graph: InteractionGraph, kinds: Sequence[str], tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Shares of an attention's outputs that its first two inputs, and a median one, have needed edges to."""
    rows = []
    for k, kind in enumerate(kinds):
        mask = tensors.get(f"edge_mask.{k}")
        if kind != "attention" or mask is None:
            continue
        shares = mask[1:, 1:].double().mean(0)  # [inputs]
        rows.append(
            {
                "from": graph.layers[k].name,
                "to": graph.layers[k + 1].name,
                "first": [round(value, 4) for value in shares[:2].tolist()],
                "median": shares.median().item(),
                "rank": [int((shares > value).sum()) + 1 for value in shares[:2]],
                "inputs": len(shares),
            }
        )
    return rows


def profiles(features: dict[str, Any], layer: str) -> dict[str, Any] | None:
    """The first directions of a layer along the sequence; None where the layer is not there.

    ``pooled`` is the mean of their shares of variance that position explains: the share of the summed
    variance where every direction is scaled to variance 1.
    """
    found = next((row for row in features["layers"] if row["name"] == layer), None)
    rows = [row for row in found["features"] if row.get("positions")][:FIRST] if found else []
    if not rows:
        return None
    shares = [row["positions"]["share"] for row in rows]
    return {
        "layer": layer,
        "pooled": sum(shares) / len(shares),
        "features": [
            {
                "index": row["index"],
                "share": row["positions"]["share"],
                "shape": shape(torch.tensor(row["positions"]["means"], dtype=torch.float64)),
                "means": row["positions"]["means"],
            }
            for row in rows
        ],
    }


def shape(means: Tensor) -> dict[str, Any]:  # [positions]
    """What a profile along the sequence looks like: R² of a step at position 0, a line, and a sinusoid.

    The sinusoid, of the best among `WAVES` cycles, has an offset; position 0 is left out for line and
    sinusoid, since it stands apart in many models.
    """
    place = torch.arange(len(means), dtype=torch.float64)
    rest, inner = means[1:], place[1:]
    ones = torch.ones_like(inner)
    found = {
        "position 0": _explained(means, torch.stack([torch.ones_like(place), (place == 0).double()], 1)),
        "linear": _explained(rest, torch.stack([ones, inner], 1)),
    }
    waves = {}
    for cycles in WAVES:
        angle = 2 * torch.pi * cycles * inner / max(len(means) - 1, 1)
        waves[cycles] = _explained(rest, torch.stack([ones, angle.sin(), angle.cos()], 1))
    best = max(waves, key=lambda cycles: waves[cycles])
    return found | {"sinusoid": waves[best], "cycles": best}


def _explained(values: Tensor, design: Tensor) -> float:
    """R² of a least-squares fit; 0 for what does not vary."""
    total = (values - values.mean()).square().sum()
    if len(values) <= design.shape[1] or total <= 0:
        return 0.0
    fit = design @ torch.linalg.lstsq(design, values[:, None]).solution
    return 1 - ((values - fit[:, 0]).square().sum() / total).item()


def _leading(isolated: int, count: int) -> range:
    return range(1 + isolated, 1 + isolated + count)


def _largest_share(squares: Tensor) -> Tensor:  # [rows, columns] -> [rows]
    """The largest entry's part of each row's sum; rows of zeros are left out."""
    squares = squares[squares.sum(1) > 0]
    return squares.amax(1) / squares.sum(1) if len(squares) else torch.zeros(1, dtype=squares.dtype)
