"""`interbasis bench`: speed of this version on this machine."""

import sys
from pathlib import Path
from typing import Annotated

from interbasis.base.records import Record
from interbasis.cli import common


class BenchOptions(Record):
    """Request for a benchmark: measurements and a baseline."""

    out: Path = Path("bench")
    """Folder for bench.json, bench.md and pictures."""
    quick: bool = True
    """Small shapes, a minute or two; --no-quick takes the shapes of GPT2-small, SmolLM2-135M and Llama-1B."""
    scaling: bool = False
    """Also build with two processes; requires two idle processors."""
    baseline: Path | None = None
    """A bench.json to compare with; exit code 1 if something became slower beyond noise."""


def bench(
    *, options: Annotated[BenchOptions | None, common.Flat] = None, as_json: common.AsJson = False
) -> None:
    """Measure the speed of this version: phases in forward passes, ratios to autograd, memory.

    It writes bench.json and bench.md with pictures. An interrupted benchmark resumes.

    Example: interbasis bench --out bench
    Compared with an older one: interbasis bench --out now --baseline bench/bench.json
    """
    from interbasis.base.files import write_text_atomically
    from interbasis.base.progress import progress_bar
    from interbasis.compute.locks import only_task
    from interbasis_studies.bench.compare import compare, read_result
    from interbasis_studies.bench.page import write_page
    from interbasis_studies.bench.run import run

    options = options or BenchOptions()
    baseline = None if options.baseline is None else read_result(options.baseline)
    options.out.mkdir(parents=True, exist_ok=True)
    with progress_bar() as advance, only_task(options.out, "bench"):
        result = run(options.out, quick=options.quick, scaling=options.scaling, progress=advance)
    write_text_atomically(options.out / "bench.json", result.to_json(indent=1) + "\n")
    comparison = None if baseline is None else compare(baseline, result)
    page = write_page(options.out, result, comparison)
    common.print_text(result.to_json(indent=1) if as_json else page.read_text(encoding="utf-8"))
    if comparison is not None and comparison.slower:
        sys.exit(1)
