"""One page of a benchmark, in Markdown, with its pictures beside it."""

from pathlib import Path

from matplotlib.figure import Figure

from interbasis.base.files import write_text_atomically
from interbasis.base.memory import format_bytes
from interbasis.show.figures.saving import save
from interbasis.show.figures.style import COLOURS, DASHES, MARKERS, WIDTH, styled
from interbasis_studies.bench.records import BenchComparison, BenchResult

TITLES = {
    "phases": "Phases in forward passes",
    "at 5% error": "Phases of a build to 5 % over 50,000 tokens, in forward passes over them",
    "dictionaries": "Edges between dictionaries in forward passes through the block (32 features active)",
    "autograd": "Backward passes over closed forms (larger is better)",
    "rotary over plain": "Rotary positions over none",
}


def write_page(folder: Path, result: BenchResult, comparison: BenchComparison | None = None) -> Path:
    """Write FOLDER/bench.md and its pictures."""
    save(sweeps_figure(result), folder / "bench-sweeps", formats=("svg",))
    path = folder / "bench.md"
    write_text_atomically(path, "\n".join(_lines(result, comparison)) + "\n")
    return path


def _lines(result: BenchResult, comparison: BenchComparison | None) -> list[str]:
    machine = result.machine
    form = "quick form, small shapes" if result.quick else "whole form, one block of each model's shape"
    lines = [
        "# Benchmark", "",
        f"interbasis {machine.interbasis}, torch {machine.torch}, {machine.processor}, {machine.threads} "
        f"thread(s), load {machine.load:.1f} at the end; {form}. Ratios of processor time in one process; "
        "± is the median of the runs over the least.",
    ]  # fmt: skip
    if comparison is not None and not comparison.changes:
        lines += ["", f"Against the baseline: {comparison.compared} ratios, none changed beyond noise."]
    elif comparison is not None:
        count = len(comparison.changes)
        lines += ["", f"Against the baseline, {count} of {comparison.compared} ratios changed:", ""]
        for change in comparison.changes:
            word = "slower" if change.slower else "faster"
            lines.append(f"- **{word}**: {change.name}, {change.before:.3g} → {change.now:.3g}")
    for kind, title in TITLES.items():
        rows = {n: m for n, m in result.ratios.items() if n.startswith(f"{kind}/")}
        if rows:
            lines += ["", f"## {title}", "", "| | | ratio |", "|---|---|---:|"]
            for name, measure in rows.items():
                _, shape, what = name.split("/", 2)
                lines.append(f"| {shape} | {what} | {measure.value:.3g} ± {100 * measure.spread:.0f} % |")
    about = "Slopes in logarithms while one size grows, and the times they come from."
    lines += ["", "## Exponents", "", about, ""]
    phases = next(iter(result.sweeps.values())).exponents if result.sweeps else {}
    lines += [f"| with | sizes | {' | '.join(phases)} |", f"|---|---|{'---:|' * len(phases)}"]
    for size, sweep in result.sweeps.items():
        sizes = ", ".join(f"{value:,}" for value in sweep.sizes)
        lines.append(f"| {size} | {sizes} | {' | '.join(f'{e:.2f}' for e in sweep.exponents.values())} |")
    lines += ["", "![Times against sizes](bench-sweeps.svg)", "", "## Peak memory of a build", ""]
    lines += [f"- {name}: {format_bytes(peak)}" for name, peak in result.peak_bytes.items()]
    if s := result.scaling:
        sentence = (
            f"{s.one:.1f} s on the wall by one process, {s.two:.1f} s by two: {s.speedup:.2f} times as fast."
        )
        lines += ["", "## Two processes beside one", "", sentence]
    return lines


@styled
def sweeps_figure(result: BenchResult) -> Figure:
    """Processor time of every phase against every size, in logarithms, with the fitted exponents."""
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    axes = figure.subplots(2, 3).flatten()
    for axis, (size, sweep) in zip(axes, result.sweeps.items(), strict=False):
        for k, (phase, seconds) in enumerate(sweep.seconds.items()):
            label = f"{phase} ({sweep.exponents[phase]:.1f})"
            axis.loglog(
                sweep.sizes, [max(s, 1e-4) for s in seconds], color=COLOURS[k % len(COLOURS)],
                marker=MARKERS[k % len(MARKERS)], linestyle=DASHES[k % len(DASHES)], label=label,
            )  # fmt: skip
        axis.set_title(size)
        axis.set_xlabel(size)
        axis.set_ylabel("processor seconds")
        axis.set_xticks(sweep.sizes, [f"{value:,}" for value in sweep.sizes])
        axis.minorticks_off()
    for axis in axes[len(result.sweeps) :]:
        axis.axis("off")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[-1].legend(handles, [label.split(" ")[0] for label in labels], loc="center")
    return figure
