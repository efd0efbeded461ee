"""`interbasis reproduce`: the paper's experiments, with a verdict per claim."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from interbasis.cli import common

if TYPE_CHECKING:
    from rich.console import RenderableType


def reproduce(
    task: Annotated[Literal["modadd", "cifar10"], Parameter(help="Section 3.1 or 3.2 of the paper.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder for the runs, the JSON and the page.")],
    checkpoints: Annotated[
        Path | None,
        Parameter(help="Folder with seedN.safetensors or TASK-seedN.safetensors; trained without it."),
    ] = None,
    data: Annotated[str | None, Parameter(help="cifar10 alone: where the images are, cifar10:PATH.")] = None,
    seeds: Annotated[str | None, Parameter(help="Seeds with commas; 0,1,2,3,4 without it.")] = None,
    bases: Annotated[str | None, Parameter(help="Bases with commas; lib,pca,gib,random without it.")] = None,
    quick: Annotated[
        bool, Parameter(help="One seed, LIB and PCA, a matter of minutes.", negative="", show_default=False)
    ] = False,
    report_only: Annotated[
        bool, Parameter(help="Report what is finished and do no more.", negative="", show_default=False)
    ] = False,
    page: Annotated[Path | None, Parameter(help="Write the page to this Markdown file, too.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Reproduce a section of the paper: five models in four bases, all its tables, a verdict per claim.

    Every seed and basis is a run in OUT, report.md and reproduction.json are written after each. Killed, the
    same command goes on where it was. Example: interbasis reproduce modadd --quick --out reproduced
    """
    from interbasis.reproduction.plan import Plan
    from interbasis.reproduction.run import report, write_page
    from interbasis.reproduction.run import reproduce as run

    plan = Plan.of(
        task, out, quick=quick, checkpoints=checkpoints, data=data, seeds=_numbers(seeds),
        bases=tuple(bases.split(",")) if bases else None,
    )  # fmt: skip
    found = report(plan) if report_only else run(plan)
    if page is not None:
        write_page(found, plan, page)
    common.show(found | {"out": str(out)}, as_json, _tables)


def _numbers(seeds: str | None) -> tuple[int, ...] | None:
    from interbasis.errors import InterbasisError

    if seeds is None:
        return None
    if not all(part.isdecimal() for part in seeds.split(",")):
        raise InterbasisError(f"seeds are whole numbers with commas between them, received {seeds!r}")
    return tuple(dict.fromkeys(int(part) for part in seeds.split(",")))


def _tables(found: dict[str, Any]) -> "list[RenderableType]":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="Claims of the paper", title_justify="left")
    for name in ("", "paper", "here", "verdict"):
        table.add_column(name)
    for verdict in found["verdicts"]:
        table.add_row(verdict["claim"], verdict["paper"], verdict["here"], verdict["ruling"])
    done = len(found["pieces"])
    return [table, f"{done} of {done + len(found['missing'])} pieces finished · {found['out']}/report.md\n"]
