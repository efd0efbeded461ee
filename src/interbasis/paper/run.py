"""`interbasis reproduce`: all pieces of a plan one after the other, and the report over finished ones."""

import json
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from interbasis.paper import images, modadd
from interbasis.paper.claims import verdicts
from interbasis.paper.drawing import draw_figures
from interbasis.paper.language_plan import LanguagePlan
from interbasis.paper.machine import describe_machine
from interbasis.paper.pages import page
from interbasis.paper.pieces import Measure, do_piece, finished
from interbasis.paper.plan import SEEDS, Plan
from interbasis.paper.weights import checkpoint, find_seeds
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.files import check_writable, write_text_atomically
from interbasis.runtime.progress import Progress, progress_bar

JSON, PAGE = "reproduction.json", "report.md"


def reproduce(plan: Plan, progress: Progress | bool | None = None) -> dict[str, Any]:
    """Do what is not finished yet, and report; after every piece the report in the folder is up to date.

    Killed, the same call goes on where it was.
    """
    check_writable(plan.out)
    seeds = find_seeds(plan)
    with progress_bar(progress) as advance:
        measure = _measure(plan, advance)
        for seed, basis in plan.pieces(seeds):
            if finished(plan, seed, basis) is None:
                do_piece(plan, seed, basis, checkpoint(plan, seed, advance), measure, advance)
                report(plan, figures=False)
    return report(plan)


def report(plan: Plan, figures: bool = True) -> dict[str, Any]:
    """Everything found so far as plain data, written as JSON and as a page in the plan's folder.

    Figures take longer than the rest; between two pieces the page does without them.
    """
    if not plan.out.is_dir():
        raise InterbasisError(f"there is nothing to report in {plan.out}; leave out --report-only")
    seeds, there = plan.seeds or SEEDS, find_seeds(plan)
    pieces, missing = [], []
    for seed, basis in plan.pieces(seeds):
        piece = finished(plan, seed, basis)
        if piece is None:
            missing.append({"seed": seed, "basis": basis, "weights": seed in there})
        else:
            pieces.append(piece)
    found: dict[str, Any] = {
        "task": plan.task,
        "date": datetime.now(UTC).strftime("%-d %B %Y, %H:%M UTC"),
        "command": plan.command,
        "quick": plan.quick,
        "seeds": list(seeds),
        "bases": list(plan.bases),
        "settings": plan.settings,
        "pieces": pieces,
        "missing": missing,
        "verdicts": [asdict(verdict) for verdict in verdicts(plan.task, pieces)],
    }
    found["machine"] = describe_machine([plan.out / piece["run"] for piece in pieces])
    found["figures"] = [
        {"section": section, "caption": caption, "file": str(file.relative_to(plan.out))}
        for section, caption, file in (draw_figures(found, plan.out) if figures else [])
    ]
    write_text_atomically(plan.out / JSON, json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_text_atomically(plan.out / PAGE, page(found))
    return found


def write_page(found: dict[str, Any], plan: Plan | LanguagePlan, path: Path) -> None:
    """The page once more, somewhere else; its figures go into a folder beside it that has its name."""
    check_writable(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = []
    for figure in found["figures"]:
        copy = path.parent / path.stem / Path(figure["file"]).name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(plan.out / figure["file"], copy)
        figures.append(figure | {"file": f"{path.stem}/{copy.name}"})
    write_text_atomically(path, page(found | {"figures": figures}))


def _measure(plan: Plan, progress: Progress) -> Measure:
    if plan.task == "modadd":
        return modadd.measure
    return images.measuring(plan.data_spec or "", progress)
