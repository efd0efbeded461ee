"""Modules as plain data, and for a terminal."""

from typing import Any

from rich.console import RenderableType

from interbasis.communities.modules import Modules
from interbasis.communities.vertex_cuts import Cut
from interbasis.run.summary import make_table


def plain_modules(found: Modules, cuts: list[Cut]) -> dict[str, Any]:
    null = found.null
    return {
        "resolution": found.resolution,
        "seed": found.seed,
        "modularity": found.modularity,
        "modules": found.count,
        "sizes": found.sizes,
        "epsilons": list(found.epsilons),
        "layers": [
            {"name": name, "assignment": labels.tolist()}
            for name, labels in zip(found.layers, found.assignment, strict=True)
        ],
        "agreement": {
            "seeds": found.agreement_over_seeds,
            "resolutions": [
                {"resolution": value, "modules": count, "agreement": agreement}
                for value, count, agreement in found.agreement_over_resolutions
            ],
        },
        "null": None
        if null is None
        else {"mean": null.mean, "deviation": null.deviation, "z": null.z, "graphs": len(null.modularities)},
        "leidenalg": None
        if found.leidenalg is None
        else {"modularity": found.leidenalg[0], "agreement": found.leidenalg[1]},
        "cuts": [{"modules": list(cut.modules), "size": cut.size, "features": cut.features} for cut in cuts],
    }


def tables(result: dict[str, Any]) -> list[RenderableType]:
    agreement, null = result["agreement"], result["null"]
    lines = [
        f"\n{result['modules']} modules at resolution {result['resolution']:g}, of {result['sizes']} "
        f"features; modularity {result['modularity']:.4f}"
    ]
    if agreement["seeds"] is not None:
        lines.append(
            f"Partitions with other seeds agree to {agreement['seeds']:.3f} (1 is the same, 0 is chance)"
        )
    if null:
        verdict = "no more modular than chance"
        if abs(null["z"]) >= 2:
            verdict = f"{null['z']:+.1f} standard deviations away"
        spread = f"{null['mean']:.4f} ± {null['deviation']:.4f}"
        lines.append(f"Rewired graphs with the same degrees have {spread}: {verdict}")
    if result["leidenalg"]:
        check = result["leidenalg"]
        lines.append(
            f"leidenalg finds modularity {check['modularity']:.4f}, in agreement to {check['agreement']:.3f}"
        )
    if not result["epsilon_from_ablation"]:
        lines.append("Edges that carry 99 % of Ê² count; 'interbasis ablate' finds those that are needed")
    counts = make_table(
        "Features per layer and module", "layer", *map(str, range(result["modules"])), "in none"
    )
    for layer in result["layers"]:
        inside = [layer["assignment"].count(module) for module in range(result["modules"])]
        counts.add_row(layer["name"], *map(str, inside), str(layer["assignment"].count(-1)))
    return [*lines, "", counts, *_cut_table(result)]


def _cut_table(result: dict[str, Any]) -> list[RenderableType]:
    if not result["cuts"]:
        return []
    table = make_table("Vertex cuts", "modules", "features")
    for cut in result["cuts"]:
        table.add_row("{} and {}".format(*cut["modules"]), str(cut["size"]))
    table.caption = "The fewest features whose removal separates two modules."
    return [table]
