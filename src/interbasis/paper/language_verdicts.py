"""Claims L1 to L5, language models: rules over the numbers of a LIB and a PCA piece."""

from collections.abc import Sequence
from typing import Any

from interbasis.paper.verdicts import Ruling, Verdict, open_verdict, spread

Piece = dict[str, Any]
POSITIONAL, HALF = 0.9, 0.5
ONE_TO_ONE = 0.9
REACHES, MOST = 0.9, 0.5
CAN_GO = 0.8


def verdicts(pieces: Sequence[Piece], comparison: Sequence[dict[str, Any]]) -> list[Verdict]:
    """All five claims; those whose numbers are not there yet as open."""
    lib = next((piece for piece in pieces if piece["basis"] == "lib"), None)
    pca = next((piece for piece in pieces if piece["basis"] == "pca"), None)
    central = [row for row in comparison if row["kind"] in ("attention", "MLP")]
    return [
        positional(lib["profiles"])
        if lib and lib["profiles"]
        else open_verdict("L1", "the first 4 LIB directions are positional", "about 97 %", "LIB"),
        layer_norms(lib["norms"], lib["middle"])
        if lib
        else open_verdict("L2", "layer-norm edges are 1-to-1 but for the variance", "picture", "LIB"),
        attention_inputs(lib["reach"], lib["middle"])
        if lib and lib["reach"]
        else open_verdict("L3", "the first two inputs reach most outputs of attention", "picture", "LIB"),
        can_go(lib["edges"], pca["edges"])
        if lib and pca
        else open_verdict("L4", "80–95 % of the edges can go", "80–95 %", "LIB and PCA"),
        sparser(central)
        if central
        else open_verdict("L5", "LIB sparser than PCA in all attention and MLP sections", "all",
                          "LIB and PCA"),
    ]  # fmt: skip


def positional(profiles: dict[str, Any]) -> Verdict:
    """L1 of the first directions at the start of the middle block."""
    shares = [row["share"] for row in profiles["features"]]
    pooled = profiles["pooled"]
    ruling: Ruling = (
        "reproduced" if pooled >= POSITIONAL else "differs" if max(shares) >= HALF else "not reproduced"
    )
    each = ", ".join(f"{share:.0%}" for share in shares)
    return Verdict(
        "L1", "start of the middle block: the first 4 LIB directions are positional",
        "about 97 % of their variance; GPT2-small, block 6",
        f"{profiles['layer']}: {pooled:.1%} on average ({each})",
        ruling, "" if ruling == "reproduced" else f"{100 * (0.97 - pooled):.0f} points less",
        f"average at least {POSITIONAL:.0%}; differs where one direction has {HALF:.0%}",
    )  # fmt: skip


def layer_norms(rows: Sequence[dict[str, Any]], middle: int) -> Verdict:
    """L2 of all layer norms: 1-to-1 edges, feature 1 first in the variance, the variance to all outputs."""
    own = [row["own"] for row in rows]
    heard = [row for row in rows if "first" in row]
    firsts = sum(row["first"] == 1 for row in heard)
    told = [row["reaches"] for row in rows if "reaches" in row]
    holds = [
        min(own) >= ONE_TO_ONE,
        bool(heard) and firsts > HALF * len(heard),
        bool(told) and min(told) >= REACHES,
    ]
    ruling: Ruling = "reproduced" if all(holds) else "differs" if any(holds) else "not reproduced"
    names = ("1-to-1", "feature 1 first", "variance to all")
    missing = ", ".join(name for name, held in zip(names, holds, strict=True) if not held)
    mine = next((row for row in heard if row["from"] == f"ln1.{middle}"), None)
    every = spread([row["own_of_all"] for row in rows], "{:.0%}")
    here = f"own edge {spread(own, '{:.0%}')} of a pictured output's Ê² (of any output's {every}); "
    here += "feature 1 drives the variance most in "
    here += f"{firsts} of {len(heard)} norms"
    here += f" (ln1.{middle}: feature {mine['first']}, {mine['share']:.0%})" if mine else ""
    here += f"; the variance reaches {spread(told, '{:.0%}')} of the outputs" if told else ""
    return Verdict(
        "L2", "layer-norm edges are 1-to-1 but for the variance, which feature 1 drives most and which "
        "reaches all outputs", "picture", here, ruling,
        f"does not hold: {missing}" if missing else "",
        "in every norm the median of the first 50 outputs, as many as the paper pictures, has "
        f"{ONE_TO_ONE:.0%} of its Ê² from one feature, in most feature 1 is first, and the variance reaches "
        f"{REACHES:.0%} of the outputs; differs where some of these hold",
    )  # fmt: skip


def attention_inputs(rows: Sequence[dict[str, Any]], middle: int) -> Verdict:
    """L3 of the edges needed from the first two inputs of the middle block's attention."""
    row = next((row for row in rows if row["from"] == f"attn_in.{middle}"), rows[len(rows) // 2])
    first, second = row["first"]
    many = [share > MOST for share in row["first"]]
    ruling: Ruling = "reproduced" if all(many) else "differs" if any(many) else "not reproduced"
    return Verdict(
        "L3", "the first two inputs reach most outputs of the attention", "picture, block 6",
        f"{row['from']}: needed edges to {first:.0%} and {second:.0%} of the outputs (ranks "
        f"{row['rank'][0]} and {row['rank'][1]} of {row['inputs']} inputs; a median input "
        f"{row['median']:.0%})",
        ruling, "" if ruling == "reproduced" else f"{sum(many)} of 2 reach most",
        f"needed edges to more than {MOST:.0%} of the outputs from both; differs where from one",
    )  # fmt: skip


def can_go(lib: Sequence[dict[str, Any]], pca: Sequence[dict[str, Any]]) -> Verdict:
    """L4 of the share of edges that can go in attention and MLP sections."""
    gone = {
        name: [1 - row["kept_fraction"] for row in rows if row["kind"] in ("attention", "MLP")]
        for name, rows in (("LIB", lib), ("PCA", pca))
    }
    everything = [share for shares in gone.values() for share in shares]
    enough = sum(share >= CAN_GO for share in everything)
    ruling: Ruling = (
        "reproduced" if enough == len(everything) else
        "differs" if enough >= HALF * len(everything) else "not reproduced"
    )  # fmt: skip
    ranges = "; ".join(f"{name} {spread(shares, '{:.0%}')}" for name, shares in gone.items())
    return Verdict(
        "L4", "80–95 % of the edges of attention and MLP sections can go, in both bases",
        "80–95 %, GPT2-small", f"{ranges}; {enough} of {len(everything)} at least {CAN_GO:.0%}", ruling,
        "" if ruling == "reproduced" else f"{len(everything) - enough} sections keep more than a fifth",
        f"at least {CAN_GO:.0%} in every section and basis; differs where in half of them",
    )  # fmt: skip


def sparser(rows: Sequence[dict[str, Any]]) -> Verdict:
    """L5 of LIB's edges required beside PCA's, with the bootstrap interval of their ratio."""
    parts, wins = [], 0
    for kind in ("attention", "MLP"):
        some = [row for row in rows if row["kind"] == kind]
        fewer = sum(row["lib"] < row["pca"] for row in some)
        clear = sum(row["interval"][1] < 1 for row in some)
        against = sum(row["interval"][0] > 1 for row in some)
        wins += fewer
        parts.append(
            f"{kind}: LIB fewer in {fewer} of {len(some)} ({clear} clearly; PCA clearly in {against})"
        )
    ruling: Ruling = (
        "reproduced" if wins == len(rows) else "differs" if wins > HALF * len(rows) else "not reproduced"
    )
    ratios = [row["ratio"] for row in rows]
    return Verdict(
        "L5", "LIB sparser than PCA in all attention and MLP sections", "all, TinyStories-1M",
        "; ".join(parts) + f"; LIB needs {spread(ratios, '{:.2f}')} times PCA's", ruling,
        "" if ruling == "reproduced" else f"{len(rows) - wins} sections to the contrary",
        "fewer in every section; differs where in more than half; clearly: the 95 % interval of the ratio "
        "excludes 1",
    )  # fmt: skip
