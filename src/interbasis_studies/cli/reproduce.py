"""`interbasis reproduce`: the paper's experiments, with a verdict per claim."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common
from interbasis_studies.paper.plan import ReproduceRequest, TaskName


def reproduce(
    task: Annotated[
        TaskName, Parameter(help="Section 3.1 or 3.2 of the paper, or 3.3 with either of its models.")
    ],
    /,
    *,
    request: Annotated[ReproduceRequest, common.Flat],
    report_only: Annotated[
        bool,
        Parameter(
            help="Write the report of what is finished, and compute nothing.", negative="", show_default=False
        ),
    ] = False,
    page: Annotated[Path | None, Parameter(help="Also write the page to this Markdown file.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Reproduce a section of the paper, all its tables, with a verdict per claim.

    modadd and cifar10 are five models in four bases, tinystories and gpt2 one language model in two.

    Every model and basis is a run in OUT; report.md and reproduction.json are written after each. An
    interrupted command resumes when it is run again.

    Example: interbasis reproduce modadd --quick --out reproduced
    """
    from interbasis.show.tables import ResultTable, print_parts
    from interbasis_studies.paper import runner
    from interbasis_studies.paper.plan import Plan

    plan = Plan.from_request(task, request)
    result = runner.report(plan) if report_only else runner.reproduce(plan)
    if page is not None:
        runner.write_page(result, plan, page)
    if as_json:
        common.print_text(result.model_dump_json(indent=2, serialize_as_any=True))
        return
    head = ("claim", "paper", "here", "verdict")
    rows = [(verdict.claim, verdict.paper, verdict.here, verdict.ruling) for verdict in result.verdicts]
    table = ResultTable.from_cells("Claims of the paper", head, rows, text=head)
    done = len(result.jobs)
    print_parts([table, f"{done} of {done + len(result.missing)} runs finished · {result.out}/report.md\n"])
