"""Modules, for a terminal."""

from rich.console import RenderableType

from interbasis.analysis.stages.modules import MIN_MODULARITY_Z, ModulesResult
from interbasis.show.terminal.tables import ResultTable, make_table


def module_tables(result: ModulesResult) -> list[RenderableType]:
    """The partition, its tests, and where the modules lie."""
    lines = [
        f"\n{result.modules} modules at resolution {result.resolution:g}, of {list(result.sizes)} "
        f"features; modularity {result.modularity:.4f}"
    ]
    if result.agreement_over_seeds is not None:
        lines.append(
            f"Partitions with other seeds agree to {result.agreement_over_seeds:.3f} "
            "(1 is the same, 0 is chance)"
        )
    if null := result.null:
        verdict = "no more modular than chance"
        if abs(null.z) >= MIN_MODULARITY_Z:
            verdict = f"{null.z:+.1f} standard deviations away"
        lines.append(
            f"Rewired graphs with the same degrees have {null.mean:.4f} ± {null.deviation:.4f}: {verdict}"
        )
    if check := result.leidenalg:
        lines.append(
            f"leidenalg finds modularity {check.modularity:.4f}; its partition agrees "
            f"to {check.agreement:.3f}"
        )
    if not result.epsilons_from_ablation:
        lines.append(
            "The edges that carry 99 % of Ê² were used; to use the edges required, run 'interbasis "
            "ablate' first"
        )
    return [*lines, "", _layer_table(result), *([_cut_table(result)] if result.cuts else [])]


def _layer_table(result: ModulesResult) -> ResultTable:
    table = make_table("Features per layer and module", "layer", *map(str, range(result.modules)), "in none")
    for name, assignment in result.layers.items():
        inside = [assignment.count(module) for module in range(result.modules)]
        table.add_row(name, *map(str, inside), str(assignment.count(-1)))
    return table


def _cut_table(result: ModulesResult) -> ResultTable:
    table = make_table("Vertex cuts", "modules", "features")
    for cut in result.cuts:
        table.add_row("{} and {}".format(*cut.modules), str(len(cut.features)))
    table.caption = "The fewest features whose removal separates two modules."
    return table
