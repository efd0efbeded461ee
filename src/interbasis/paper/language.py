"""`interbasis reproduce tinystories` and `gpt2`: the paper's section 3.3 on any language model."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from interbasis.ablation import bootstrap
from interbasis.paper.language_drawing import draw_figures
from interbasis.paper.language_page import page
from interbasis.paper.language_pieces import do_piece, finished
from interbasis.paper.language_plan import LanguagePlan
from interbasis.paper.language_verdicts import verdicts
from interbasis.paper.run import JSON, PAGE
from interbasis.run.results import load_result, load_tensors
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.files import check_writable, write_text_atomically
from interbasis.runtime.progress import Progress, progress_bar

EXAMPLES = (1, 5, 6, 7, 8, 12)
"""Features at the start of the middle block of which examples are shown."""
AROUND = 8
"""Tokens before the one that an example is about, and half as many behind it."""


def reproduce(plan: LanguagePlan, progress: Progress | bool | None = None) -> dict[str, Any]:
    """Do what is not finished yet, and report; after every basis the report in the folder is up to date.

    Killed, the same call goes on where it was. Bases may be done by processes of their own with the same
    ``out``, each given one of them.
    """
    check_writable(plan.out)
    found: dict[str, Any] = {}
    with progress_bar(progress) as advance:
        for basis in plan.bases:
            if finished(plan, basis) is None:
                do_piece(plan, basis, advance)
                found = report(plan)
    return found or report(plan)


def report(plan: LanguagePlan) -> dict[str, Any]:
    """Everything found so far as plain data, written as JSON and as a page in the plan's folder."""
    if not plan.out.is_dir():
        raise InterbasisError(f"there is nothing to report in {plan.out}; leave out --report-only")
    found: dict[str, dict[str, Any] | None] = {basis: finished(plan, basis) for basis in plan.bases}
    pieces = [piece for piece in found.values() if piece is not None]
    _refuse_mixed(pieces)
    compared = _compare(plan, found)
    result: dict[str, Any] = {
        "task": plan.task,
        "date": datetime.now(UTC).strftime("%-d %B %Y, %H:%M UTC"),
        "command": plan.command,
        "model": plan.model,
        "data": plan.data,
        "quick": plan.quick,
        "bases": list(plan.bases),
        "depth": plan.depth,
        "settings": plan.settings,
        "pieces": pieces,
        "missing": [{"basis": basis} for basis, piece in found.items() if piece is None],
        "comparison": compared,
        "examples": [row for piece in pieces for row in _examples(plan, piece)],
        "verdicts": [asdict(verdict) for verdict in verdicts(pieces, compared)],
    }
    result["figures"] = [
        {"caption": caption, "file": str(file.relative_to(plan.out))}
        for caption, file in draw_figures(result, plan)
    ]
    write_text_atomically(plan.out / JSON, json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_text_atomically(plan.out / PAGE, page(result))
    return result


def _refuse_mixed(pieces: Sequence[dict[str, Any]]) -> None:
    """Masks of different bases are compared on the same windows only."""
    if len({(piece["data"]["fingerprint"], piece["model_fingerprint"]) for piece in pieces}) > 1:
        raise InterbasisError("the pieces belong to different models or test data; name another --out")


def _compare(plan: LanguagePlan, found: dict[str, dict[str, Any] | None]) -> list[dict[str, Any]]:
    """LIB's edges required over PCA's, section by section, with the interval of the ratio on paired draws."""
    lib, pca = found.get("lib"), found.get("pca")
    if lib is None or pca is None:
        return []
    draws = {name: load_tensors(plan.folder(name), "ablation") for name in ("lib", "pca")}
    order = [row["name"] for row in lib["layers"]]
    there = {row["from"]: row for row in pca["edges"]}
    rows = []
    for row in lib["edges"]:
        if row["from"] not in there:
            continue
        name = f"count_draws.{order.index(row['from'])}"
        ratio = draws["lib"][name].clamp_min(1) / draws["pca"][name].clamp_min(1)
        other = there[row["from"]]
        rows.append(
            {key: row[key] for key in ("from", "to", "kind", "block", "possible")}
            | {
                "lib": row["count"], "pca": other["count"], "lib_interval": row["interval"],
                "pca_interval": other["interval"], "ratio": max(row["count"], 1) / max(other["count"], 1),
                "interval": list(bootstrap.central(ratio)),
            }
        )  # fmt: skip
    return rows


def _examples(plan: LanguagePlan, piece: dict[str, Any]) -> list[dict[str, Any]]:
    """Where some features are most positive and most negative, as text."""
    shown, features = (load_result(plan.folder(piece["basis"]), name) for name in ("examples", "features"))
    name = f"ln1.{piece['middle']}"
    if shown is None or features is None or shown["kind"] != "tokens":
        return []
    examples, described = (
        {
            row["index"]: row
            for layer in result["layers"]
            if layer["name"] == name
            for row in layer["features"]
        }
        for result in (shown, features)
    )
    return [
        {
            "basis": piece["basis"], "layer": name, "feature": j, "label": described[j]["label"],
            "most": _texts(examples[j]["bands"][0]), "least": _texts(examples[j]["bands"][-1]),
        }
        for j in EXAMPLES
        if j in examples and examples[j]["bands"]
    ]  # fmt: skip


def _texts(band: dict[str, Any]) -> str:
    return " · ".join(_text(example) for example in band["examples"][:2])


def _text(example: dict[str, Any]) -> str:
    """The surroundings of a token, on one line of a table."""
    tokens, active = example["tokens"], example["active"]
    start = max(0, active - AROUND)
    parts = [
        f"»{token}«" if place == active else token
        for place, token in enumerate(tokens[start : active + 1 + AROUND // 2], start)
    ]
    plain = " ".join("".join(parts).split()).replace("`", "'")
    return f"`{plain}` ({example['value']:.3g})"
