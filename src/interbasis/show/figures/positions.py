"""Mean activations of features along a sequence."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interbasis.analysis.features.records import Feature
from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import COLOURS, FAINT, note, panel_grid, styled


@styled
def position_profiles(features: Sequence[Feature], layer: str = "") -> Figure:
    """A panel per feature: its mean activation at every position.

    Features without a profile along the sequence are left out.

    Args:
        features: Features of a layer, as `interbasis features` stores them.
        layer: Its name, for the note below.

    Returns:
        The figure.

    Raises:
        InterbasisError: None of them has a profile along the sequence.
    """
    known = [(feature.index, feature.positions) for feature in features if feature.positions]
    if not known:
        raise InterbasisError(
            "none of these features has a position profile; sequences have one, single rows do not"
        )
    figure, panels = panel_grid(len(known), across=4, height=1.5)
    for number, (panel, (index, profile)) in enumerate(zip(panels, known, strict=True)):
        means = profile.means
        panel.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
        style = "o-" if len(means) <= 12 else "-"
        panel.plot(range(len(means)), means, style, color=COLOURS[0], markersize=3, gid=f"f{index}")
        panel.set_title(f"{index} · {profile.share:.0%} position", fontsize=7.5)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        panel.yaxis.set_major_locator(MaxNLocator(4))
        if number >= len(known) - min(4, len(known)):
            panel.set_xlabel("position")
        if number % 4 == 0:
            panel.set_ylabel("mean activation")
    where = f" of {layer}" if layer else ""
    note(figure, f"Features{where}. Per cent: share of the feature's variance that position explains.")
    return figure
