"""Cost model against measurements: builds that it was calibrated on, and others that it is checked on."""

from dataclasses import dataclass
from typing import Literal

from interbasis.analysis.costs.calibration import SHARES
from interbasis.analysis.costs.operations import Workload
from interbasis.analysis.costs.profile import machine_profile, seconds
from interbasis.base.records import Record
from interbasis.graph.settings import DEFAULT_NORM_LIMIT, BuildConfig
from interbasis.run.build import build
from interbasis_studies.bench.measures import PHASES, forward_time
from interbasis_studies.bench.shapes import Shape


@dataclass(frozen=True)
class Case:
    """One build: blocks with random weights, tokens of a group of signed edges, and other settings."""

    shape: Shape
    group: int | Literal["positions"]
    jacobian_queries: int | None = None
    edge_positions: int | None = None

    @property
    def config(self) -> BuildConfig:
        return BuildConfig.validated(
            dtype="float32", edge_group=self.group, edge_sources=1, norm_limit=DEFAULT_NORM_LIMIT,
            jacobian_queries=self.jacobian_queries, edge_positions=self.edge_positions,
        )  # fmt: skip


CALIBRATED_ON = {
    "GPT2-small": Case(Shape(768, 3072, 12, positions=256, samples=8), "positions"),
    "GPT-2, 512 wide": Case(Shape(512, 2048, 8, positions=256, samples=8), 64),
    "GPT-2, 640 wide, T = 512": Case(Shape(640, 2560, 10, positions=512, samples=4), "positions"),
    "SmolLM2-135M": Case(Shape(576, 1536, 9, 3, positions=256, samples=8), "positions"),
    "Llama, 512 wide": Case(Shape(512, 1408, 8, 8, positions=256, samples=8), 64),
    "Llama, 768 wide": Case(Shape(768, 2048, 12, 4, positions=128, samples=16), "positions"),
}
SEEN = {
    "GPT-2, 512 wide, 2 blocks": Case(Shape(512, 2048, 8, blocks=2, positions=128, samples=16), "positions"),
    "GPT-2, 896 wide": Case(Shape(896, 3584, 14, positions=256, samples=8), 128),
    "GPT2-small, T = 1,024": Case(Shape(768, 3072, 12, positions=1024, samples=2), "positions"),
    "Llama, 640 wide": Case(Shape(640, 1728, 10, 5, positions=256, samples=8), "positions"),
    "SmolLM2-135M, T = 512": Case(Shape(576, 1536, 9, 3, positions=512, samples=4), 128),
    "Llama, 512 wide, 16 heads": Case(Shape(512, 1408, 16, 16, positions=128, samples=16), 64),
    "GPT-2, 448 wide, 3 blocks": Case(Shape(448, 1792, 7, blocks=3, positions=192, samples=12), 48),
    "GPT-2, 704 wide, 64 queries": Case(
        Shape(704, 2816, 11, positions=512, samples=6), "positions", jacobian_queries=64
    ),
    "GPT-2, 832 wide, T = 384": Case(Shape(832, 3328, 13, positions=384, samples=6), "positions"),
    "Llama, 448 wide, 2 blocks": Case(
        Shape(448, 1216, 7, 7, blocks=2, positions=320, samples=8), "positions"
    ),
    "Llama, 704 wide, 64 positions": Case(
        Shape(704, 1920, 11, 11, positions=512, samples=4), "positions", edge_positions=64
    ),
    "Llama, 832 wide": Case(Shape(832, 2240, 13, 13, positions=160, samples=16), 32),
}
"""Not fitted to, but looked at while counts of operations were mended."""
UNSEEN = {
    "GPT-2, 576 wide, T = 640": Case(Shape(576, 2304, 9, positions=640, samples=4), "positions"),
    "GPT-2, 960 wide": Case(Shape(960, 3840, 15, positions=128, samples=16), 32),
    "GPT-2, 384 wide, 4 blocks": Case(Shape(384, 1536, 6, blocks=4, positions=256, samples=8), "positions"),
    "Llama, 384 wide, T = 768": Case(Shape(384, 1024, 6, 2, positions=768, samples=4), "positions"),
    "Llama, 960 wide": Case(Shape(960, 2560, 15, 5, positions=192, samples=10), "positions"),
    "Llama, 512 wide, 32 queries": Case(
        Shape(512, 1408, 8, 4, blocks=2, positions=384, samples=6), "positions", jacobian_queries=32
    ),
}
"""Written down before any of them was measured."""


class PlanAgreement(Record):
    """Processor time of one build, measured and planned, by phase."""

    measured: dict[str, float]
    planned: dict[str, float]

    @property
    def ratio(self) -> float:
        """Planned over measured, of the whole build."""
        return sum(self.planned[phase] for phase in PHASES) / sum(self.measured[phase] for phase in PHASES)


def agreement(case: Case, calibrated: bool = True) -> PlanAgreement:
    """Build, and plan the same build; without calibration the plan is that of the operations alone."""
    shape = case.shape
    network, tokens = shape.network(), shape.data()
    settings = case.config.model_dump()
    build(network, tokens[:2], progress=False, **settings)  # warm
    graph = build(network, tokens, progress=False, **settings).graph
    profile = machine_profile(again=True)
    phases = Workload(network, shape.tokens, shape.positions, case.config).phases()
    planned = {
        name: seconds(profile, operations) * (SHARES[name] if calibrated else 1.0)
        for name, operations in phases.items()
    }
    measured = {phase: graph.provenance.processor_timings[phase] for phase in PHASES}
    measured["forward"] = forward_time(network, tokens).value
    return PlanAgreement(measured=measured, planned=planned)
