"""Results inside a notebook: the tables that a terminal prints, pictures of examples, the page of a graph."""

from base64 import b64encode

from markupsafe import Markup

from interbasis.analysis.features.records import FeatureExamples
from interbasis.analysis.stages.trace import TraceResult
from interbasis.analysis.workspace import Workspace
from interbasis.base.records import Record
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.show import difference_tables, result_tables, tables, yardstick_tables  # noqa: F401  (they register)
from interbasis.show.dictionaries import tables as dictionary_tables  # noqa: F401
from interbasis.show.figures import trace_graph
from interbasis.show.figures.style import SCREEN_DPI, png
from interbasis.show.html import render
from interbasis.show.viewer import run_page


def html(value: Record | InteractionGraph) -> str:
    """A graph as its page in a frame, dataset examples as pictures or texts, any other record as tables."""
    if isinstance(value, InteractionGraph):
        return run_page(Workspace(graph=value))._repr_html_()
    if isinstance(value, FeatureExamples):
        return render('{% include "examples.html" %}', examples=value)
    picture = _picture(value) if isinstance(value, TraceResult) else Markup()
    parts = [
        Markup(part.to_html()) if isinstance(part, tables.ResultTable) else part.strip()
        for part in tables.result_tables(value)
    ]
    return render('{% include "notebook.html" %}', parts=[picture, *(part for part in parts if part)])


def _picture(result: TraceResult) -> Markup:
    """The picture of a trace in its own size, however many layers it has; the sentence about it is text."""
    figure = trace_graph(result.trace, summary=False)
    width, content = round(figure.get_figwidth() * SCREEN_DPI), b64encode(png(figure)).decode("ascii")
    image = '<img alt="trace" width="{}" style="max-width: none" src="data:image/png;base64,{}">'
    return Markup('<div style="overflow-x: auto">' + image + "</div>").format(width, content)
