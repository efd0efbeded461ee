"""`interbasis reproduce`: run the jobs of a plan that are missing, and report those that are finished."""

import os
import platform
import shutil
from datetime import UTC, datetime
from pathlib import Path

import torch

from interbasis.analysis.ablation import bootstrap
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import load_tensors
from interbasis.base.errors import InterbasisError
from interbasis.base.files import check_writable, write_text_atomically
from interbasis.base.progress import Progress, progress_bar
from interbasis_studies.paper.figures import draw_figures
from interbasis_studies.paper.page import write
from interbasis_studies.paper.plan import Plan
from interbasis_studies.paper.records import ComparedEdges, J, JobResult, Machine, MissingJob, Reproduction
from interbasis_studies.paper.task import Task
from interbasis_studies.paper.tasks import open_task

JSON, PAGE = "reproduction.json", "report.md"


def reproduce(plan: Plan, progress: Progress | bool | None = None) -> Reproduction[JobResult]:
    """Run the jobs that are missing, and report; after every job the report in the folder is up to date.

    An interrupted call resumes when it is repeated. Bases may be run by processes of their own with the same
    ``out``, each given one of them.
    """
    check_writable(plan.out)
    task = open_task(plan)
    with progress_bar(progress) as advance:
        for job in task.jobs():
            if job.has_model and task.finished(job) is None:
                task.run(job, advance)
                report(plan, figures=False)
    return report(plan)


def report(plan: Plan, figures: bool = True) -> Reproduction[JobResult]:
    """All finished jobs with their verdicts, written as JSON and as a page in the plan's folder.

    Figures take longer than the rest; between two jobs the page does without them.
    """
    if not plan.out.is_dir():
        raise InterbasisError(f"there is nothing to report in {plan.out}; leave out --report-only")
    task = open_task(plan)
    r = _collect(task)
    if figures:
        r = r.model_copy(update={"figures": draw_figures(task.pictures(r), r.jobs, plan.out)})
    text = r.model_dump_json(indent=1, serialize_as_any=True)
    write_text_atomically(plan.out / JSON, text + "\n")
    write_text_atomically(plan.out / PAGE, write(r, task))
    return r


def write_page(r: Reproduction[JobResult], plan: Plan, path: Path) -> None:
    """The page once more, somewhere else; its figures go into a folder beside it that has its name."""
    check_writable(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = []
    for figure in r.figures:
        copy = path.parent / path.stem / Path(figure.file).name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(plan.out / figure.file, copy)
        figures.append(figure.model_copy(update={"file": f"{path.stem}/{copy.name}"}))
    write_text_atomically(path, write(r.model_copy(update={"figures": tuple(figures)}), open_task(plan)))


def _collect(task: Task[J]) -> Reproduction[J]:
    plan, planned = task.plan, task.jobs()
    results = [(job, task.finished(job)) for job in planned]
    jobs = tuple(result for _, result in results if result is not None)
    r = Reproduction[J](
        task=plan.task,
        date=datetime.now(UTC).strftime("%-d %B %Y"),
        command=plan.command,
        out=str(plan.out),
        quick=plan.request.quick,
        bases=plan.bases,
        jobs=jobs,
        missing=tuple(
            MissingJob(basis=job.basis, seed=job.seed, has_model=job.has_model)
            for job, result in results
            if result is None
        ),
        machine=describe_machine(),
        comparison=_compare(jobs, plan.out) if plan.model else (),
    )
    return r.model_copy(update={"verdicts": tuple(task.verdicts(r))})


def _compare(jobs: tuple[J, ...], out: Path) -> tuple[ComparedEdges, ...]:
    """LIB's edges required over PCA's, section by section, with the interval of the ratio on paired draws."""
    if len({(job.ablation.data.fingerprint, job.model_fingerprint) for job in jobs}) > 1:
        raise InterbasisError("the jobs belong to different models or test data; name another --out")
    by_basis = {job.basis: job for job in jobs}
    lib, pca = by_basis.get("lib"), by_basis.get("pca")
    if lib is None or pca is None:
        return ()
    lib_draws, pca_draws = (load_tensors(out / job.run, AblationResult) for job in (lib, pca))
    rows = []
    for source, first in lib.ablation.sections.items():
        second = pca.ablation.sections.get(source)
        if second is None or first.interval is None or second.interval is None:
            continue
        name = f"count_draws.{source}"
        ratio = lib_draws[name].clamp_min(1) / pca_draws[name].clamp_min(1)
        rows.append(
            ComparedEdges(
                source=source,
                target=first.target,
                lib=first.count,
                lib_possible=first.possible,
                pca=second.count,
                pca_possible=second.possible,
                lib_interval=first.interval,
                pca_interval=second.interval,
                ratio=max(first.count, 1) / max(second.count, 1),
                interval=bootstrap.central(ratio),
            )
        )
    return tuple(rows)


def describe_machine() -> Machine:
    """Processor, memory and versions."""
    affinity = hasattr(os, "sched_getaffinity")
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1,
        memory=_memory(),
        system=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "memory unknown"
    return f"{size / 2**30:.0f} GiB"
