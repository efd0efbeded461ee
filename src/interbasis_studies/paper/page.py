"""The report of a reproduction as a Markdown page: verdicts first, then all tables with their figures."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from interbasis.show.tables import markdown_table
from interbasis_studies.paper.claims import Ruling
from interbasis_studies.paper.plan import BASIS_LABELS
from interbasis_studies.paper.records import J, JobResult, Reproduction, SavedFigure
from interbasis_studies.paper.task import Task

LIMITS = (
    "**What it does not show.** Other models, data and seeds than those above. The paper states its claims "
    "in words and pictures, so the rules that decide are ours."
)


def write(r: Reproduction[J], task: Task[J]) -> str:
    """The whole page."""
    parts = [f"# {task.title}", _head(r, task), task.introduction(r), _verdicts(r)]
    parts += task.sections(r) if r.jobs else []
    for k, part in enumerate(parts):  # below its tables the figures that belong to it
        shown = [figure for figure in r.figures if part.startswith(f"## {figure.section}\n")]
        parts[k] = "\n\n".join([part, *map(_figure, shown)])
    tables = "\n\n".join(parts)
    rest = [figure for figure in r.figures if f"]({figure.file})" not in tables]
    for heading in dict.fromkeys(figure.section for figure in rest):  # sections that have no tables
        figures = [_figure(figure) for figure in rest if figure.section == heading]
        parts.append("\n\n".join([f"## {heading}", *figures]))
    parts += [_times(r), LIMITS]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(r: Reproduction[J], task: Task[J]) -> str:
    done, each = len(r.jobs), "basis" if task.plan.model else "seed and basis"
    counts = Counter(verdict.ruling for verdict in r.verdicts)
    summary = ", ".join(f"{counts[ruling]} {ruling}" for ruling in get_args(Ruling) if counts[ruling])
    first, last = r.verdicts[0].claim, r.verdicts[-1].claim
    lines = [
        f"**Question.** Which of the paper's claims {first} to {last} hold for the models below?\n",
        f"**Answer.** {summary}; {task.scope(r)}.\n",
        f"Written on {r.date} from {done} of {done + len(r.missing)} runs (one per {each}) by\n",
        f"    {r.command}\n",
    ]
    waiting = []
    for basis in r.bases:
        if seeds := [job.seed for job in r.missing if job.has_model and job.basis == basis]:
            numbers = ", ".join(str(seed) for seed in seeds if seed is not None)
            waiting.append(BASIS_LABELS[basis] + (f" of seed {numbers}" if numbers else ""))
    if waiting:
        lines.append(f"**Not finished yet:** {'; '.join(waiting)}. The same command resumes them.\n")
    if without := sorted({str(job.seed) for job in r.missing if not job.has_model}):
        lines.append(f"**No weights were given** for seed {', '.join(without)}.\n")
    if r.quick:
        lines.append(f"Quick form: {task.quick_form}\n")
    if done and not r.figures:
        lines.append("Figures are drawn when all is done, or by the same command with --report-only.\n")
    return "\n".join(lines).rstrip()


def _verdicts(r: Reproduction[J]) -> str:
    rows = [
        (v.claim, v.statement, v.paper, v.here, f"**{v.ruling}**" + (f": {v.by}" if v.by else ""))
        for v in r.verdicts
    ]
    return (
        "## Verdicts\n\nComputed from the numbers below by the rules under the table "
        "(`interbasis_studies.paper`); nothing is judged by eye.\n\n"
        + markdown_table(("claim", "what it says", "paper", "here", "verdict"), rows)
        + "\n\nWhat decides:\n\n"
        + markdown_table(("claim", "reproduced where"), [(v.claim, v.rule) for v in r.verdicts])
    )


def _figure(figure: SavedFigure) -> str:
    return f"![{figure.caption}]({figure.file})\n\n*{figure.caption}*"


def _times(r: Reproduction[J]) -> str:
    if not r.jobs:
        return ""
    stages = list(dict.fromkeys(stage for job in r.jobs for stage in job.times.stages))
    phases = list(dict.fromkeys(phase for job in r.jobs for phase in job.times.phases))
    minutes = sum(stage.wall for job in r.jobs for stage in job.times.stages.values()) / 60
    peaks = [job.times.peak_bytes or 0 for job in r.jobs]
    memory = f" Peak memory: {max(peaks) / 2**30:.2f} GB a process." if all(peaks) else ""
    threads = " or ".join(sorted({str(job.times.threads) for job in r.jobs}))
    return (
        f"## Times\n\nWall-clock seconds, {minutes:.0f} minutes in all; "
        "training is not counted. Of a stage that was killed and resumed, the last part alone is counted. "
        f"This page was written on {r.machine.processor}, {r.machine.cores} cores, {r.machine.memory}; "
        f"{r.machine.system}, Python {r.machine.python}, torch {r.machine.torch}; the runs had {threads} of "
        f"torch's threads.{memory}\n\n"
        + _seconds(r.jobs, stages, lambda job: {name: s.wall for name, s in job.times.stages.items()})
        + "\n\nProcessor seconds, all threads together:\n\n"
        + _seconds(r.jobs, stages, lambda job: {name: s.processor for name, s in job.times.stages.items()})
        + "\n\nThe builds by phase, wall-clock seconds:\n\n"
        + _seconds(r.jobs, phases, lambda job: job.times.phases)
    )


def _seconds(
    jobs: Sequence[J], columns: Sequence[str], seconds: Callable[[JobResult], Mapping[str, float]]
) -> str:
    """A row per job and one for all of them, a column per stage and one for all of these."""
    cells = [[seconds(job).get(column) for column in columns] for job in jobs]
    cells.append([sum(value or 0 for value in column) for column in zip(*cells, strict=True)])
    names = [BASIS_LABELS[job.basis] + (f", seed {job.seed}" if job.seed is not None else "") for job in jobs]
    rows = [
        (name, *(None if value is None else f"{value:,.0f}" for value in row),
         f"{sum(value or 0 for value in row):,.0f}")
        for name, row in zip([*names, "all"], cells, strict=True)
    ]  # fmt: skip
    return markdown_table(("run", *columns, "all"), rows)
