"""Pictures of a benchmark."""

from matplotlib.figure import Figure

from interbasis.show.figures.style import COLOURS, DASHES, MARKERS, WIDTH, styled
from interbasis_studies.bench.records import BenchResult, Sweep


@styled
def sweeps_figure(result: BenchResult) -> Figure:
    """Processor time of every phase against every size, in logarithms, with the fitted exponents."""
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    axes = figure.subplots(2, 3).flatten()
    for axis, (size, one) in zip(axes, result.sweeps.items(), strict=False):
        _panel(axis, size, one)
    for axis in axes[len(result.sweeps) :]:
        axis.axis("off")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[-1].legend(handles, [label.split(" ")[0] for label in labels], loc="center")
    return figure


def _panel(axis, size: str, sweep: Sweep) -> None:  # type: ignore[no-untyped-def]
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
