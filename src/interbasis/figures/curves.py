"""How the metric falls as edges go, with the uncertainty of the samples."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from interbasis.figures.style import INK, grid_of, looks, note, plain, styled
from interbasis.runtime.errors import InterbasisError


@styled
def ablation_curves(curves: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A panel per section and one for all at once; a line per run.

    ``curves`` maps names (bases, say) to results of `interbasis curves`; the sections must be the same.
    Bands are the 95 % bootstrap intervals where the results hold them.
    """
    if not curves:
        raise InterbasisError("expected the curves of at least one run, received none")
    first = next(iter(curves.values()))
    titles = [f"{row['from']} → {row['to']}" for row in first["sections"]]
    for name, result in curves.items():
        if [f"{row['from']} → {row['to']}" for row in result["sections"]] != titles:
            raise InterbasisError(f"the curves of {name!r} are about other sections than the first ones")
        if result["metric"] != first["metric"]:
            raise InterbasisError(
                f"the curves of {name!r} are of {result['metric']}, the first ones of {first['metric']}"
            )
    figure, panels = grid_of(len(titles) + 1, most=4 if len(titles) == 3 else 3)
    styles = looks(curves)
    for k, panel in enumerate(panels):
        for name, result in curves.items():
            row = [*result["sections"], result["whole"]][k]
            _line(panel, name, result["fractions"], row, styles[name])
        for baseline in {result["baseline"] for result in curves.values()}:
            panel.axhline(baseline, color=INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
        panel.set_title(plain([*titles, "all sections at once"][k]), fontsize=7.5)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g} %"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("edges kept")
        if k % (4 if len(titles) == 3 else 3) == 0:
            panel.set_ylabel(first["metric"].replace("_", "-"))
    if len(curves) > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(curves))
    banded = any("value_intervals" in row for result in curves.values() for row in result["sections"])
    note(
        figure,
        "The largest edges are kept, the others ablated; the constant's are always kept. Dotted: the "
        "untouched model." + (" Bands: 95 % bootstrap intervals over the samples." if banded else ""),
    )
    return figure


def _line(
    panel: Axes, name: str, fractions: list[float], row: Mapping[str, Any], style: dict[str, Any]
) -> None:
    panel.plot(fractions, _numbers(row["values"]), label=plain(name), gid=f"curve:{name}", **style)
    intervals = row.get("value_intervals")
    if intervals:
        low, high = (_numbers(limits) for limits in zip(*intervals, strict=True))
        panel.fill_between(fractions, low, high, color=style["color"], alpha=0.25, linewidth=0)


def _numbers(values: Sequence[float | None]) -> list[float]:
    """What is not defined is a gap."""
    return [math.nan if value is None else value for value in values]
