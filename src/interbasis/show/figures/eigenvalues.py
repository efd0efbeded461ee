"""Spectra of the importance of features, layer by layer."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.show.figures.style import add_legend, looks, note, panel_grid, plain, styled


@styled
def eigenvalue_spectra(graphs: Mapping[str, InteractionGraph]) -> Figure:
    """A panel per node layer with what ranks its features, relative to the largest, on a log scale.

    Faint lines are the noise floors.

    Args:
        graphs: Graphs by name, with the same node layers.

    Returns:
        The figure.

    Raises:
        InterbasisError: The graphs have different node layers.
    """
    names = {tuple(layer.name for layer in graph.layers) for graph in graphs.values()}
    if len(names) != 1:
        raise InterbasisError(f"expected graphs with the same node layers, received {len(names)} kinds")
    order = names.pop()
    across = 6 if len(order) > 12 else 4 if len(order) == 4 else 3
    figure, panels = panel_grid(len(order), across=across, height=1.5 if len(order) > 12 else 2.3)
    styles = looks(graphs)
    for k, panel in enumerate(panels):
        for name, graph in graphs.items():
            _draw_spectrum(panel, name, graph.layers[k], styles[name])
        panel.set_yscale("log")
        panel.set_title(plain(order[k]), fontsize=7.5)
        if k >= len(order) - across:
            panel.set_xlabel("feature")
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
        if k % across == 0:
            panel.set_ylabel("relative to largest")
    if len(graphs) > 1:
        add_legend(figure, panels)
    words = {"lambda": "Λ, variance at the last layer", "variance": "variance"}
    ranked = ", ".join(f"{name}: {words[graph.config.kind.ranked_by]}" for name, graph in graphs.items())
    bands = any(layer.eigenvalue_errors is not None for graph in graphs.values() for layer in graph.layers)
    note(
        figure,
        f"What ranks the features ({ranked}), the constant left out. Dotted: noise floor.",
        "Bands: standard errors of Λ from sampled queries." if bands else "",
    )
    return figure


def _draw_spectrum(panel: Axes, name: str, layer: LayerBasis, style: dict[str, Any]) -> None:
    if layer.eigenvalues is None:
        return
    first, colour = layer.first_feature, style["color"]
    values, order = layer.eigenvalues[first:].double().sort(descending=True, stable=True)
    values = values[values > 0]
    if not len(values):
        return
    ranks = range(1, len(values) + 1)
    marker = "." if len(values) < 40 else "None"
    changed = style | {"marker": marker, "linewidth": 1.1}
    panel.plot(ranks, (values / values[0]).tolist(), label=plain(name), gid=f"spectrum:{name}", **changed)
    if layer.eigenvalue_errors is not None:
        errors = layer.eigenvalue_errors[first:][order[: len(values)]]
        low, high = (((values + sign * errors) / values[0]).tolist() for sign in (-1, 1))
        panel.fill_between(ranks, low, high, color=colour, alpha=0.25, lw=0)
    cut = layer.jacobian_cut or layer.variance_cut
    if cut and cut.floor:
        height = cut.floor / values[0].item()
        panel.axhline(height, color=colour, alpha=0.5, linewidth=0.8, linestyle=":")
