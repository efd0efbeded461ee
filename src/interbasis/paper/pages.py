"""The report of a reproduction as a Markdown page: verdicts first, then all tables with their figures."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, get_args

from interbasis.paper import cifar10_page, language_page, modadd_page
from interbasis.paper.markdown import percent, table
from interbasis.paper.names import BASES
from interbasis.paper.plan import SEEDS
from interbasis.paper.sections import edges, interactions, modules
from interbasis.paper.verdicts import Ruling

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
    parts = [_with_figures(part, found) for part in parts]
    parts += [*_other_figures(parts, found), _times(found)]
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
            f"{BASES[basis]} of seed {_listed(waiting, basis)}"
            for basis in found["bases"]
            if _listed(waiting, basis)
        )
        lines.append(f"**Not finished yet:** {listed}. The same command goes on with them.\n")
    if without := sorted({piece["seed"] for piece in missing if not piece["weights"]}):
        lines.append(f"**No weights were given** for seed {', '.join(map(str, without))}.\n")
    if found["quick"]:
        lines.append("Quick form: fewer seeds and bases, no search for stable counts.\n")
    if done and not found["figures"]:
        lines.append("Figures are drawn when all is done, or by the same command with --report-only.\n")
    return "\n".join(lines).rstrip()


def _listed(missing: list[dict[str, Any]], basis: str) -> str:
    return ", ".join(str(piece["seed"]) for piece in missing if piece["basis"] == basis)


def _verdicts(found: dict[str, Any]) -> str:
    seeds = len({piece["seed"] for piece in found["pieces"]} & set(SEEDS))
    counts = Counter(verdict["ruling"] for verdict in found["verdicts"])
    summary = ", ".join(f"{counts[ruling]} {ruling}" for ruling in get_args(Ruling) if counts[ruling])
    rows = [
        (v["claim"], v["statement"], v["paper"], v["here"],
         f"**{v['ruling']}**" + (f": {v['by']}" if v["by"] else ""))
        for v in found["verdicts"]
    ]  # fmt: skip
    return (
        f"## Verdicts\n\n{summary}; {_seeds(seeds)}. Computed from the numbers below by the rules "
        "under the table (`interbasis.paper`); nothing is judged by eye.\n\n"
        + table(("claim", "what it says", "paper", "here", "verdict"), rows)
        + "\n\nWhat decides:\n\n"
        + table(("claim", "reproduced where"), [(v["claim"], v["rule"]) for v in found["verdicts"]])
    )


def _seeds(count: int) -> str:
    if count >= len(SEEDS):
        return "all five seeds"
    return f"**{count} of {len(SEEDS)} seeds, so they are provisional**"


def _models(found: dict[str, Any]) -> str:
    special = modadd_page if found["task"] == "modadd" else cifar10_page
    models = {piece["seed"]: piece for piece in found["pieces"]}
    rows = [
        (
            str(seed), f"`{model['checkpoint']}`", percent(model["train_accuracy"]),
            percent(model["test_accuracy"], 3), *special.model_columns(model),
        )
        for seed, model in sorted(models.items())
    ]  # fmt: skip
    head = ("seed", "checkpoint", "train accuracy", "test accuracy", *special.MODEL_HEAD)
    return "## Models\n\n" + table(head, [*rows, *special.PAPER_MODELS])


def _with_figures(part: str, found: dict[str, Any]) -> str:
    """A part of the page, and below its tables the figures that belong to it."""
    own = [one for one in found["figures"] if part.startswith(f"## {one.get('section')}\n")]
    return "\n\n".join([part, *map(_figure, own)])


def _other_figures(parts: list[str], found: dict[str, Any]) -> list[str]:
    """Figures of sections that have no tables, each section under its heading."""
    shown = "\n\n".join(parts)
    rest = [one for one in found["figures"] if f"]({one['file']})" not in shown]
    headings = dict.fromkeys(one.get("section") or "Figures" for one in rest)
    return [
        "\n\n".join(
            [f"## {heading}", *(_figure(o) for o in rest if (o.get("section") or "Figures") == heading)]
        )
        for heading in headings
    ]


def _figure(figure: dict[str, Any]) -> str:
    return f"![{figure['caption']}]({figure['file']})\n\n*{figure['caption']}*"


def _times(found: dict[str, Any]) -> str:
    if not found["pieces"]:
        return ""
    phases = ("build", "ablation", "measures")
    named = [(f"{BASES[p['basis']]}, seed {p['seed']}", p["seconds"]) for p in found["pieces"]]
    named.append(("all", {phase: _sum(seconds[phase] for _, seconds in named) for phase in phases}))
    rows = [
        (name, *(_seconds(seconds[phase]) for phase in phases), _seconds(_sum(seconds.values())))
        for name, seconds in named
    ]
    minutes = _sum(named[-1][1].values()) / 60
    return (
        f"## Times\n\nWall-clock seconds, {minutes:.0f} minutes in all, on a machine shared with other work; "
        "training is not counted. Of a piece that was killed and went on, the last part of that phase alone "
        "is "
        f"counted. {_machine(found)}\n\n" + table(("piece", *phases, "all"), rows)
    )


def _sum(values: Iterable[float | None]) -> float:
    return sum(value or 0 for value in values)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _machine(found: dict[str, Any]) -> str:
    machine = found.get("machine")
    if not machine:
        return ""
    return (
        f"This page was written on {machine['processor']}, {machine['cores']} cores, {machine['memory']}; "
        f"{machine['system']}, Python {machine['python']}, torch {machine['torch']}; the pieces ran with "
        f"{machine['threads']} of torch's threads."
    )
