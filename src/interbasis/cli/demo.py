"""`interbasis demo`: from the shipped model to a report and a page, in a minute or two."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from interbasis.analysis.stages.ablate import AblationResult
from interbasis.base.records import Record
from interbasis.cli import common

if TYPE_CHECKING:
    from interbasis.analysis.features.records import Feature
    from interbasis.analysis.stages.features import FeaturesResult


class DemoResult(Record):
    """Results of the demo, and where to look at them."""

    ablation: AblationResult
    carriers: tuple[str, ...]
    """Labels of the features before the output that an edge required comes from."""
    frequencies: tuple[int, ...]
    """Frequencies of x + y in their leading Fourier terms."""
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
    from interbasis.base.messages import logger
    from interbasis.run.named_build import build_by_name
    from interbasis.run.request import make_request
    from interbasis.show.report import write_report
    from interbasis.show.viewer import write_page

    def step(number: int, name: str) -> None:
        logger.info(f"{number}/7 {name} …")

    folder = out / "lib"
    step(1, "building the graph")
    run = build_by_name(make_request({"model": "modadd", "exact": True}), folder, overwrite=True)
    step(2, "finding the edges that are needed")
    ablation = run.ablate()
    step(3, "measuring curves")
    run.curves()
    step(4, "grouping features")
    run.modules()
    step(5, "labelling features")
    carriers = _carriers(folder, run.features())
    leading = [feature.fourier.terms[0] for feature in carriers if feature.fourier]
    step(6, "writing the report")
    report = write_report([folder], out / "report")
    step(7, "writing the page")
    page = write_page([folder], out / "page.html")
    result = DemoResult(
        ablation=ablation,
        carriers=tuple(feature.label for feature in carriers),
        frequencies=tuple(dict.fromkeys(term.frequencies[0] for term in leading)),
        report=report,
        page=page,
        run=folder,
    )
    common.show(result, as_json, _lines)


def _carriers(folder: Path, features: "FeaturesResult") -> "list[Feature]":
    from interbasis.analysis.stored_results import load_tensors

    needed = load_tensors(folder, AblationResult)["edge_mask.unembed"].any(0)  # [features_in]
    described = features.layers["unembed"].features  # the constant, feature 0, is not among them
    return [feature for feature in described if needed[feature.index]]


def _lines(result: DemoResult) -> list[str]:
    sections = list(result.ablation.sections.values())
    return [
        f"\nThe model answers {result.ablation.baseline:.2%} of the test pairs correctly. To stay within 0.1 "
        "points of that, these edges suffice:",
        *(f"  {row.count:>4,} of {row.possible:,} in {row.name}" for row in sections),
        f"The last {sections[-1].count:,} leave {len(result.carriers)} features, waves of x + y with "
        f"{len(result.frequencies)} frequencies: {', '.join(map(str, result.frequencies))}.",
        f"\nReport  {result.report}",
        f"Page    {result.page}   (open it in a browser; it works from disk)",
        f"Run     {result.run}   (interbasis view {result.run})",
    ]
