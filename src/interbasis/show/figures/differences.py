"""Heat map of a series of differences: sections by steps."""

import math
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from interbasis.analysis.differences.records import DifferenceSeries
from interbasis.show.figures.saving import save
from interbasis.show.figures.style import WIDTH, new_figure, note, plain, shortened, styled

MAX_STEP_NAMES = 24
"""Steps that are all named; of more, some are."""
LARGEST_SHOWN = 1.0
"""Larger shares have the colour of this one: the first steps of a training change more than there is."""
SMALLEST_SHOWN = 1e-4
"""Smallest share with a colour of its own, relative to the largest of its panel."""


@styled
def difference_heat_map(series: DifferenceSeries) -> Figure:
    """Two panels, section by step: share of the outputs and of the Jacobian that differs, blank where none.

    Args:
        series: Differences in the order of the steps.

    Returns:
        The figure.
    """
    known = list(series.differences[0].sections)
    changed = [name for name in known if any(step.sections[name].changed for step in series.differences)]
    sections = changed or known
    steps = _short_names(series.steps)
    figure = new_figure(WIDTH, 1.6 + 0.42 * len(sections))
    for panel, kind in zip(figure.subplots(2, 1, sharex=True), ("outputs", "jacobian"), strict=True):
        shares = np.array([
            [getattr(difference.sections[name], kind).value for difference in series.differences]
            for name in sections
        ], dtype=float)  # fmt: skip
        finite = shares[np.isfinite(shares) & (shares > 0)]
        largest = min(float(finite.max()), LARGEST_SHOWN) if finite.size else LARGEST_SHOWN
        lowest = max(float(finite.min()) if finite.size else largest, SMALLEST_SHOWN * largest)
        image = panel.imshow(
            np.ma.masked_where(~(shares > 0), np.clip(shares, lowest, largest)), aspect="auto",
            interpolation="nearest",
            cmap="viridis", norm=LogNorm(lowest, largest if largest > lowest else 10 * lowest),
        )  # fmt: skip
        panel.set_yticks(range(len(sections)), [plain(name) for name in sections])
        panel.set_title(f"Share of the {'outputs' if kind == 'outputs' else 'Jacobian'} that differs")
        figure.colorbar(image, ax=panel)
        every = math.ceil(len(steps) / MAX_STEP_NAMES)
        shown = range(0, len(steps), every)
        panel.set_xticks(list(shown), [plain(steps[k]) for k in shown], rotation=90)
    note(
        figure,
        "Each model against the one that it is compared with, both sections on the same input.",
        "Log scale, up to 1; sections that never differ are left out.",
    )
    return figure


def write_series(series: DifferenceSeries, file: Path) -> Path:
    """Write the heat map of a series; the suffix says in which format."""
    return save(difference_heat_map(series), file)[0]


def _short_names(names: list[str]) -> list[str]:
    """Names without what all of them begin and end with."""
    stems = [Path(name.partition(":")[2] or name).stem for name in names]
    start = 0
    while len(set(stems)) > 1 and len({stem[: start + 1] for stem in stems}) == 1:
        start += 1
    return [shortened(stem[start:] or stem, 16) for stem in stems]
