"""`interbasis demo`: from the shipped model to a report and a page, in a minute or two."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common
from interbasis.run.stages.ablate import AblationResult
from interbasis.runtime.records import Record


class DemoResult(Record):
    """What the demo found, and where to look at it."""

    ablation: AblationResult
    report: Path
    page: Path
    run: Path


def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for the run, the report and the page.")] = Path("runs/demo"),
    as_json: common.AsJson = False,
) -> None:
    """Find the interaction graph of a transformer that comes with interbasis.

    Builds the graph, finds the edges that are needed, modules and labels, and writes a report and a page to
    explore.

    Example: interbasis demo --out runs/demo
    """
    from interbasis.report import write_report
    from interbasis.run.request import make_request
    from interbasis.run.stages import build
    from interbasis.runtime.messages import logger
    from interbasis.viewer import write_page

    def step(number: int, name: str) -> None:
        logger.info(f"{number}/7 {name} …")

    folder = out / "lib"
    step(1, "building the graph")
    run = build.run(make_request({"model": "modadd"}), folder, overwrite=True)
    step(2, "finding the edges that are needed")
    ablation = run.ablate()
    step(3, "measuring curves")
    run.curves()
    step(4, "grouping features")
    run.modules()
    step(5, "labelling features")
    run.features()
    step(6, "writing the report")
    report = write_report([folder], out / "report")
    step(7, "writing the page")
    page = write_page([folder], out / "page.html")
    common.show(DemoResult(ablation=ablation, report=report, page=page, run=folder), as_json, _lines)


def _lines(result: DemoResult) -> list[str]:
    sections = result.ablation.sections.values()
    return [
        f"\nThe model answers {result.ablation.baseline:.2%} of the test pairs. To stay within 0.1 points of "
        "that it needs",
        *(f"  {row.count:>4,} of {row.possible:,} edges in {row.name}" for row in sections),
        f"\nReport  {result.report}",
        f"Page    {result.page}   (open it in a browser; it works from disk)",
        f"Run     {result.run}   (interbasis view {result.run})",
    ]
