"""How the importance of features falls, layer by layer."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.show.figures.style import grid_of, looks, note, plain, styled


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
    figure, panels = grid_of(len(order), most=across, height=1.5 if len(order) > 12 else 2.3)
    styles = looks(graphs)
    for k, panel in enumerate(panels):
        for name, graph in graphs.items():
            layer = graph.layers[k]
            if layer.eigenvalues is None:
                continue
            first = layer.first_feature
            values, order_of = layer.eigenvalues[first:].double().sort(descending=True, stable=True)
            values = values[values > 0]
            if not len(values):
                continue
            style = styles[name]
            relative = (values / values[0]).tolist()
            marker = {"marker": "."} if len(relative) < 40 else {"marker": "None"}
            panel.plot(
                range(1, len(relative) + 1), relative, label=plain(name), gid=f"spectrum:{name}",
                **style | marker | {"linewidth": 1.1},
            )  # fmt: skip
            if layer.eigenvalue_errors is not None:
                errors = layer.eigenvalue_errors[first:][order_of[: len(values)]]
                low, high = (((values + way * errors) / values[0]).tolist() for way in (-1, 1))
                panel.fill_between(range(1, len(low) + 1), low, high, color=style["color"], alpha=0.25, lw=0)
            cut = layer.jacobian_cut or layer.variance_cut
            if cut and cut.floor:
                panel.axhline(
                    cut.floor / values[0].item(),
                    color=style["color"],
                    alpha=0.5,
                    linewidth=0.8,
                    linestyle=":",
                )
        panel.set_yscale("log")
        panel.set_title(plain(order[k]), fontsize=7.5)
        if k >= len(order) - across:
            panel.set_xlabel("feature")
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if k % across == 0:
            panel.set_ylabel("relative to largest")
    if len(graphs) > 1:
        handles = {
            label: handle
            for panel in panels
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles))
    words = {"lambda": "Λ, variance at the last layer", "variance": "variance"}
    ranked = ", ".join(f"{name}: {words[graph.config.kind.ranked_by]}" for name, graph in graphs.items())
    bands = any(layer.eigenvalue_errors is not None for graph in graphs.values() for layer in graph.layers)
    told = " Bands: standard errors of Λ from sampled queries." if bands else ""
    note(figure, f"What ranks the features ({ranked}), the constant left out. Dotted: noise floor.{told}")
    return figure
