"""`interbasis reproduce`: the paper's experiments, with a verdict per claim."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from interbasis.cli import common

if TYPE_CHECKING:
    from rich.console import RenderableType

    from interbasis.paper.language_plan import LanguagePlan
    from interbasis.paper.plan import Plan


def reproduce(
    task: Annotated[
        Literal["modadd", "cifar10", "tinystories", "gpt2"],
        Parameter(help="Section 3.1 or 3.2 of the paper, or 3.3 with either of its models."),
    ],
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder for the runs, the JSON and the page.")],
    checkpoints: Annotated[
        Path | None,
        Parameter(help="Folder with seedN.safetensors or TASK-seedN.safetensors; trained without it."),
    ] = None,
    model: Annotated[
        str | None,
        Parameter(help="Language models: hf:FOLDER-OR-HUB-ID; the paper's from the Hub without it."),
    ] = None,
    data: Annotated[
        str | None,
        Parameter(help="The images, cifar10:PATH, or the text, tokens:PATH, text:PATH or hf:DATASET."),
    ] = None,
    tokens: Annotated[
        int | None, Parameter(help="Language models: tokens of the basis; 1,000,000 or 512,000 without it.")
    ] = None,
    edge_tokens: Annotated[
        int | None, Parameter(help="Tokens of the edges; 200,000 or 512,000 without it.")
    ] = None,
    test_tokens: Annotated[
        int | None, Parameter(help="Held-out tokens that masks are tried on; 20,480 without it.")
    ] = None,
    tolerance: Annotated[
        float | None, Parameter(help="Cross-entropy that may be gained; 0.1 without it.")
    ] = None,
    norms: Annotated[
        bool | None, Parameter(help="Edges required of layer norms, too; yes without it, no where quick.")
    ] = None,
    queries: Annotated[
        int | None, Parameter(help="Query positions sampled in attention's Jacobians; all without it.")
    ] = None,
    edge_group: Annotated[
        int | None, Parameter(help="Tokens per group of stochastic sources for edges; exact without it.")
    ] = None,
    edge_positions: Annotated[
        int | None, Parameter(help="Positions per sequence that edges are taken at; all without it.")
    ] = None,
    seeds: Annotated[str | None, Parameter(help="Seeds with commas; 0,1,2,3,4 without it.")] = None,
    bases: Annotated[
        str | None,
        Parameter(help="Bases with commas; lib,pca,gib,random (language models: lib,pca) without it."),
    ] = None,
    quick: Annotated[
        bool, Parameter(help="One seed, LIB and PCA, a matter of minutes.", negative="", show_default=False)
    ] = False,
    report_only: Annotated[
        bool, Parameter(help="Report what is finished and do no more.", negative="", show_default=False)
    ] = False,
    page: Annotated[Path | None, Parameter(help="Write the page to this Markdown file, too.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Reproduce a section of the paper, all its tables, with a verdict per claim.

    modadd and cifar10 are five models in four bases, tinystories and gpt2 one language model in two.

    Every seed and basis is a run in OUT, report.md and reproduction.json are written after each. Killed, the
    same command goes on where it was. Example: interbasis reproduce modadd --quick --out reproduced
    """
    from interbasis.paper.run import write_page

    common_ones: dict[str, Any] = {
        "quick": quick,
        "data": data,
        "bases": tuple(bases.split(",")) if bases else None,
    }
    of_models: dict[str, Any] = {"checkpoints": checkpoints, "seeds": _numbers(seeds)}
    of_language: dict[str, Any] = {
        "model": model, "tokens": tokens, "edge_tokens": edge_tokens, "test_tokens": test_tokens,
        "tolerance": tolerance, "norms": norms, "queries": queries,
        "edge_group": edge_group, "edge_positions": edge_positions,
    }  # fmt: skip
    found: dict[str, Any]
    plan: Plan | LanguagePlan
    if task == "tinystories" or task == "gpt2":
        from interbasis.paper import language, language_plan

        _refuse(task, of_models)
        plan = language_plan.LanguagePlan.of(task, out, **common_ones, **of_language)
        found = language.report(plan) if report_only else language.reproduce(plan)
    else:
        from interbasis.paper import plan as plans
        from interbasis.paper import run

        _refuse(task, of_language)
        plan = plans.Plan.of(task, out, **common_ones, **of_models)
        found = run.report(plan) if report_only else run.reproduce(plan)
    if page is not None:
        write_page(found, plan, page)
    common.show(found | {"out": str(out)}, as_json, _tables)


def _refuse(task: str, options: dict[str, Any]) -> None:
    from interbasis.runtime.errors import InterbasisError

    for name, value in options.items():
        if value is not None:
            raise InterbasisError(f"{task} has no option --{name.replace('_', '-')}; leave it out")


def _numbers(seeds: str | None) -> tuple[int, ...] | None:
    from interbasis.runtime.errors import InterbasisError

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
