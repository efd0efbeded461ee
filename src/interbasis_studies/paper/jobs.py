"""A job of a reproduction: one model in one basis, built, ablated and measured, all in its run's folder.

Every stage is stored as it ends and resumes where it was killed; the job's result, `reproduction.json`, comes
last and says that the job is finished.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from interbasis.analysis.stages import ablate
from interbasis.analysis.stages.ablate import AblateRequest, AblationResult
from interbasis.analysis.stored_results import DataUsed, load_result, save_result
from interbasis.base.memory import peak_bytes
from interbasis.base.records import Basis
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.run.run import Run
from interbasis_studies.paper.plan import Settings
from interbasis_studies.paper.records import JobResult, JobTimes, Seconds


@dataclass(frozen=True)
class Job:
    """One model in one basis."""

    basis: Basis
    folder: Path
    seed: int | None = None
    """None for the one language model."""
    has_model: bool = True
    """Whether its weights are given, or will be trained."""


class JobClock:
    """Seconds from the end of one stage of a job to the end of the next, stored in its run."""

    def __init__(self, run: Path):
        self.run = run
        self._begun = time.monotonic(), time.process_time()

    def stop(self, stage: str) -> None:
        """A stage has ended; what it took is added to what earlier processes spent on it."""
        now = time.monotonic(), time.process_time()
        times = self.times
        before = times.stages.get(stage, Seconds(wall=0, processor=0))
        seconds = Seconds(
            wall=round(before.wall + now[0] - self._begun[0], 1),
            processor=round(before.processor + now[1] - self._begun[1], 1),
        )
        changes = {
            "stages": times.stages | {stage: seconds},
            "peak_bytes": max(filter(None, (times.peak_bytes, peak_bytes())), default=None),
            "threads": torch.get_num_threads(),
        }
        save_result(self.run, times.model_copy(update=changes))
        self._begun = now

    @property
    def times(self) -> JobTimes:
        """Times of all stages so far."""
        return load_result(self.run, JobTimes) or JobTimes()


def ablate_missing(opened: Run, request: AblateRequest) -> bool:
    """Ablate what is not stored yet with these settings and data; whether there was anything."""
    names = list(request.sections or opened.graph.section_names)
    nodes = request.nodes
    used, stored = DataUsed.from_data(opened.data(request.data)), opened.stored(AblationResult)
    all_tokens = request.all_tokens or CountedTokens.from_layers(opened.network, opened.graph.layers).all
    wanted = request.metric, request.tolerance, all_tokens, used.fingerprint, used.labels
    if stored is not None and stored.conditions == wanted:
        done = {
            name for name, section in stored.sections.items()
            if not (request.stable and section.stable_count is None)
            and not (request.intervals and section.interval is None)
        }  # fmt: skip
        names = [name for name in names if name not in done]
        nodes = nodes and len(stored.layers) < len(opened.graph.section_names)
    if names or nodes:
        changes = {"edges": bool(names), "nodes": nodes, "sections": tuple(names) or None}
        ablate.run(opened, request.model_copy(update=changes))
    return bool(names or nodes)


def common_result(job: Job, opened: Run, settings: Settings) -> JobResult:
    """Return the fields that the results of all tasks share, of a run that is ablated."""
    ablation = opened.stored(AblationResult)
    assert ablation is not None
    graph = opened.graph
    return JobResult(
        basis=job.basis,
        seed=job.seed,
        run=job.folder.name,
        model=graph.provenance.model,
        model_fingerprint=graph.provenance.model_fingerprint,
        settings=settings,
        layers=tuple(graph.layer_names),
        ablation=ablation,
    )
