"""`interbasis demo`: from the shipped model to a report and a page, in a minute or two."""

import contextlib
import io
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from interbasis.cli import common


def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for the run, the report and the page.")] = Path("runs/demo"),
    as_json: common.AsJson = False,
) -> None:
    """Find the interaction graph of the modular-addition transformer that comes with interbasis.

    Builds the graph, finds the edges that are needed, modules and labels, and writes a report and a page to
    explore. Example: interbasis demo --out runs/demo
    """
    from rich.console import Console

    from interbasis.cli.ablate import ablate
    from interbasis.cli.build import build
    from interbasis.cli.curves import curves
    from interbasis.cli.export import export
    from interbasis.cli.features import features
    from interbasis.cli.modules import modules
    from interbasis.cli.report import report

    run, page = out / "lib", out / "page.html"
    steps = {
        "building the graph": lambda: build("modadd", out=run, overwrite=True),
        "finding the edges that are needed": lambda: ablate(run),
        "measuring curves": lambda: curves(run),
        "grouping features": lambda: modules(run),
        "labelling features": lambda: features(run),
        "writing the report": lambda: report(run, out=out / "report"),
        "writing the page": lambda: export(run, html=page),
    }
    console = Console(stderr=True)
    for number, (name, step) in enumerate(steps.items(), 1):
        console.print(f"{number}/{len(steps)} {name} …", highlight=False)
        with contextlib.redirect_stdout(io.StringIO()):
            step()
    places = {"report": str(out / "report" / "report.html"), "page": str(page)}
    common.show(_summary(run) | places, as_json, _lines)


def _summary(run: Path) -> dict[str, Any]:
    from interbasis.run.results import load_result

    ablation = load_result(run, "ablation") or {}
    return {
        "run": str(run),
        "accuracy": ablation["baseline"],
        "edges_required": ablation["edges_required"],
        "sections": [f"{row['from']} → {row['to']}" for row in ablation["sections"]],
        "possible": [row["possible"] for row in ablation["sections"]],
    }


def _lines(summary: dict[str, Any]) -> list[str]:
    rows = zip(summary["sections"], summary["edges_required"], summary["possible"], strict=True)
    accuracy = f"{summary['accuracy']:.2%}"
    return [
        f"\nThe model answers {accuracy} of the test pairs. To stay within 0.1 points of that it needs",
        *(f"  {count:>4,} of {possible:,} edges in {name}" for name, count, possible in rows),
        f"\nReport  {summary['report']}",
        f"Page    {summary['page']}   (open it in a browser; it works from disk)",
        f"Run     {summary['run']}   (interbasis view {summary['run']})",
    ]
