"""One page of a benchmark, in Markdown, with its pictures beside it."""

from pathlib import Path

from interbasis.base.files import write_text_atomically
from interbasis.base.memory import format_bytes
from interbasis.show.figures.saving import save
from interbasis_studies.bench.figures import sweeps_figure
from interbasis_studies.bench.records import BenchResult, Comparison, Measure

TITLES = {
    "phases": "Phases in forward passes",
    "autograd": "Backward passes over closed forms (larger is better)",
    "rotary over plain": "Rotary positions over none",
}


def write_page(folder: Path, result: BenchResult, comparison: Comparison | None = None) -> Path:
    """Write FOLDER/bench.md and its pictures."""
    save(sweeps_figure(result), folder / "bench-sweeps", formats=("svg",))
    path = folder / "bench.md"
    write_text_atomically(path, "\n".join(_lines(result, comparison)) + "\n")
    return path


def _lines(result: BenchResult, comparison: Comparison | None) -> list[str]:
    machine = result.machine
    form = "quick form, small shapes" if result.quick else "whole form, one block of each model's shape"
    lines = [
        "# Benchmark", "",
        f"interbasis {machine.interbasis}, torch {machine.torch}, {machine.processor}, {machine.threads} "
        f"thread(s), load {machine.load:.1f} at the end; {form}. Ratios of processor time in one process; "
        "± is the median of the runs over the least.",
    ]  # fmt: skip
    if comparison is not None:
        lines += ["", *_compared(comparison)]
    for kind, title in TITLES.items():
        rows = {n: m for n, m in result.ratios.items() if n.startswith(f"{kind}/")}
        if rows:
            lines += ["", f"## {title}", "", "| | | ratio |", "|---|---|---:|"]
            lines += [_row(name, measure) for name, measure in rows.items()]
    lines += [
        "",
        "## Exponents",
        "",
        "Slopes in logarithms while one size grows, and the times they come from.",
        "",
    ]
    phases = next(iter(result.sweeps.values())).exponents if result.sweeps else {}
    lines += [f"| with | sizes | {' | '.join(phases)} |", f"|---|---|{'---:|' * len(phases)}"]
    for size, sweep in result.sweeps.items():
        sizes = ", ".join(f"{value:,}" for value in sweep.sizes)
        lines.append(f"| {size} | {sizes} | {' | '.join(f'{e:.2f}' for e in sweep.exponents.values())} |")
    lines += ["", "![Times against sizes](bench-sweeps.svg)", "", "## Peak memory of a build", ""]
    lines += [f"- {name}: {format_bytes(peak)}" for name, peak in result.peak_bytes.items()]
    if result.scaling is not None:
        one, two, gain = result.scaling.one, result.scaling.two, result.scaling.speedup
        lines += ["", "## Two processes beside one", ""]
        lines += [f"{one:.1f} s on the wall by one process, {two:.1f} s by two: {gain:.2f} times as fast."]
    return lines


def _row(name: str, measure: Measure) -> str:
    _, shape, what = name.split("/", 2)
    return f"| {shape} | {what} | {measure.value:.3g} ± {100 * measure.spread:.0f} % |"


def _compared(comparison: Comparison) -> list[str]:
    if not comparison.changes:
        return [f"Against the baseline: {comparison.compared} ratios, none changed beyond noise."]
    lines = [
        f"Against the baseline, {len(comparison.changes)} of {comparison.compared} ratios changed:",
        "",
    ]
    for change in comparison.changes:
        word = "slower" if change.slower else "faster"
        lines.append(f"- **{word}**: {change.name}, {change.before:.3g} → {change.now:.3g}")
    return lines
