"""The report of a reproduction as a Markdown page: verdicts first, then all tables."""

from collections import Counter
from typing import Any

from interbasis.reproduction import cifar10_page, language_page, modadd_page
from interbasis.reproduction.markdown import percent, table
from interbasis.reproduction.plan import SEEDS
from interbasis.reproduction.sections import edges, interactions, modules

TITLES = {
    "modadd": "Modular addition, reproduced (paper 3.1; claims M1 to M8)",
    "cifar10": "CIFAR-10 MLPs, reproduced (paper 3.2; claims C1 to C6)",
}


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    if found["task"] in language_page.TITLES:
        return language_page.page(found)
    special = modadd_page if found["task"] == "modadd" else cifar10_page
    parts = [f"# {TITLES[found['task']]}", _head(found), special.INTRODUCTION, _verdicts(found)]
    if found["pieces"]:
        parts += [_models(found), edges(found), *special.sections(found), modules(found), interactions(found)]
    parts += [*_figures(found), _times(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(found: dict[str, Any]) -> str:
    done, missing = len(found["pieces"]), found["missing"]
    lines = [
        f"Written on {found['date']} from {done} of {done + len(missing)} pieces (one per seed and "
        "basis) by\n",
        f"    {found['command']}\n",
    ]
    waiting = [piece for piece in missing if piece["weights"]]
    if waiting:
        listed = "; ".join(
            f"{basis} of seed {_listed(waiting, basis)}"
            for basis in found["bases"]
            if _listed(waiting, basis)
        )
        lines.append(f"**Not finished yet:** {listed}. The same command goes on with them.")
    if without := sorted({piece["seed"] for piece in missing if not piece["weights"]}):
        lines.append(f"**No weights were given** for seed {', '.join(map(str, without))}.")
    if found["quick"]:
        lines.append("Quick form: fewer seeds and bases, no search for stable counts.")
    return "\n".join(lines)


def _listed(missing: list[dict[str, Any]], basis: str) -> str:
    return ", ".join(str(piece["seed"]) for piece in missing if piece["basis"] == basis)


def _verdicts(found: dict[str, Any]) -> str:
    seeds = len({piece["seed"] for piece in found["pieces"]} & set(SEEDS))
    counts = Counter(verdict["ruling"] for verdict in found["verdicts"])
    summary = ", ".join(f"{count} {ruling}" for ruling, count in counts.items())
    rows = [
        (
            v["claim"], v["statement"], v["paper"], v["here"],
            f"**{v['ruling']}**" + (f": {v['by']}" if v["by"] else ""), v["rule"],
        )
        for v in found["verdicts"]
    ]  # fmt: skip
    return (
        f"## Verdicts\n\n{summary}; {_seeds(seeds)}. Computed from the numbers below by the rules in "
        "the last "
        "column (`interbasis.reproduction`).\n\n"
        + table(("claim", "what it says", "paper", "here", "verdict", "rule"), rows)
    )


def _seeds(count: int) -> str:
    return (
        "all five seeds" if count >= len(SEEDS) else f"{count} of {len(SEEDS)} seeds, so they are provisional"
    )


def _models(found: dict[str, Any]) -> str:
    models = {piece["seed"]: piece for piece in found["pieces"]}
    rows = [
        (
            seed,
            f"`{model['checkpoint']}`",
            percent(model["train_accuracy"]),
            percent(model["test_accuracy"], 3),
        )
        for seed, model in sorted(models.items())
    ]
    return "## Models\n\n" + table(("seed", "checkpoint", "train accuracy", "test accuracy"), rows)


def _figures(found: dict[str, Any]) -> list[str]:
    if not found["figures"]:
        return []
    shown = [f"![{one['caption']}]({one['file']})\n\n{one['caption']}" for one in found["figures"]]
    return ["## Figures", *shown]


def _times(found: dict[str, Any]) -> str:
    if not found["pieces"]:
        return ""
    phases = ("build", "ablation", "measures")
    rows = [
        (piece["basis"], piece["seed"], *(piece["seconds"][phase] for phase in phases))
        for piece in found["pieces"]
    ]
    total = sum(value or 0 for *_, build, ablation, measures in rows for value in (build, ablation, measures))
    return (
        f"## Times\n\nWall-clock seconds, {total / 60:.0f} minutes in all, on a machine shared with "
        "other work. Of a "
        "piece that was killed and went on, the last part of that phase alone is counted.\n\n"
        + table(("basis", "seed", *phases), rows)
    )
