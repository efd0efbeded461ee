"""Figures over seeds show the data they were given: what is drawn is read back from the artists."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import small_runs
from interbasis.analysis.ablation.records import Trial
from interbasis.base.errors import InterbasisError
from interbasis_studies.paper import seed_figures


def named(figure: Figure, gid: str) -> list[Any]:
    return [artist for panel in figure.axes for artist in panel.get_children() if artist.get_gid() == gid]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_densities_are_of_all_shares_and_add_up_to_one() -> None:
    panel = seed_figures.share_densities(
        {"x": {"lib": [0.02, 0.5, 1.0]}}, published={"x": {"lib": [0.5]}}
    ).axes[0]
    lines: dict[Any, Any] = {line.get_gid(): line for line in panel.lines}
    for name in ("density:lib", "published:lib"):
        assert np.trapezoid(lines[name].get_ydata(), lines[name].get_xdata()) == pytest.approx(1, abs=1e-3)
    peaks = lines["density:lib"].get_ydata()[[0, 100, 200]]
    normal = 1 / (3 * 0.05 * np.sqrt(2 * np.pi))
    assert peaks == pytest.approx(normal * np.array([2 * np.exp(-0.08), 1, 2]), rel=1e-6)


def test_nothing_kept_has_a_place_in_the_panel() -> None:
    def trials(*rows: tuple[int, float, bool]) -> list[Trial]:
        return [Trial(kept=n, value=v, passed=v >= 0.98, complete=whole) for n, v, whole in rows]

    tried = seed_figures.Tried(trials((0, 0.99, True), (1, 1.0, True), (4, 1.0, True)), 0, 0.98)
    more = seed_figures.Tried(trials((1, 0.5, False), (4, 0.9, True), (64, 1.0, True)), 64, 0.98)
    figure = seed_figures.tried_counts({"seed 0": {"lib": [tried, more]}}, ["a", "b"], "accuracy", "edges")
    figure.draw_without_rendering()
    for panel, count in zip(figure.axes, (0, 64), strict=True):
        upright: Any
        (upright,) = [line for line in panel.lines if line.get_gid() == "count:lib"]
        x = panel.transData.transform((upright.get_xdata()[0], 0.99))[0]
        assert upright.get_xdata()[0] == count
        assert panel.bbox.x0 <= x <= panel.bbox.x1
    assert [panel.get_xscale() for panel in figure.axes] == ["symlog", "log"]


def test_bounds_are_not_drawn_as_measurements(tmp_path: Path, small_chunks: None) -> None:
    """What the real ablation tried, in so many chunks that trials that fail are stopped early."""
    run = small_runs.classifier(tmp_path / "run", samples=300)
    result = run.ablate(sections="linear.0", stable=False)
    section = result.sections["linear.0"]
    bounds = {(trial.kept, trial.value) for trial in section.trials if not trial.complete}
    assert bounds
    rows = {"seed 0": {"lib": [seed_figures.Tried(section.trials, section.count, result.limit)]}}
    figure = seed_figures.tried_counts(rows, [section.name], "accuracy", "edges")

    def points(gid: str) -> set[tuple[float, float]]:
        (line,) = named(figure, gid)
        return set(zip(line.get_xdata(), line.get_ydata(), strict=True))

    assert points("tried:lib") == {(trial.kept, trial.value) for trial in section.measured}
    assert points("bounds:lib") == bounds
    assert any("stopped early" in text.replace("\n", " ") for text in words(figure))


def test_bars_curves_and_densities_without_data_are_refused() -> None:
    with pytest.raises(InterbasisError, match="values for 2 groups"):
        seed_figures.spread_bars({"x": {"lib": [[1.0]]}}, ["a", "b"], "y")
    with pytest.raises(InterbasisError, match="2 graphs per basis"):
        seed_figures.modularity_bars({"x": {"lib": [None]}}, ["a", "b"])
    with pytest.raises(InterbasisError, match="2 places per basis"):
        seed_figures.tried_counts({"seed 0": {"lib": [None]}}, ["a", "b"], "accuracy", "edges")
    with pytest.raises(InterbasisError, match="one basis in every layer"):
        seed_figures.share_densities({"x": {}})
