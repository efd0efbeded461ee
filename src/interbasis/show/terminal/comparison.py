"""Two runs side by side, for a terminal."""

from rich.console import RenderableType
from rich.text import Text

from interbasis.analysis.compare import ComparedRun, Comparison
from interbasis.show.terminal.tables import ResultTable, make_table


def comparison_tables(result: Comparison) -> list[RenderableType]:
    """Features, edges, ablations and modules of both runs."""
    a, b = result.runs
    same = "built on the same data" if result.same_data else "built on different data"
    changed = ", ".join(f"{name} {x} / {y}" for name, (x, y) in result.different_settings.items())
    head = Text(
        f"\n{a.run} ({a.summary.basis}) / {b.run} ({b.summary.basis}) · {result.model} · {same}"
        f" · {changed or 'the same settings'}\n"
    )
    parts: list[RenderableType] = [head, _layer_table(result), _edge_table(result)]
    if result.not_compared:
        parts.append(Text(result.not_compared.capitalize() + "."))
    if a.modules is not None or b.modules is not None:
        parts.append(Text(f"Modules: {_modules(a)} / {_modules(b)}"))
    return parts


def _layer_table(result: Comparison) -> ResultTable:
    table = make_table("Node layers", "layer", "width", "features", "effective", "shared", "nodes required")
    for row in result.layers.values():
        a, b = row.summaries
        table.add_row(
            row.name, str(row.width), _pair(a.features, b.features),
            _pair(a.effective_features, b.effective_features, ".1f"), f"{row.shared_subspace:.1%}",
            _pair(*row.nodes_required),
        )  # fmt: skip
    table.caption = (
        "Shared: how much of the space that the smaller set of features reads is also read by the other.\n"
    )
    return table


def _edge_table(result: Comparison) -> ResultTable:
    table = make_table("Interaction edges Ê", "section", "edges", "90 % of Ê²", "99 % of Ê²", "required")
    for row in result.sections.values():
        a, b = row.summaries
        table.add_row(
            row.name, _pair(a.edges, b.edges), _pair(a.edges_for_90_percent, b.edges_for_90_percent),
            _pair(a.edges_for_99_percent, b.edges_for_99_percent), _pair(*row.edges_required),
        )  # fmt: skip
    return table


def _modules(run: ComparedRun) -> str:
    if run.modules is None:
        return "not searched for"
    return f"{run.modules} modules, modularity {run.modularity:.3f}"


def _pair(a: float | None, b: float | None, form: str = ",") -> str:
    if a is None and b is None:
        return "–"
    return " / ".join("–" if value is None else format(value, form) for value in (a, b))
